"""Trouble with the disk: told once, and never to a reader."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tonne.clock import Clock
from tonne.durable import local_error
from tonne.errors import DiskFull, LocalError, TonneError

PAUSE_S = 2.0  # after a failure to write, before the next attempt
_REPORT_AGAIN_S = 600.0  # a trouble that goes on is told so often


class Troubles:
    """Turns errors of the disk into events.

    Any thread may call.  `_lock` guards all fields; it is not held while `on_event` runs, which any thread may call.
    """

    def __init__(self, clock: Clock, on_event: Callable[[TonneError], None], on_full: Callable[[], None]) -> None:
        """`on_full` is called, in the thread that failed, each time that the disk was full."""
        self._clock = clock
        self._on_event = on_event
        self._on_full = on_full
        self._lock = threading.Lock()
        self._reported_s: dict[str, float] = {}
        self._paused_until_s: float | None = None

    def quiet(self, what: str, where: str, *, writing: bool = False) -> Quiet:
        """A block that reports `OSError` and `LocalError` instead of raising them.

        With `writing`, nothing is written for a while afterwards.
        """
        return Quiet(self, what, where, writing)

    def report(self, error: LocalError, *, writing: bool) -> None:
        """Tell of an error, unless one of its code was told lately."""
        now_s = self._clock.now_s()
        with self._lock:
            if writing:
                self._paused_until_s = now_s + PAUSE_S
            told_s = self._reported_s.get(error.code)
            is_news = told_s is None or now_s - told_s >= _REPORT_AGAIN_S
            if is_news:
                self._reported_s[error.code] = now_s
        if isinstance(error, DiskFull):
            self._on_full()
        if is_news:
            self._on_event(error)

    def is_paused(self) -> bool:
        """Whether writing failed just now."""
        with self._lock:
            if self._paused_until_s is not None and self._clock.now_s() >= self._paused_until_s:
                self._paused_until_s = None
            return self._paused_until_s is not None

    def resume(self) -> None:
        """The reason is gone: write again at once."""
        with self._lock:
            self._paused_until_s = None


class Quiet:
    """See `Troubles.quiet`.  A class, since type checkers do not see that a generator swallows exceptions."""

    __slots__ = ("_troubles", "_what", "_where", "_writing")

    def __init__(self, troubles: Troubles, what: str, where: str, writing: bool) -> None:
        self._troubles = troubles
        self._what = what
        self._where = where
        self._writing = writing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, OSError):
            error = local_error(error, self._what, self._where)
        if not isinstance(error, LocalError):
            return False
        self._troubles.report(error, writing=self._writing)
        return True
