"""Content that other images store already.

The frames of all bases are numbered in one row, base after base, a pack that several list once: the *id*.  In memory
are twelve bytes for each frame, twelve for each small file, and a byte a frame for what is used; the rest is in scratch
files.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tonne.clock import Deadline
from tonne.image.opening import Image
from tonne.image.pack.digests import DigestTable, keys_of
from tonne.image.pack.ledger import BASE_BIT
from tonne.image.pack.options import SMALL_BYTES
from tonne.image.pack.rows import BLOCK_ROWS, Rows
from tonne.model import Blob, Digest, Kind
from tonne.wire.record import CONTENT, NO_FRAME, Records
from tonne.wire.root import Pack, Part

NOWHERE = 0xFFFFFFFE  # a small file of which the frame is not known
SMALL = np.dtype([("digest", "V32"), ("id", "<u4"), ("offset", "<u4"), ("length", "<u4")])
_SMALL = struct.Struct("<32sIII")

Numbers = npt.NDArray[np.uint32]

USED_SHARE = 4  # a pack of which its image uses less than one part in so many is not listed again


@dataclass(slots=True)
class BasePack:
    """A pack that may be listed again.  `usable` None: not asked yet."""

    pack: Pack
    base: int
    first_id: int
    usable: bool | None = None

    @property
    def blob(self) -> Blob:
        return self.pack.blob


@dataclass(slots=True)
class _Opened:
    image: Image
    packs: list[int] = field(default_factory=list)  # for each of the image's packs: its place in Bases.packs


class Bases:
    """Finds frames and small files in base images.

    `find_small` is called by the reader's thread and `find_frame` by the decider's; `_lock` is held while `provide` is
    asked, so that it is asked once for each pack.  An error leaves the tables as they were.  Nothing survives a crash;
    the bases are opened again.
    """

    def __init__(self, images: Sequence[Image], scratch: Path, provide: Callable[[BasePack], bool]) -> None:
        """`provide` makes sure that a pack is, or can be brought, where the new image goes; False: it cannot."""
        self._opened = [_Opened(image) for image in images]
        self._provide = provide
        self._lock = threading.Lock()
        self.packs: list[BasePack] = []
        self._contents = Rows(scratch / "base-contents", CONTENT)
        self._frames = DigestTable()
        self._small = DigestTable()
        self._small_rows = Rows(scratch / "base-small", SMALL)
        self._number_packs()
        count = self.packs[-1].first_id + self.packs[-1].pack.frames if self.packs else 0
        self._firsts = np.array([pack.first_id for pack in self.packs], np.int64)
        self.used = np.zeros(count, bool)

    @property
    def images(self) -> list[Image]:
        return [opened.image for opened in self._opened]

    def _number_packs(self) -> None:
        known: dict[Digest, int] = {}
        next_id = 0
        for base, opened in enumerate(self._opened):
            for pack in opened.image.index.root.packs:
                place = known.get(pack.digest)
                if place is None and next_id + pack.frames < BASE_BIT:
                    place = known[pack.digest] = len(self.packs)
                    little = pack.used_bytes * USED_SHARE < pack.size_bytes
                    usable = False if little else None
                    self.packs.append(BasePack(pack, base, next_id, usable))
                    next_id += pack.frames
                opened.packs.append(-1 if place is None else place)

    def load(self, deadline: Deadline, check: Callable[[], None]) -> None:
        """Read the tables of the bases; takes 32 bytes of network for each frame and some 150 for each file."""
        for base, opened in enumerate(self._opened):
            self._load_contents(base, opened, deadline, check)
        for opened in self._opened:
            self._load_small(opened, deadline, check)

    def _load_contents(self, base: int, opened: _Opened, deadline: Deadline, check: Callable[[], None]) -> None:
        index = opened.image.index
        if not index.has_part(Part.CONTENTS):
            return
        keys, values = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
        for first, table in self.rows_of(base, Part.CONTENTS, deadline):
            check()
            self._contents.write(first, table)
            ids = np.arange(first, first + len(table), dtype=np.uint32)
            pack = self.packs[self._place(first)]
            if pack.usable is not False:
                keys.append(keys_of(table["digest"]))
                values.append(ids)
        self._frames.extend(np.concatenate(keys), np.concatenate(values))

    def rows_of(self, base: int, part: Part, deadline: Deadline) -> Iterator[tuple[int, Records]]:
        """The records of packs that no earlier base lists, in runs of one pack: (first id, rows)."""
        opened = self._opened[base]
        packs = opened.image.index.root.packs
        ends = [pack.first_frame + pack.frames for pack in packs]
        at, place = 0, 0
        for table in opened.image.index.tables(part, deadline):
            start = 0
            while start < len(table):
                while ends[place] <= at:
                    place += 1
                stop = min(len(table), start + ends[place] - at)
                mine = self.packs[opened.packs[place]] if opened.packs[place] >= 0 else None
                if mine is not None and mine.base == base:
                    yield mine.first_id + at - packs[place].first_frame, table[start:stop]
                at += stop - start
                start = stop

    def _load_small(self, opened: _Opened, deadline: Deadline, check: Callable[[], None]) -> None:
        """Take small files from the tree, then from the extents where each of them is stored."""
        first_row = len(self._small_rows)
        inodes: list[Numbers] = []
        for first, table in opened.image.index.tree_tables(deadline):
            check()
            numbers = np.arange(first, first + len(table), dtype=np.uint32)
            wanted = (table["mode"] & 0o170000) == int(Kind.FILE)
            wanted &= (table["inode"] == numbers) & (table["size"] > 0) & (table["size"] <= SMALL_BYTES)
            if wanted.any():
                rows = np.zeros(int(wanted.sum()), SMALL)
                rows["digest"], rows["length"], rows["id"] = table["digest"][wanted], table["size"][wanted], NOWHERE
                self._small_rows.extend(rows)
                inodes.append(numbers[wanted])
        if inodes:
            self._place_small(opened, np.concatenate(inodes), first_row, deadline, check)
            for start in range(first_row, len(self._small_rows), BLOCK_ROWS):
                rows = self._small_rows.read(start, min(BLOCK_ROWS, len(self._small_rows) - start))
                stored = rows["id"] != NOWHERE
                places = np.arange(start, start + len(rows), dtype=np.uint32)
                self._small.extend(keys_of(rows["digest"][stored]), places[stored])

    def _place_small(
        self, opened: _Opened, inodes: Numbers, first_row: int, deadline: Deadline, check: Callable[[], None]
    ) -> None:
        """Fill in frame and offset of small files that are one extent; others (not of our writing) stay unfound."""
        firsts, shifts, known = self._shifts(opened)
        for table in opened.image.index.tables(Part.EXTENTS, deadline):
            check()
            place = np.minimum(np.searchsorted(inodes, table["inode"]), len(inodes) - 1)
            mine = (inodes[place] == table["inode"]) & (table["file_offset"] == 0) & (table["frame"] != NO_FRAME)
            if not mine.any():
                continue
            table, place = table[mine], place[mine]
            pack = np.searchsorted(firsts, table["frame"], "right") - 1
            low, high = int(place[0]), int(place[-1]) + 1
            rows = self._small_rows.read(first_row + low, high - low)
            good = known[pack] & (rows["length"][place - low] == table["length"])
            place, table, pack = place[good] - low, table[good], pack[good]
            rows["id"][place] = table["frame"] + shifts[pack]
            rows["offset"][place] = table["frame_offset"]
            self._small_rows.write(first_row + low, rows)

    def _shifts(self, opened: _Opened) -> tuple[Numbers, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """For each pack of a base: its first frame, what to add for ids, and whether it has ids."""
        packs = opened.image.index.root.packs
        firsts = np.array([pack.first_frame for pack in packs], np.uint32)
        known = np.array([place >= 0 and self.packs[place].usable is not False for place in opened.packs], np.bool_)
        ids = [self.packs[place].first_id if place >= 0 else 0 for place in opened.packs]
        return firsts, np.array(ids, np.int64) - firsts, known

    def find_frame(self, digest: bytes) -> int | None:
        """The id of a frame of that content, marked as used; None when no usable pack has one."""
        for found in self._frames.find(digest):
            if self._contents.raw(found) == digest and self._usable(self._place(found)):
                self.used[found] = True
                return found
        return None

    def find_small(self, digest: bytes, size_bytes: int) -> tuple[int, int] | None:
        """Frame (its id, marked as used) and offset of a small file of that content; None where none is usable."""
        for place in self._small.find(digest):
            found, frame, offset, length = _SMALL.unpack(self._small_rows.raw(place))
            if found == digest and length == size_bytes and self._usable(self._place(frame)):
                self.used[frame] = True
                return frame, offset
        return None

    def pack_of(self, found: int) -> BasePack:
        """The pack of a frame by its id."""
        return self.packs[self._place(found)]

    def _place(self, found: int) -> int:
        return int(np.searchsorted(self._firsts, found, "right")) - 1

    def _usable(self, place: int) -> bool:
        pack = self.packs[place]
        with self._lock:
            if pack.usable is None:
                pack.usable = self._provide(pack)
            return pack.usable

    def used_packs(self) -> list[BasePack]:
        """The packs that the new image lists again, in the order of the bases."""
        return [pack for pack in self.packs if self.used[pack.first_id : pack.first_id + pack.pack.frames].any()]

    def close(self) -> None:
        self._contents.close()
        self._small_rows.close()
