"""The view: an image's tree and files, read.  The one place that knows how a file read becomes frames.

Mounts, `cat` and whoever else shows files only translate.  Inodes are the numbers of docs/format.md: the root is 1, the
names of a hard link share one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tonne.clock import SYSTEM_CLOCK, Clock, Deadline
from tonne.errors import CorruptIndex, MissingPath
from tonne.image.content import Content
from tonne.image.opening import Image
from tonne.image.readahead import ReadAhead
from tonne.model import Digest, Entry, Extent
from tonne.settings import Settings
from tonne.source.seam import Priority

_ENTRIES_MAX = 4096  # values kept beside the pages that they come from: taking one out of its page costs more
_ENTRY_XATTRS_BYTES_MAX = 1024  # of one that is kept
_SPANS_MAX = 32  # of extents remembered for an open file: one for each reader of it, and more


@dataclass(frozen=True, slots=True)
class Space:
    """What statfs tells: the bytes of all files, a hard link's once, and the number of entries."""

    content_bytes: int
    entries: int


class View:
    """Answers for the tree and the files of one image.

    Any thread may call.  `_lock` guards the small cache of entries only.  After an error everything is as before: what
    failed is tried again by the next call.  Nothing survives the process but what the image's fetcher kept.
    """

    def __init__(self, image: Image, settings: Settings, clock: Clock = SYSTEM_CLOCK, ahead: bool = True) -> None:
        """`ahead` False: files are read without read-ahead, for those who know what they will read."""
        self.index = image.index
        self.digest: Digest = image.digest
        self.content = Content(image.index, image.fetcher, settings)
        self.read_ahead = ReadAhead(image.index, self.content, settings, clock) if ahead else None
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, Entry] = OrderedDict()

    # --- tree ---

    def entry(self, inode: int, deadline: Deadline) -> Entry:
        """What an inode is; `MissingPath` when there is no such one."""
        held = self.remembered(inode)
        return held if held is not None else self._inode_of(self.index.entry(inode, deadline), deadline)

    def remembered(self, inode: int) -> Entry | None:
        """As `entry`, if that needs nothing that is not in memory; never waits."""
        with self._lock:
            held = self._entries.get(inode)
            if held is not None:
                self._entries.move_to_end(inode)
            return held

    def lookup(self, folder: int, name: bytes, deadline: Deadline) -> Entry | None:
        """The entry of that name in a folder, else None.  Of a hard link: the inode, under that name."""
        found = self.index.lookup(self._folder(folder, deadline), name, deadline)
        return None if found is None else self._named(found, deadline)

    def children(self, folder: int, deadline: Deadline, skip: int = 0) -> Iterator[Entry]:
        """The entries of a folder in byte order of their names, without the first `skip`; names as in `lookup`."""
        for found in self.index.children(self._folder(folder, deadline), deadline, skip):
            yield self._named(found, deadline)

    def resolve(self, path: bytes, deadline: Deadline, follow_last: bool = True) -> Entry:
        """The entry at a path relative to the root; links within the image are followed."""
        return self._named(self.index.resolve(path, deadline, follow_last), deadline)

    def space(self) -> Space:
        totals = self.index.root.totals
        return Space(totals.content_bytes, totals.entries)

    def _folder(self, inode: int, deadline: Deadline) -> Entry:
        entry = self.entry(inode, deadline)
        if not entry.is_dir:
            raise MissingPath("not a folder", where=f"inode {inode}")
        return entry

    def _named(self, found: Entry, deadline: Deadline) -> Entry:
        inode = self._inode_of(found, deadline)
        return inode if inode.number == found.number else replace(inode, name=found.name, parent=found.parent)

    def _inode_of(self, found: Entry, deadline: Deadline) -> Entry:
        """The first name of the same file, which alone counts; remembered."""
        first = found
        if found.inode != found.number:
            first = self.index.entry(found.inode, deadline)
            if first.inode != first.number or first.kind is not found.kind or first.is_dir:
                raise CorruptIndex("a hard link leads to something else", where=f"entry {found.number}")
        if sum(len(value) for _, value in first.xattrs) <= _ENTRY_XATTRS_BYTES_MAX:
            with self._lock:
                self._entries[first.number] = first
                self._entries.move_to_end(first.number)
                if len(self._entries) > _ENTRIES_MAX:
                    self._entries.popitem(last=False)
        return first

    # --- files ---

    def open(self, inode: int, deadline: Deadline) -> OpenFile:
        """Open a file; costs nothing but its entry.  `MissingPath` when it is no file."""
        entry = self.entry(inode, deadline)
        if not entry.is_file:
            raise MissingPath("not a file", where=f"inode {inode}")
        return OpenFile(self, entry)

    def read(
        self, inode: int, offset: int, length: int, deadline: Deadline, priority: Priority = Priority.DEMAND
    ) -> memoryview:
        """Bytes of a file, without read-ahead: as `OpenFile.read`."""
        return OpenFile(self, self.entry(inode, deadline), ahead=False).read(offset, length, deadline, priority)

    def close(self) -> None:
        """End read-ahead and forget what is in memory.  Idempotent."""
        if self.read_ahead is not None:
            self.read_ahead.close()
        self.content.close()


