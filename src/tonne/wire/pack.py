"""The end of a pack: a footer that lists its frames, and a trailer that says where the footer is.

A pack's footer is enough to rebuild its part of the frames and contents tables (docs/format.md, "Packs").
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tonne.errors import CorruptIndex, UnknownVersion
from tonne.model import blake3_of
from tonne.wire.record import CONTENT, FOOTER, FRAME, Records, records

MAGIC = b"TONNEPCK"
VERSION = 1
FEATURES_KNOWN = 0
SALT_BYTES = 16
_TRAILER = struct.Struct("<8sHHIQQ16s16x32s")
TRAILER_BYTES = _TRAILER.size
FRAMES_MAX = 65_536  # in one pack, however small they are stored: whoever writes or reads its footer holds 6 MiB
assert TRAILER_BYTES == 96


@dataclass(frozen=True, slots=True)
class Trailer:
    """Where a pack's footer is: `count` records from `records_offset`, of the BLAKE3 `digest`."""

    count: int
    records_offset: int
    salt: bytes
    digest: bytes

    @property
    def footer_bytes(self) -> int:
        """Records and trailer together: what follows the frames."""
        return int(self.count * FOOTER.itemsize + TRAILER_BYTES)


def encode_footer(frames: Records, contents: Records, records_offset: int, salt: bytes = bytes(SALT_BYTES)) -> bytes:
    """Footer and trailer of a pack.

    Args:
        frames: `FRAME` rows in pack order; their `pack` is written as 0, so that a footer is the same in every image.
        contents: `CONTENT` rows beside them.
        records_offset: how many bytes of frames stand before.
    """
    table = np.zeros(len(frames), FOOTER)
    table["frame"] = frames
    table["frame"]["pack"] = 0
    table["content"] = contents["digest"]
    body = table.tobytes()
    return body + _TRAILER.pack(MAGIC, VERSION, FOOTER.itemsize, len(frames), records_offset, 0, salt, blake3_of(body))


def parse_trailer(data: bytes | memoryview, pack_bytes: int) -> Trailer:
    """The last `TRAILER_BYTES` of a pack of `pack_bytes`; `CorruptIndex` or `UnknownVersion`."""
    if len(data) != TRAILER_BYTES:
        raise CorruptIndex("a pack's trailer is cut short")
    magic, version, record_bytes, count, offset, features, salt, digest = _TRAILER.unpack(data)
    if magic != MAGIC:
        raise CorruptIndex("a pack has no trailer", why="its last bytes are not of a tonne pack")
    if version != VERSION or record_bytes != FOOTER.itemsize or features & ~FEATURES_KNOWN:
        raise UnknownVersion("a pack was written by a newer tonne", why=f"version {version}, features {features:#x}")
    trailer = Trailer(count, offset, salt, digest)
    if count > FRAMES_MAX or offset + trailer.footer_bytes != pack_bytes:
        raise CorruptIndex("a pack's footer does not fit its size")
    return trailer


def parse_footer(data: bytes | memoryview, trailer: Trailer, pack: int) -> tuple[Records, Records]:
    """The frames and contents that a footer lists, with `pack` filled in; checks order, bounds and digest."""
    if len(data) != trailer.count * FOOTER.itemsize or blake3_of(data) != trailer.digest:
        raise CorruptIndex("a pack's footer has the wrong digest")
    table = records(data, FOOTER, trailer.count, "pack footer")
    frames = np.array(table["frame"], dtype=FRAME)
    frames["pack"] = pack
    contents = np.zeros(len(table), CONTENT)
    contents["digest"] = table["content"]
    starts = frames["offset"].astype(np.uint64)
    ends = starts + frames["stored_bytes"]
    if len(frames) and (
        int(starts[0]) or int(ends[-1]) != trailer.records_offset or bool(np.any(starts[1:] != ends[:-1]))
    ):
        raise CorruptIndex("the frames of a pack's footer leave gaps or overlap")
    return frames, contents
