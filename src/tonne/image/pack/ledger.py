"""What is remembered of the pass, on disk: where each file's bytes are, and where each new frame's content came from.

Frames have provisional numbers while packs are open: a new frame its *n*, a frame of a base `BASE_BIT` and its place
among the frames of all bases.  Small files name a group; what the group's frame became is in `group_frames`.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import numpy as np

from tonne.image.pack.rows import Rows
from tonne.model import blake3_of
from tonne.wire.record import CONTENT, EXTENT, NO_FRAME, Records

BASE_BIT = 1 << 31
NEW_MAX = BASE_BIT - 1  # new frames: 8 PiB of them

RECIPE = np.dtype([("inode", "<u4"), ("group", "<u4"), ("offset", "<u8")])
NO_GROUP = 0xFFFFFFFF
_RECIPE = struct.Struct("<IIQ")
_EXTENT = struct.Struct("<IIQII")


class Ledger:
    """Filled by the reader (small files, digests) and the decider (the rest), each its own tables; others only read.

    Tables of extents are sorted by inode and offset as they are written, because files are read in the order of their
    numbers.  Nothing survives a crash: the pass is made again.
    """

    def __init__(self, scratch: Path) -> None:
        self.digests = Rows(scratch / "digests", CONTENT)  # by inode - 1
        self.contents = Rows(scratch / "contents", CONTENT)  # by n
        self.recipes = Rows(scratch / "recipes", RECIPE)  # by n
        self.extents = Rows(scratch / "extents", EXTENT)  # of large files
        self.small = Rows(scratch / "small", EXTENT)
        self.group_frames = array("L")
        self.group_starts = array("L")  # the place in `small` where a group's rows begin
        self.empty_digest = blake3_of(b"")

    def file_digest(self, inode: int, digest: bytes) -> None:
        self.digests.put_raw(inode - 1, digest)

    def digest_of(self, inode: int) -> bytes:
        return self.digests.raw(inode - 1)

    def extent(self, inode: int, file_offset: int, length: int, frame: int) -> None:
        """A large file's bytes are a whole frame."""
        self.extents.append(_EXTENT.pack(inode, length, file_offset, frame, 0))

    def hole(self, inode: int, file_offset: int, length: int) -> None:
        """A large file's zeros."""
        self.extents.append(_EXTENT.pack(inode, length & 0xFFFFFFFF, file_offset, NO_FRAME, length >> 32))

    def small_extent(self, inode: int, file_offset: int, length: int, frame: int | None, frame_offset: int) -> int:
        """A small file's bytes are in group or base frame `frame` (None: zeros); returns the row's place."""
        number = NO_FRAME if frame is None else frame
        return self.small.append(_EXTENT.pack(inode, length, file_offset, number, frame_offset))

    def small_row(self, place: int) -> tuple[int, int, int, int, int]:
        """A row as inode, length, file offset, frame and offset in it."""
        inode, length, file_offset, frame, frame_offset = _EXTENT.unpack(self.small.raw(place))
        return inode, length, file_offset, frame, frame_offset

    def new_frame(self, content: bytes, inode: int, group: int, offset: int) -> int:
        """Remember where a new frame's content came from; returns its n."""
        self.recipes.append(_RECIPE.pack(inode, group, offset))
        return self.contents.append(content)

    def group_members(self, group: int) -> Records:
        """The rows of the files that a group was filled with, by their place in the frame."""
        start = self.group_starts[group]
        end = self.group_starts[group + 1] if group + 1 < len(self.group_starts) else len(self.small)
        table = self.small.read(start, end - start)
        table = table[table["frame"] == group]
        # A file equal to an earlier one of the group has a row with the same place; the first is the one that was read.
        _, first = np.unique(table["frame_offset"], return_index=True)
        members: Records = table[first]
        return members

    def close(self) -> None:
        for table in (self.digests, self.contents, self.recipes, self.extents, self.small):
            table.close()
