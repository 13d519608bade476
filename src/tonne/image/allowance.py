"""Memory that is given out by the byte, in the order in which it was asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tonne.clock import Deadline


class Allowance:
    """At most `limit_bytes` are out at a time, or one portion that is larger than that.

    Any thread may call; `_lock` guards the numbers.  First come, first served, so that a large portion gets its turn.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._out_bytes = 0
        self._waiting: deque[_Turn] = deque()

    @contextmanager
    def portion(self, size_bytes: int, deadline: Deadline) -> Iterator[None]:
        """Waits until `size_bytes` are free, and has them until the end of the block; `DeadlineExceeded`."""
        turn = _Turn(size_bytes)
        with self._lock:
            self._waiting.append(turn)
            self._serve()
        try:
            while not turn.came.wait(deadline.left_s()):
                deadline.check("no memory became free in time")
        except BaseException:
            with self._lock:
                if not turn.came.is_set():
                    self._waiting.remove(turn)
                    self._serve()  # it may have stood before smaller ones
                    raise
            self._give_back(size_bytes)
            raise
        try:
            yield
        finally:
            self._give_back(size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._out_bytes -= size_bytes
            self._serve()

    def _serve(self) -> None:
        """Called with the lock."""
        while self._waiting:
            size_bytes = self._waiting[0].size_bytes
            if self._out_bytes and self._out_bytes + size_bytes > self._limit_bytes:
                return
            self._out_bytes += size_bytes
            self._waiting.popleft().came.set()


class _Turn:
    """Who waits."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.came = threading.Event()
