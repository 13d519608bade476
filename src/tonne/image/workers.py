"""Doing many pieces of work at once, with one end: all done, the first failure, or a stop.

The work is network and disk; the threads are daemons, so that Ctrl-C does not wait for a server that says nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Queue
from typing import Final, Generic, TypeVar

from tonne.clock import SYSTEM_CLOCK, Clock, Deadline
from tonne.errors import Interrupted

T = TypeVar("T")
R = TypeVar("R")

STOP_WAIT_S = 2.0  # for workers that were told to stop; what is later than that is left to end by itself
_FAR_S = 10 * 365 * 86400.0


class Halt:
    """Stops work that waits on a seam: the deadline it gives has no end until `stop`, and is over from then on.

    Any thread may call.  Is a `Clock` itself, of which the time jumps when it is stopped; whoever sleeps wakes then.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._stopped = threading.Event()
        self._at_s = clock.now_s() + _FAR_S

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def deadline(self) -> Deadline:
        return Deadline(self._at_s, self, wake=self._stopped)

    def stop(self) -> None:
        self._stopped.set()

    def now_s(self) -> float:
        return self._at_s if self._stopped.is_set() else self._clock.now_s()

    def wall_s(self) -> float:
        return self._clock.wall_s()

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> None:
        if not self._stopped.is_set():
            self._clock.sleep(seconds, wake or self._stopped)


class _Job(Generic[T, R]):
    """One piece of work: done when `ready` is set; then `failure` or `result` counts."""

    __slots__ = ("failure", "item", "ready", "result")

    def __init__(self, item: T) -> None:
        self.item: Final = item
        self.ready = threading.Event()
        self.result: R | None = None
        self.failure: BaseException | None = None


def in_order(
    items: Iterable[T], work: Callable[[T], R], threads: int, halt: Halt, ahead: int | None = None
) -> Iterator[R]:
    """`work` of each item by `threads` threads, results in the order of the items.

    `items` is read in the caller's thread, at most `ahead` items (default: `threads`) beyond the result that is taken
    next, so memory is bounded.  The first failure in order is raised, after the rest was stopped through `halt`.
    Whoever closes the generator or is interrupted stops it too.
    """
    queue: Queue[_Job[T, R] | None] = Queue()
    pending: deque[_Job[T, R]] = deque()
    limit = max(1, ahead if ahead is not None else threads)

    def run() -> None:
        while (job := queue.get()) is not None:
            try:
                if halt.stopped:
                    raise Interrupted("stopped")
                job.result = work(job.item)
            except BaseException as error:
                job.failure = error
            job.ready.set()

    started = [threading.Thread(target=run, daemon=True, name=f"tonne-work-{number}") for number in range(threads)]
    for thread in started:
        thread.start()
    finished = False
    try:
        source = iter(items)
        more = True
        while more or pending:
            while more and len(pending) <= limit:
                try:
                    job: _Job[T, R] = _Job(next(source))
                except StopIteration:
                    more = False
                    break
                pending.append(job)
                queue.put(job)
            if not pending:
                break
            first = pending.popleft()
            _wait(first.ready)
            if first.failure is not None:
                raise first.failure
            yield first.result  # type: ignore[misc]  # R may itself include None; it was set by the worker
        finished = True
    finally:
        if not finished:
            halt.stop()
        for _ in started:
            queue.put(None)
        for thread in started:
            thread.join(None if finished else STOP_WAIT_S / len(started))


def all_of(items: Iterable[T], work: Callable[[T], object], threads: int, halt: Halt) -> None:
    """`work` of each item, in any order; the first failure in order is raised once the others were stopped."""
    for _ in in_order(items, work, threads, halt, ahead=2 * threads):
        pass


def _wait(event: threading.Event) -> None:
    # Without a time-out a lock cannot be interrupted by a signal on every platform that we run on.
    while not event.wait(1.0):
        pass
