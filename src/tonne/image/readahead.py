"""Read-ahead: recognises who reads in order, and fetches what such a reader is about to want.

What kernels do below us shapes it.  A read arrives as requests of up to 1 MiB, several at once and not always in order,
and a single page fault can bring a burst of the kernel's own read-ahead window.  So a reader counts as sequential when
it has passed more than such a burst, and a request may be early or late by as much.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tonne.clock import SYSTEM_CLOCK, Clock, Deadline
from tonne.errors import TonneError
from tonne.image.content import Content, bytes_under_way
from tonne.image.index import Index
from tonne.image.pool import Pool
from tonne.model import Extent, Frame
from tonne.settings import MIB, Settings
from tonne.source.seam import Priority

BURST_BYTES = 4 * MIB  # what one fault brings: the read-ahead that mounts ask of the kernel
WINDOW_FIRST_BYTES = 16 * MIB  # one request; what a registry does for each is much, whatever its size
READERS_MAX = 16  # told apart in one open file; more than ranks that share a descriptor have been seen to be
STALE_READS = 64  # a reader passed over by so many reads of its file has gone elsewhere
IN_FLIGHT_BYTES_MAX = 48 * MIB  # of read-ahead; bounds the memory of a mount


@dataclass(slots=True, eq=False)
class Reader:
    """One sequential reader of a file: it began at `start`, is at `at`, and all up to `ahead` was asked for."""

    start: int
    at: int
    ahead: int
    window: int
    seen: int


class Readers:
    """The sequential readers of one open file.  Pure, and not locked."""

    def __init__(self, size_bytes: int, window_max_bytes: int) -> None:
        self._size = size_bytes
        self._window_max = window_max_bytes
        self._readers: list[Reader] = []
        self._reads = 0

    def note(self, start: int, end: int) -> tuple[Reader, int, int] | None:
        """Take in a read of the bytes from `start` to `end`; returns what should be read ahead for whom, if anything.

        The range begins where the reader is or later, ends within the file, and was not returned before for that
        reader, unless it was given back.
        """
        self._reads += 1
        reader = self._find(start)
        if reader is None:
            reader = Reader(start, end, end, min(WINDOW_FIRST_BYTES, self._window_max), self._reads)
            self._readers.append(reader)
            if len(self._readers) > READERS_MAX:
                self._readers.remove(min(self._readers, key=lambda item: item.seen))
            return None
        reader.seen = self._reads
        reader.at = max(reader.at, end)
        if reader.at - reader.start <= BURST_BYTES:
            return None
        low = max(reader.ahead, reader.at)
        high = min(reader.at + reader.window, self._size)
        # A third of a window at a time, so that requests are large and others are on their way meanwhile; the rest of a
        # file at once.
        if low >= high or (high - low < reader.window // 3 and high < self._size):
            return None
        reader.ahead = high
        reader.window = min(2 * reader.window, self._window_max)
        return reader, low, high

    def give_back(self, reader: Reader, start: int) -> None:
        """What was returned from `start` on has not been read ahead."""
        reader.ahead = min(reader.ahead, start)

    def gone(self, reader: Reader) -> bool:
        """Whether the reader has not been seen for so long that it reads somewhere else now."""
        return self._reads - reader.seen > STALE_READS or all(reader is not other for other in self._readers)

    def _find(self, start: int) -> Reader | None:
        near = [reader for reader in self._readers if abs(start - reader.at) <= BURST_BYTES]
        return min(near, key=lambda reader: abs(start - reader.at)) if near else None


class Mapped(Protocol):
    """A file of which the extents can be asked."""

    def extents(self, start: int, end: int, deadline: Deadline) -> list[Extent]: ...


class ReadAhead:
    """Fetches ahead in threads of its own, for all open files of a view.

    Any thread may call.  At most `IN_FLIGHT_BYTES_MAX` are on their way, with `Priority.AHEAD`.  Failures are silent:
    the reader who comes to that place tries again and is told.  Nothing survives `close`.
    """

    def __init__(self, index: Index, content: Content, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        # The rest is for what is being read and for stored bytes on their way; more would push out what came first.
        self.window_max_bytes = min(settings.read.read_ahead_bytes_max, settings.read.decoded_cache_bytes * 3 // 5)
        self._index = index
        self._content = content
        self._clock = clock
        self._deadline_s = settings.read.deadline_s
        # Half of the connections at most, so that read-ahead by itself leaves places free.
        threads = max(1, min(3, settings.network.connections // 2))
        self._request_bytes = min(settings.network.request_bytes, IN_FLIGHT_BYTES_MAX // threads)
        self._pool = Pool(threads, "tonne-ahead")
        self._planner = Pool(1, "tonne-plan")  # else the next requests are thought of only when the last ones are done

    def tracker(self, file: Mapped, size_bytes: int) -> Tracker | None:
        """What follows the reads of a file that was opened; None when there is nothing to read ahead."""
        if size_bytes <= BURST_BYTES or self.window_max_bytes <= 0:
            return None
        return Tracker(self, file, size_bytes)

    def submit(self, job: Callable[[], None]) -> None:
        """Have requests made."""
        self._pool.submit(job)

    def submit_plan(self, job: Callable[[], None]) -> None:
        """Have it thought of which; that may need pages of the index."""
        self._planner.submit(job)

    def plan(self, file: Mapped, start: int, end: int, to_the_end: bool) -> tuple[list[list[int]], int]:
        """The frames to fetch for a range, a list for each request, and where in the file that ends.

        Frames that are in memory or on their way are left out.  A last request that is short comes with the next range,
        unless there is none `to_the_end` of the file: a registry takes as long to begin a small answer as a large one.
        """
        deadline = Deadline.after(self._deadline_s, self._clock)
        extents = [extent for extent in file.extents(start, end, deadline) if extent.frame is not None]
        # Where each frame is first wanted.  Of two extents in one frame the first counts.
        places = {extent.frame: extent.file_offset for extent in reversed(extents) if extent.frame is not None}
        numbers = self._content.absent(number for extent in extents if (number := extent.frame) is not None)
        runs = self._content.runs(self._index.frames(numbers, deadline), self._request_bytes)
        # In the order of the file, whatever pack they are in: the reader wants the first one first.
        runs.sort(key=lambda run: min(places[frame.number] for frame in run))
        if len(runs) > 1 and not to_the_end and self._has_room(runs[-1]):
            end = max(start, min(places[frame.number] for frame in runs.pop()))
        return [[frame.number for frame in run] for run in runs], end

    def _has_room(self, run: list[Frame]) -> bool:
        """Whether one more frame like these would still fit into their request."""
        size_bytes = sum(map(bytes_under_way, run))
        return size_bytes + size_bytes // len(run) <= self._request_bytes

    def fetch(self, numbers: list[int]) -> None:
        """Have frames in the store and in memory."""
        absent = self._content.absent(numbers)
        if absent:
            self._content.frames(absent, Deadline.after(self._deadline_s, self._clock), Priority.AHEAD)

    def close(self) -> None:
        self._planner.close()
        self._pool.close()


class Tracker:
    """Follows the reads of one open file.  Any thread may call; `_lock` guards the readers.

    After `close`, and for a reader that has gone elsewhere, what was not begun is not fetched any more.
    """

    def __init__(self, owner: ReadAhead, file: Mapped, size_bytes: int) -> None:
        self._owner = owner
        self._file = file
        self._lock = threading.Lock()
        self._size = size_bytes
        self._readers = Readers(size_bytes, owner.window_max_bytes)
        self._closed = False

    def note(self, start: int, end: int) -> None:
        """A read of these bytes is being answered.  Returns at once."""
        with self._lock:
            found = None if self._closed else self._readers.note(start, end)
        if found is not None:
            reader, low, high = found
            self._owner.submit_plan(lambda: self._plan(reader, low, high))

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _wanted(self, reader: Reader, start: int) -> bool:
        with self._lock:
            if self._closed:
                return False
            if self._readers.gone(reader):
                self._readers.give_back(reader, start)
                return False
            return True

    def _plan(self, reader: Reader, start: int, end: int) -> None:
        if not self._wanted(reader, start):
            return
        try:
            requests, planned = self._owner.plan(self._file, start, end, end == self._size)
        except TonneError:
            return
        if planned < end:
            with self._lock:
                self._readers.give_back(reader, planned)
        for numbers in requests:
            self._owner.submit(lambda numbers=numbers: self._fetch(reader, start, numbers))  # type: ignore[misc]

    def _fetch(self, reader: Reader, start: int, numbers: list[int]) -> None:
        if not self._wanted(reader, start):
            return
        try:
            self._owner.fetch(numbers)
        except TonneError:
            pass
