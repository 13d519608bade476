"""What the threads of one packing share: the end that comes early, and how much is under way."""

from __future__ import annotations

import threading

from tonne.clock import Clock, Deadline
from tonne.errors import Interrupted
from tonne.image.workers import Halt
from tonne.model.frame import FRAME_BYTES

WAIT_S = 0.2  # how long a wait lasts before it looks whether the work was stopped


class Flow:
    """Bounds the frames under way, and ends all threads at the first failure.

    Any thread may call.  A slot is taken before a frame's content is read and given back when its stored bytes are out
    of our hands; a buffer of 4 MiB is lent with it and may come back earlier.  So memory is bounded by `slots`,
    whatever the input.  After a failure every call but `give_*` raises; what is under way may end by itself until
    `abort`.
    """

    def __init__(self, slots: int, clock: Clock) -> None:
        self.halt = Halt(clock)
        self._slots = threading.Semaphore(slots)
        self._lock = threading.Lock()
        self._free: list[bytearray] = []
        self._failure: BaseException | None = None
        self._sent_bytes = 0

    @property
    def deadline(self) -> Deadline:
        """For calls of seams: no end, until the work is stopped."""
        return self.halt.deadline

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    def count_sent(self, size_bytes: int) -> None:
        with self._lock:
            self._sent_bytes += size_bytes

    def fail(self, error: BaseException) -> None:
        """Nothing new is begun.  The first failure counts: those after it are often its echo."""
        with self._lock:
            if self._failure is None:
                self._failure = error

    @property
    def failure(self) -> BaseException | None:
        """What ended the work, if it was ended."""
        return self._failure

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def abort(self) -> None:
        """Calls of seams that still run are over too."""
        self.halt.stop()

    def check(self) -> None:
        """Raise what ended the work, if it was ended."""
        if self._failure is not None:
            raise self._failure
        if self.halt.stopped:
            raise Interrupted("stopped")

    def take_slot(self) -> bytearray:
        """Wait for a slot; returns a buffer of `FRAME_BYTES`."""
        while not self._slots.acquire(timeout=WAIT_S):
            self.check()
        self.check()
        with self._lock:
            if self._free:
                return self._free.pop()
        return bytearray(FRAME_BYTES)

    def give_buffer(self, buffer: bytearray) -> None:
        with self._lock:
            self._free.append(buffer)

    def give_slot(self) -> None:
        self._slots.release()
