"""The frame: the unit of storage, transfer, verification and coding."""

from __future__ import annotations

import enum
from dataclasses import dataclass

FRAME_BYTES = 4 * 1024 * 1024  # the most content of a frame that we write: one request's worth, a coder's working set
FRAME_BYTES_MAX = 64 * 1024 * 1024  # the most that we read: others' frames; bounds a decoder's memory
FRAME_STORED_BYTES_MAX = FRAME_BYTES_MAX + 4096  # as stored; what a codec may add to content that it makes no smaller
STRIPE_BYTES = 64 * 1024 * 1024  # the frames that start in the same one are owned and evicted together


class Codec(enum.IntEnum):
    """How a frame's stored bytes become its content."""

    RAW = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of an image.

    `number` counts the frames of all packs in the order of the pack table; `pack` is the pack's place in that table;
    `digest` is the BLAKE3 of the stored bytes.  Lengths and offsets are in bytes.
    """

    number: int
    pack: int
    offset: int
    stored_bytes: int
    raw_bytes: int
    codec: int
    digest: bytes
    parameters: int = 0
    base: int | None = None
    base_offset: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.stored_bytes
