"""So many reads at once, and those first for whom somebody waits."""

from __future__ import annotations

import threading
from collections import deque

from tonne.clock import Deadline
from tonne.model import Blob, Digest
from tonne.source.seam import Check, Document, Priority, Source, Urgent

# How often a less urgent read may be passed over before it gets a place all the same.
PASSED_MAX = 16


class LimitSource:
    """Lets at most `places` reads through at once; the others wait, the most urgent first.

    Any thread may call; the queues are guarded by `_lock`.  Where there are two places or more, one is kept for demand:
    a reader who waits must not wait until a read-ahead of many megabytes is done.  A less urgent queue that was passed
    over `PASSED_MAX` times gets the next place.  A place is given back whatever happened.  Sizes and manifests
    are not counted: they are small.
    """

    def __init__(self, source: Source, places: int) -> None:
        if places < 1:
            raise ValueError("at least one place")
        self._source = source
        self._lock = threading.Lock()
        self._places = places
        self._busy = dict.fromkeys(Priority, 0)
        self._waiting: dict[Priority, deque[_Waiter]] = {priority: deque() for priority in Priority}
        self._passed = dict.fromkeys(Priority, 0)

    @property
    def origin(self) -> str:
        return self._source.origin

    @property
    def waiting(self) -> int:
        """How many reads wait for a place at the moment."""
        with self._lock:
            return sum(len(queue) for queue in self._waiting.values())

    def read(
        self,
        blob: Blob,
        offset: int,
        out: memoryview,
        deadline: Deadline,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> None:
        waiter = self._enter(priority, deadline)
        try:
            self._source.read(blob, offset, out, deadline, check, priority)
        finally:
            self._leave(waiter)

    def size(self, digest: Digest, deadline: Deadline) -> int:
        return self._source.size(digest, deadline)

    def manifest(self, name: str, deadline: Deadline) -> Document:
        return self._source.manifest(name, deadline)

    def close(self) -> None:
        self._source.close()

    def _enter(self, priority: Urgent, deadline: Deadline) -> _Waiter:
        with self._lock:
            waiter = _Waiter(priority.now)
            self._waiting[waiter.priority].append(waiter)
            self._admit()
        try:
            with priority.watched(lambda: self._move_up(waiter, priority.now)):
                self._move_up(waiter, priority.now)  # it may have risen before it was watched
                while not waiter.event.wait(deadline.left_s()):
                    deadline.check("no place became free in time", self.origin)
        except BaseException:
            with self._lock:
                if waiter.event.is_set():
                    # The place came together with the deadline: it goes to the next.
                    self._busy[waiter.priority] -= 1
                    self._admit()
                else:
                    self._waiting[waiter.priority].remove(waiter)
            raise
        return waiter

    def _move_up(self, waiter: _Waiter, priority: Priority) -> None:
        """Somebody more urgent waits for the same read.  One that has its place keeps it, and counts as it did."""
        with self._lock:
            if not waiter.event.is_set() and priority < waiter.priority:
                self._waiting[waiter.priority].remove(waiter)
                waiter.priority = priority
                self._waiting[priority].append(waiter)
                self._admit()

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            self._busy[waiter.priority] -= 1
            self._admit()

    def _admit(self) -> None:
        """Give free places to those who wait.  Called with the lock."""
        while (priority := self._next()) is not None:
            for other in Priority:
                if other > priority and self._waiting[other]:
                    self._passed[other] += 1
            self._passed[priority] = 0
            self._busy[priority] += 1
            self._waiting[priority].popleft().event.set()

    def _next(self) -> Priority | None:
        busy = sum(self._busy.values())
        if busy >= self._places:
            return None
        others_full = self._places > 1 and busy - self._busy[Priority.DEMAND] >= self._places - 1
        ready = [
            priority
            for priority in Priority
            if self._waiting[priority] and (priority is Priority.DEMAND or not others_full)
        ]
        patient = [priority for priority in ready if self._passed[priority] >= PASSED_MAX]
        # Of those passed over too often the least urgent, which has waited longest.
        return patient[-1] if patient else ready[0] if ready else None


class _Waiter:
    """Identity matters: two waiters are never equal."""

    __slots__ = ("event", "priority")

    def __init__(self, priority: Priority) -> None:
        self.event = threading.Event()
        self.priority = priority
