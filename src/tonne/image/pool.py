"""Threads for work that nobody waits for at the end of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Pool:
    """Runs jobs in the order in which they came, at most `threads` at once.

    Any thread may call.  Threads begin with the first jobs and are daemons: a job that waits for a server that says
    nothing does not keep the process.  A job must not raise; if it does, the thread's successor goes on.  `_ready`
    guards the queue.  After `close` waiting jobs are forgotten, those that run end by themselves.
    """

    def __init__(self, threads: int, name: str) -> None:
        if threads < 1:
            raise ValueError("at least one thread")
        self._threads_max = threads
        self._name = name
        self._ready = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Have the job run; forgotten after `close`."""
        with self._ready:
            if self._closed:
                return
            self._jobs.append(job)
            if self._idle >= len(self._jobs) or self._threads == self._threads_max:
                self._ready.notify()
            else:
                self._begin()

    def close(self) -> None:
        """Idempotent; returns at once."""
        with self._ready:
            self._closed = True
            self._jobs.clear()
            self._ready.notify_all()

    def _begin(self) -> None:
        self._threads += 1
        threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _run(self) -> None:
        done = False
        try:
            while (job := self._next()) is not None:
                job()
            done = True
        finally:
            if not done:
                with self._ready:
                    self._threads -= 1
                    if self._jobs and not self._closed:
                        self._begin()

    def _next(self) -> Callable[[], None] | None:
        with self._ready:
            while not self._jobs and not self._closed:
                self._idle += 1
                self._ready.wait()
                self._idle -= 1
            return self._jobs.popleft() if self._jobs else None
