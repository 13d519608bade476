"""What the tests of wrappers share: a source whose reads wait until the test lets them go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tonne.clock import Deadline
from tonne.model import Blob
from tonne.source.memory import Asked, MemoryRepository
from tonne.source.seam import Check, Priority, Source, Urgent
from tonne.testing.conformance import soon

PATIENCE_S = 10.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait in real time for what other threads are about to do."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.001)


class Gate:
    """Holds every read of a `MemoryRepository` until `let_go`."""

    def __init__(self, repository: MemoryRepository) -> None:
        self._places = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.arrived: list[Asked] = []
        repository.on_call = self._hold

    def let_go(self, count: int = 1) -> None:
        self._places.release(count)

    def wait_for(self, count: int) -> None:
        """Until so many reads have arrived, those that went on included."""
        wait_until(lambda: len(self.arrived) >= count)

    def _hold(self, asked: Asked) -> None:
        if asked.kind == "read":
            with self._lock:
                self.arrived.append(asked)
            assert self._places.acquire(timeout=PATIENCE_S)


class Readers:
    """Threads that read; a context manager that waits for them."""

    def __init__(self, source: Source, blob: Blob) -> None:
        self._source = source
        self._blob = blob
        self._pool = ThreadPoolExecutor(64)
        self._futures: list[Future[bytes]] = []

    def __enter__(self) -> Readers:
        return self

    def again(self) -> Readers:
        """More of them, after these have ended."""
        return Readers(self._source, self._blob)

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        for future in self._futures:
            if isinstance(failure := future.exception(), AssertionError):
                raise failure

    def read(
        self,
        offset: int = 0,
        length: int = 100,
        deadline: Deadline | None = None,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> Future[bytes]:
        """Begin a read in a thread of its own."""

        def work() -> bytes:
            out = bytearray(length)
            self._source.read(self._blob, offset, memoryview(out), deadline or soon(), check, priority)
            return bytes(out)

        self._futures.append(self._pool.submit(work))
        return self._futures[-1]