class OpenFile:
    """A file that was opened in a view.  Any thread may call; `_lock` guards the remembered extents."""

    def __init__(self, view: View, entry: Entry, ahead: bool = True) -> None:
        self.entry = entry
        self._index = view.index
        self._content = view.content
        self._lock = threading.Lock()
        self._spans: deque[list[Extent]] = deque(maxlen=_SPANS_MAX)
        ahead_of = view.read_ahead if ahead else None
        self._tracker = ahead_of.tracker(self, entry.size_bytes) if ahead_of is not None else None

    def read(self, offset: int, length: int, deadline: Deadline, priority: Priority = Priority.DEMAND) -> memoryview:
        """The bytes from `offset`, `length` of them or up to the end of the file; read-only.

        All of them are in memory at once, and the frames that they lie in: ask for a few MiB at a time.
        """
        start, end = offset, min(offset + length, self.entry.size_bytes)
        if start >= end:
            return memoryview(b"")
        extents = self.extents(start, end, deadline)
        if self._tracker is not None:
            self._tracker.note(start, end)
        frames = self._content.frames((each.frame for each in extents if each.frame is not None), deadline, priority)
        return _put_together(extents, frames, start, end)

    def peek(self, offset: int, length: int) -> memoryview | None:
        """As `read`, if that needs nothing that is not in memory; never waits."""
        start, end = offset, min(offset + length, self.entry.size_bytes)
        if start >= end:
            return memoryview(b"")
        extents = self._remembered(start, end)
        if extents is None:
            return None
        frames: dict[int, memoryview] = {}
        for each in extents:
            if each.frame is not None:
                held = self._content.peek(each.frame)
                if held is None:
                    return None
                frames[each.frame] = held
        if self._tracker is not None:
            self._tracker.note(start, end)
        return _put_together(extents, frames, start, end)

    def extents(self, start: int, end: int, deadline: Deadline) -> list[Extent]:
        """The extents that cover these bytes of the file, which must lie within it."""
        held = self._remembered(start, end)
        if held is None:
            held = self._index.extents(self.entry.inode, start, end, deadline)
            with self._lock:
                self._spans.appendleft(held)
        return held

    def close(self) -> None:
        """End read-ahead for it.  Idempotent."""
        if self._tracker is not None:
            self._tracker.close()

    def _remembered(self, start: int, end: int) -> list[Extent] | None:
        with self._lock:
            for span in self._spans:
                if span[0].file_offset <= start and end <= span[-1].end:
                    return [each for each in span if each.file_offset < end and each.end > start]
        return None


def _put_together(extents: list[Extent], frames: Mapping[int, memoryview], start: int, end: int) -> memoryview:
    """The bytes from `start` to `end` of a file; one extent's are a slice of its frame, not a copy."""
    parts: list[memoryview | bytes] = []
    for each in extents:
        low, high = max(start, each.file_offset), min(end, each.end)
        if each.frame is None:
            parts.append(bytes(high - low))
            continue
        content = frames[each.frame]
        if each.frame_offset + each.length > content.nbytes:
            raise CorruptIndex("an extent reaches beyond its frame", where=f"frame {each.frame}")
        at = each.frame_offset + low - each.file_offset
        parts.append(content[at : at + high - low])
    return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
