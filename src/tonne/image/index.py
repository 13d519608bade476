"""An image's index, read page by page: nothing is loaded that is not asked for (docs/format.md)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tonne.clock import Deadline
from tonne.errors import CorruptIndex, MissingPath
from tonne.image.fetch import Fetcher, Piece
from tonne.model import Blob, Entry, Extent, Frame
from tonne.model.entry import ROOT_INODE
from tonne.model.frame import FRAME_BYTES_MAX, FRAME_STORED_BYTES_MAX
from tonne.source.seam import Priority
from tonne.wire.page import TreePage, extents_of, frame_of
from tonne.wire.pagelist import PageAddress, PageList, check_page, parse_list
from tonne.wire.record import Records, records
from tonne.wire.root import RECORD_OF, Part, Root
from tonne.wire.stored import load_page

PAGES_TOGETHER = 32  # asked for at once by whoever reads a whole part: 2 MiB before they were stored
PATH_LINKS_MAX = 40  # symbolic links followed in one path, as Linux has it (MAXSYMLINKS)


MEMORY_ONLY = Deadline(float("-inf"))
"""A deadline for who would rather be told at once than wait for anything: see `NotInMemory`."""


class NotInMemory(Exception):
    """A page would have to be fetched, and the caller's deadline was `MEMORY_ONLY`.  Never leaves tonne's own code."""


class Index:
    """Answers for the tree, the extents and the frames of one image.

    Where one thing is asked for, `MEMORY_ONLY` is a deadline too: `NotInMemory` is raised instead of reading anything.
    Any thread may call.  Decoded pages are kept up to `cache_bytes`, least recently used go first; `_lock` guards that
    cache and is never held while bytes are fetched.  An error leaves nothing behind.
    """

    def __init__(self, root: Root, pages: Blob, fetcher: Fetcher, cache_bytes: int) -> None:
        if pages.size_bytes != root.pages_bytes:
            raise CorruptIndex("the pages blob has not the length that the root says", where=str(pages.digest))
        self.root = root
        self._blob = pages
        self._fetcher = fetcher
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._pages: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._held_bytes = 0

    # --- tree ---

    def entry(self, number: int, deadline: Deadline) -> Entry:
        """The entry of that number; `MissingPath` when the image has none."""
        if not 0 < number <= self.root.totals.entries:
            raise MissingPath("no such entry in the image", where=str(number))
        return self._tree_page(number, deadline).entry(number)

    def lookup(self, folder: Entry, name: bytes, deadline: Deadline) -> Entry | None:
        """The entry of that name in a folder, else None.  Touches one page of each level."""
        if not folder.children:
            return None
        pages, place = self._leaf(Part.TREE, lambda found: found.find_name(folder.number, name), deadline)
        if place < 0:
            return None
        page = self._tree_page_at(pages.address(place), deadline)
        low, high = self._rows_of(page, folder)
        end = high
        while low < high:
            middle = (low + high) // 2
            if page.name(middle) < name:
                low = middle + 1
            else:
                high = middle
        if low < end and page.name(low) == name:
            return self._child(page.entry(page.first + low), folder)
        return None

    def children(self, folder: Entry, deadline: Deadline, skip: int = 0) -> Iterator[Entry]:
        """The entries of a folder in byte order of their names, without the first `skip`."""
        number = folder.first_child + skip
        end = folder.first_child + folder.children
        if folder.children and end - 1 > self.root.totals.entries:
            raise CorruptIndex("a folder has more children than the image has entries", where=f"entry {folder.number}")
        while number < end:
            page = self._tree_page(number, deadline)
            for each in range(number, min(end, page.first + len(page))):
                yield self._child(page.entry(each), folder)
            number = page.first + len(page)

    def walk(self, deadline: Deadline) -> Iterator[Entry]:
        """Every entry in the order of the numbers: breadth-first."""
        number = 1
        while number <= self.root.totals.entries:
            page = self._tree_page(number, deadline)
            for each in range(number, page.first + len(page)):
                yield page.entry(each)
            number = page.first + len(page)

    def tree_tables(self, deadline: Deadline) -> Iterator[tuple[int, Records]]:
        """The tree's records, page after page, each with its first number; not checked one by one, not kept."""
        for pages in self._leaves(Part.TREE, deadline):
            for first in range(0, len(pages), PAGES_TOGETHER):
                addresses = [pages.address(place) for place in range(first, min(first + PAGES_TOGETHER, len(pages)))]
                for address, data in zip(addresses, self._load_several(addresses, deadline), strict=True):
                    yield address.key_b, TreePage(data, address.records, address.key_b).table

    def resolve(self, path: bytes, deadline: Deadline, follow_last: bool = True) -> Entry:
        """The entry at a path relative to the root, symbolic links within the image followed.

        `MissingPath` when there is none, when a link leads out of the image, or in a circle.
        """
        todo = [part for part in path.split(b"/") if part not in (b"", b".")]
        chain = [self.entry(ROOT_INODE, deadline)]
        links = 0
        while todo:
            name = todo.pop(0)
            if name == b"..":
                if len(chain) == 1:
                    raise MissingPath("the path leads out of the image", where=_text(path))
                chain.pop()
                continue
            if not chain[-1].is_dir:
                raise MissingPath("no such path in the image", where=_text(path), why="a part of it is no folder")
            found = self.lookup(chain[-1], name, deadline)
            if found is None:
                raise MissingPath("no such path in the image", where=_text(path))
            if found.target and (todo or follow_last):
                links += 1
                if links > PATH_LINKS_MAX:
                    raise MissingPath("too many symbolic links", where=_text(path))
                if found.target.startswith(b"/"):
                    raise MissingPath("the path leads out of the image", where=_text(path))
                todo = [part for part in found.target.split(b"/") if part not in (b"", b".")] + todo
                continue
            chain.append(found)
        return chain[-1]

    def path(self, entry: Entry, deadline: Deadline) -> bytes:
        """Where an entry stands, relative to the root, without a leading slash; empty for the root."""
        parts: list[bytes] = []
        while entry.number != ROOT_INODE:
            parts.append(entry.name)
            entry = self.entry(entry.parent, deadline)
        return b"/".join(reversed(parts))

    # --- extents and frames ---

    def extents(self, inode: int, start: int, end: int, deadline: Deadline) -> list[Extent]:
        """The extents that cover bytes `start` to `end` of a file, in order, the outer ones whole.

        `CorruptIndex` when they leave a gap or overlap: what no extent covers is unknown, never zeros.
        """
        if start >= end:
            return []
        found: list[Extent] = []
        key = (inode, start)
        while True:
            table = self._extent_rows(key, inode, end, deadline)
            for extent in extents_of(table):
                # The rows of the next key may begin with the one that was taken last.
                if extent.end > start and (not found or extent.file_offset > found[-1].file_offset):
                    found.append(extent)
                if extent.end >= end:
                    return self._contiguous(found, inode, start)
            if not len(table) or not found:
                raise CorruptIndex("a file's extents do not cover it", where=f"inode {inode} from byte {start}")
            if found[-1].end <= key[1]:
                raise CorruptIndex("a file's extents do not advance", where=f"inode {inode}")
            # What begins before the end of the last one is not looked at on the way to the next page.
            covering = self._extent_rows((inode, found[-1].end - 1), inode, found[-1].end, deadline)
            if not len(covering) or int(covering["file_offset"][0]) != found[-1].file_offset:
                raise CorruptIndex("a file's extents overlap", where=f"inode {inode}")
            key = (inode, found[-1].end)

    def _extent_rows(self, key: tuple[int, int], inode: int, end: int, deadline: Deadline) -> Records:
        """The file's rows on the page that holds `key`, from there on, as far as they begin before `end`."""
        pages, place = self._leaf(Part.EXTENTS, lambda found: found.find_pair(*key), deadline)
        if place < 0:
            raise CorruptIndex("a file has no extents", where=f"inode {inode}")
        table = self._fixed_page(Part.EXTENTS, pages.address(place), deadline)
        rows = table[np.searchsorted(table["inode"], inode, "left") : np.searchsorted(table["inode"], inode, "right")]
        first = int(np.searchsorted(rows["file_offset"], np.uint64(key[1]), "right")) - 1
        last = int(np.searchsorted(rows["file_offset"], np.uint64(end), "left"))
        return rows[max(first, 0) : last]

    def _contiguous(self, found: list[Extent], inode: int, start: int) -> list[Extent]:
        good = found[0].file_offset <= start and all(a.end == b.file_offset for a, b in pairwise(found))
        if not good or any(extent.length == 0 for extent in found):
            raise CorruptIndex("a file's extents leave a gap or overlap", where=f"inode {inode}")
        return found

    def frames(self, numbers: Sequence[int], deadline: Deadline) -> list[Frame]:
        """Frames by number, checked against the pack table, in the order asked."""
        return [self._checked(number, self._frame_row(number, deadline)) for number in numbers]

    def _frame_row(self, number: int, deadline: Deadline) -> Any:
        if not 0 <= number < self.root.frames:
            raise CorruptIndex("an extent names a frame that the image does not have", where=f"frame {number}")
        table, first = self._numbered(Part.FRAMES, number, deadline)
        return table[number - first]

    def _checked(self, number: int, row: Any) -> Frame:
        frame = frame_of(number, row)
        packs = self.root.packs
        if frame.pack >= len(packs) or not 0 <= number - packs[frame.pack].first_frame < packs[frame.pack].frames:
            raise CorruptIndex("a frame names a pack that does not hold it", where=f"frame {number}")
        if frame.end > packs[frame.pack].size_bytes or not 0 < frame.raw_bytes <= FRAME_BYTES_MAX:
            raise CorruptIndex("a frame lies outside its pack or is too large", where=f"frame {number}")
        if not 0 < frame.stored_bytes <= FRAME_STORED_BYTES_MAX:
            raise CorruptIndex("a frame's stored length is out of bounds", where=f"frame {number}")
        return frame

    def content_digest(self, number: int, deadline: Deadline) -> bytes:
        """The BLAKE3 of a frame's raw content."""
        table, first = self._numbered(Part.CONTENTS, number, deadline)
        return bytes(table["digest"][number - first].tobytes())

    def _numbered(self, part: Part, number: int, deadline: Deadline) -> tuple[Records, int]:
        pages, place = self._leaf(part, lambda found: found.find(number), deadline)
        address = pages.address(place) if place >= 0 else None
        if address is None or not 0 <= number - address.key_a < address.records:
            raise CorruptIndex("a record is not on the page where the list says", where=f"{part.name.lower()} {number}")
        return self._fixed_page(part, address, deadline), address.key_a

    def tables(self, part: Part, deadline: Deadline) -> Iterator[Records]:
        """All records of a fixed-size part, page after page, not kept in the cache; neighbours come in one request."""
        for pages in self._leaves(part, deadline):
            yield from self._pages_of(part, [pages.address(place) for place in range(len(pages))], deadline)

    def extents_of_inodes(self, needed: npt.NDArray[np.bool_], deadline: Deadline) -> Iterator[Records]:
        """The extents of the inodes that `needed` marks, page after page; pages that hold none of them are not read."""
        before = np.concatenate(([0], np.cumsum(needed, dtype=np.uint32)))  # how many are needed below an inode
        for pages in self._leaves(Part.EXTENTS, deadline):
            first = np.minimum(pages.table["key_a"], len(needed)).astype(np.int64)
            last = np.append(first[1:], len(needed))  # a file may end on the page where the next begins
            wanted = before[np.minimum(last + 1, len(needed))] > before[first]
            addresses = [pages.address(int(place)) for place in np.flatnonzero(wanted)]
            for table in self._pages_of(Part.EXTENTS, addresses, deadline):
                inodes = table["inode"]
                mine = table[needed[np.minimum(inodes, len(needed) - 1)] & (inodes < len(needed))]
                if len(mine):
                    yield mine

    def _pages_of(self, part: Part, addresses: Sequence[PageAddress], deadline: Deadline) -> Iterator[Records]:
        for start in range(0, len(addresses), PAGES_TOGETHER):
            some = addresses[start : start + PAGES_TOGETHER]
            for address, data in zip(some, self._load_several(some, deadline), strict=True):
                yield self._decode_fixed(part, address, data)

    def _load_several(self, addresses: Sequence[PageAddress], deadline: Deadline) -> list[bytes]:
        with self._lock:
            held = {
                item.offset: self._pages[-1 - item.offset][0] for item in addresses if -1 - item.offset in self._pages
            }
        pieces = [Piece(item.offset, item.stored_bytes, item.digest) for item in addresses if item.offset not in held]
        got = iter(self._fetcher.pieces(self._blob, pieces, deadline.for_one(), Priority.BACKGROUND) if pieces else ())
        return [
            held[item.offset]
            if item.offset in held
            else load_page(next(got), item.codec, item.raw_bytes, item.digest, "index")
            for item in addresses
        ]

    def counted(self, part: Part, deadline: Deadline) -> int:
        """How many records a part has, after its lists were read: for whoever allocates by it.

        The root alone proves nothing at depth 2.
        """
        found = self.root.parts.get(part)
        if found is None:
            return 0
        listed = sum(int(pages.table["records"].sum(dtype=np.uint64)) for pages in self._leaves(part, deadline))
        if listed != found.records:
            raise CorruptIndex("a part's pages do not add up to its records", where=part.name.lower())
        return found.records

    def has_part(self, part: Part) -> bool:
        return part in self.root.parts

    # --- pages ---

    def load_all(self, deadline: Deadline) -> None:
        """Fetch the whole index in as few requests as can be, for later calls to find in the store or cache."""
        addresses = [
            pages.address(place)
            for part in self.root.parts
            for pages in self._leaves(part, deadline)
            for place in range(len(pages))
        ]
        addresses.sort(key=lambda item: item.offset)
        pieces = [Piece(item.offset, item.stored_bytes, item.digest) for item in addresses]
        got = self._fetcher.pieces(self._blob, pieces, deadline.for_one())
        for address, stored in zip(addresses, got, strict=True):
            self._keep_stored(address, stored)

    def _keep_stored(self, address: PageAddress, stored: memoryview) -> None:
        data = load_page(stored, address.codec, address.raw_bytes, address.digest, "index")
        self._keep(-1 - address.offset, data, len(data))

    def _leaves(self, part: Part, deadline: Deadline) -> Iterator[PageList]:
        found = self.root.parts.get(part)
        if found is None:
            return
        if self.root.depth == 1:
            yield found.pages
        else:
            for place in range(len(found.pages)):
                yield self._list_page(part, found.pages.address(place), deadline)

    def _leaf(self, part: Part, find: Any, deadline: Deadline) -> tuple[PageList, int]:
        """The list that names the page which `find` looks for, and the page's place in it (-1: before the first)."""
        found = self.root.parts.get(part)
        if found is None:
            raise CorruptIndex("the image has no such part", where=part.name.lower())
        pages = found.pages
        place = int(find(pages))
        if self.root.depth == 2 and place >= 0:
            pages = self._list_page(part, pages.address(place), deadline)
            place = int(find(pages))
        return pages, place

    def _list_page(self, part: Part, address: PageAddress, deadline: Deadline) -> PageList:
        def decode(data: bytes) -> PageList:
            item_bytes, what = RECORD_OF[part].itemsize, f"list of {part.name.lower()}"
            return parse_list(data, address.records, self.root.pages_bytes, item_bytes, what)

        result: PageList = self._cached(address, decode, deadline)
        return result

    def _tree_page(self, number: int, deadline: Deadline) -> TreePage:
        pages, place = self._leaf(Part.TREE, lambda found: found.find_number(number), deadline)
        if place < 0:
            raise CorruptIndex("an entry is on no page", where=f"entry {number}")
        page = self._tree_page_at(pages.address(place), deadline)
        if not 0 <= number - page.first < len(page):
            raise CorruptIndex("an entry is not on the page where the list says", where=f"entry {number}")
        return page

    def _tree_page_at(self, address: PageAddress, deadline: Deadline) -> TreePage:
        page: TreePage = self._cached(address, lambda data: TreePage(data, address.records, address.key_b), deadline)
        return page

    def _fixed_page(self, part: Part, address: PageAddress, deadline: Deadline) -> Records:
        table: Records = self._cached(address, lambda data: self._decode_fixed(part, address, data), deadline)
        return table

    @staticmethod
    def _decode_fixed(part: Part, address: PageAddress, data: bytes) -> Records:
        check_page(address.records, RECORD_OF[part], data, part.name.lower())
        return records(data, RECORD_OF[part], address.records, part.name.lower())

    def _cached(self, address: PageAddress, decode: Any, deadline: Deadline) -> Any:
        with self._lock:
            kept = self._pages.get(address.offset)
            if kept is not None:
                self._pages.move_to_end(address.offset)
                return kept[0]
            raw = self._pages.get(-1 - address.offset)
        if raw is None and deadline is MEMORY_ONLY:
            raise NotInMemory
        value = decode(raw[0] if raw is not None else self._load(address, deadline, Priority.DEMAND))
        self._keep(address.offset, value, address.raw_bytes)
        return value

    def _keep(self, key: int, value: Any, size_bytes: int) -> None:
        with self._lock:
            if key >= 0:
                raw = self._pages.pop(-1 - key, None)
                self._held_bytes -= raw[1] if raw else 0
            old = self._pages.pop(key, None)
            self._held_bytes += size_bytes - (old[1] if old else 0)
            self._pages[key] = (value, size_bytes)
            while self._held_bytes > self._cache_bytes and len(self._pages) > 1:
                _, (_, dropped) = self._pages.popitem(last=False)
                self._held_bytes -= dropped

    def _load(self, address: PageAddress, deadline: Deadline, priority: Priority) -> bytes:
        piece = Piece(address.offset, address.stored_bytes, address.digest)
        stored = self._fetcher.pieces(self._blob, [piece], deadline.for_one(), priority)[0]
        return load_page(stored, address.codec, address.raw_bytes, address.digest, "index")

    @staticmethod
    def _rows_of(page: TreePage, folder: Entry) -> tuple[int, int]:
        """Which rows of a page are a folder's children."""
        low = max(folder.first_child - page.first, 0)
        high = min(folder.first_child + folder.children - page.first, len(page))
        return low, max(low, high)

    @staticmethod
    def _child(entry: Entry, folder: Entry) -> Entry:
        if entry.parent != folder.number:
            raise CorruptIndex("a folder lists an entry of another", where=f"entry {entry.number}")
        return entry


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
