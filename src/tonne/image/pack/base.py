"""Content that other images store already.

The frames of all bases are numbered in one row, base after base, a pack that several list once: the *id*.  In memory
are twelve bytes for each frame, twelve for each small file, and a byte a frame for what is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tonne.clock import Deadline
from tonne.image.opening import Image
from tonne.image.pack.digests import DigestTable, keys_of
from tonne.image.pack.ledger import BASE_BIT
from tonne.image.pack.options import SMALL_BYTES
from tonne.image.pack.rows import Rows
from tonne.model import Blob, Digest, Extent, Kind
from tonne.wire.record import CONTENT, Records
from tonne.wire.root import Pack, PackKind, Part

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
        self._entries: list[int] = []  # for each base: the entries of those before it
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
                    usable = False if pack.kind is not PackKind.OURS or little else None
                    self.packs.append(BasePack(pack, base, next_id, usable))
                    next_id += pack.frames
                opened.packs.append(-1 if place is None else place)

    def load(self, deadline: Deadline, check: Callable[[], None]) -> None:
        """Read the tables of the bases; takes 32 bytes of network for each frame and some 150 for each file."""
        for base, opened in enumerate(self._opened):
            self._load_contents(base, opened, deadline, check)
        entries = 0
        for opened in self._opened:
            self._entries.append(entries)
            entries += opened.image.index.root.totals.entries
        for base, opened in enumerate(self._opened):
            self._load_small(base, opened.image, deadline, check)

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

    def _load_small(self, base: int, image: Image, deadline: Deadline, check: Callable[[], None]) -> None:
        keys, values = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
        for first, table in image.index.tree_tables(deadline):
            check()
            numbers = np.arange(first, first + len(table), dtype=np.uint32)
            wanted = (table["mode"] & 0o170000) == int(Kind.FILE)
            wanted &= (table["inode"] == numbers) & (table["size"] > 0) & (table["size"] <= SMALL_BYTES)
            if wanted.any():
                keys.append(keys_of(table["digest"][wanted]))
                values.append(numbers[wanted] + np.uint32(self._entries[base]))
        self._small.extend(np.concatenate(keys), np.concatenate(values))

    def find_frame(self, digest: bytes) -> int | None:
        """The id of a frame of that content, marked as used; None when no usable pack has one."""
        for found in self._frames.find(digest):
            if self._contents.raw(found) == digest and self._usable(self._place(found)):
                self.used[found] = True
                return found
        return None

    def find_small(self, digest: bytes, size_bytes: int, deadline: Deadline) -> list[Extent] | None:
        """The extents of a file of that content, frames by id and marked as used; None when there is no usable one."""
        for found in self._small.find(digest):
            base = int(np.searchsorted(self._entries, found, "left")) - 1
            opened = self._opened[base]
            entry = opened.image.index.entry(found - self._entries[base], deadline)
            if entry.digest != digest or entry.size_bytes != size_bytes:
                continue
            extents = [
                self._renumbered(opened, extent)
                for extent in opened.image.index.extents(entry.inode, 0, size_bytes, deadline)
            ]
            if all(extent is not None for extent in extents):
                kept = [extent for extent in extents if extent is not None]
                for extent in kept:
                    if extent.frame is not None:
                        self.used[extent.frame] = True
                return kept
        return None

    def _renumbered(self, opened: _Opened, extent: Extent) -> Extent | None:
        if extent.frame is None:
            return extent
        packs = opened.image.index.root.packs
        place = int(np.searchsorted([pack.first_frame for pack in packs], extent.frame, "right")) - 1
        mine = opened.packs[place]
        if mine < 0 or not self._usable(mine):
            return None
        found = self.packs[mine].first_id + extent.frame - packs[place].first_frame
        return Extent(extent.file_offset, extent.length, found, extent.frame_offset)

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
