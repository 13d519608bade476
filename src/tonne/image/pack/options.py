"""What a packing is told, and what it tells."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tonne.model import Digest, Reference
from tonne.model.frame import FRAME_BYTES
from tonne.source.seam import Source

MIB = 1024 * 1024
GIB = 1024 * MIB

SMALL_BYTES = MIB
"""Files up to this are put together in frames.  A frame of its own costs 96 bytes of index and a share of a request
whatever it holds; a quarter of a frame is where that stops to matter, and where reading a whole frame for a small file
still costs at most four times the file."""

LANES = 4  # packs and upload sessions open at once; part of the format's rule of where a frame goes
LANE_RUN = 8  # neighbouring frames that go to one lane, so that a reader finds 32 MiB in one request's reach

PACK_BYTES_FIRST = 4 * GIB  # what every registry known takes as a blob
PACKS_AIM = 1200  # packs of an image; more make the manifest slow to put, see docs/format.md


class Links(enum.Enum):
    """What becomes of symbolic links that leave the tree; the others are always kept."""

    FOLLOW = "follow"  # what they point to is packed in their place
    KEEP = "keep"  # they stay links, and dangle in a mount
    ERROR = "error"  # the packing fails and names the link


@dataclass(frozen=True, slots=True)
class PackOptions:
    """Options of one packing.

    `exclude`: globs as in a .gitignore.  `reproducible`: owners become 0 and times `mtime_s` (seconds since 1970).
    `pack_bytes` None: 4 GiB, doubled while the input's bytes divided by it exceed 1,200.
    """

    exclude: tuple[str, ...] = ()
    links: Links = Links.FOLLOW
    reproducible: bool = False
    mtime_s: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict)
    pack_bytes: int | None = None
    level: int = 1

    def shaping(self, pack_bytes: int) -> dict[str, Any]:
        """The options that shape the result, as the config lists them; annotations stand in the manifest itself."""
        document: dict[str, Any] = {
            # The config is UTF-8, names need not be.
            "exclude": [os.fsencode(glob).decode("utf-8", "backslashreplace") for glob in self.exclude],
            "frameBytes": FRAME_BYTES,
            "level": self.level,
            "links": self.links.value,
            "packBytes": pack_bytes,
            "reproducible": self.reproducible,
            "smallBytes": SMALL_BYTES,
        }
        if self.reproducible:
            document["mtime"] = self.mtime_s
        return document


@dataclass(frozen=True, slots=True)
class BaseSource:
    """An image to look for content in: where it is, and how it is read."""

    reference: Reference
    source: Source


@dataclass(frozen=True, slots=True)
class PackResult:
    """What a packing did.  All lengths in bytes.

    `stored_bytes` counts the frames that the image uses, wherever they were stored first; `new_*` is what was stored
    beyond the bases; `sent_bytes` is what this run moved, which is less after an interruption.  `unchanged`: the tag
    names the same image as before.
    """

    reference: str
    digest: Digest
    content_bytes: int
    stored_bytes: int
    files: int
    entries: int
    new_frames: int
    new_content_bytes: int
    new_stored_bytes: int
    sent_bytes: int
    packs_new: int
    packs_reused: int
    bases: tuple[Digest, ...]
    unchanged: bool
    resumed: bool
    seconds: float
    warnings: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "reference": self.reference,
            "digest": str(self.digest),
            "contentBytes": self.content_bytes,
            "storedBytes": self.stored_bytes,
            "files": self.files,
            "entries": self.entries,
            "new": {
                "frames": self.new_frames,
                "contentBytes": self.new_content_bytes,
                "storedBytes": self.new_stored_bytes,
            },
            "sentBytes": self.sent_bytes,
            "packs": {"new": self.packs_new, "reused": self.packs_reused},
            "bases": [str(digest) for digest in self.bases],
            "unchanged": self.unchanged,
            "resumed": self.resumed,
            "seconds": round(self.seconds, 3),
            "warnings": list(self.warnings),
        }
