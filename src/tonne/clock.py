"""Time as a value that is passed in, so that tests run in virtual time.

`Deadline` is what every seam takes: a point on a clock after which the caller no longer wants the answer.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Protocol

from tonne.errors import DeadlineExceeded


class Clock(Protocol):
    """A monotonic clock and the only way to wait on purpose."""

    def now_s(self) -> float:
        """Monotonic seconds; the zero means nothing."""

    def wall_s(self) -> float:
        """Seconds since the epoch, for documents and HTTP dates; may jump."""

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> None:
        """Wait; negative or zero returns at once, and so does `wake` as soon as it is set."""


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> None:
        if seconds > 0:
            (wake or threading.Event()).wait(seconds)


SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time on `clock`; None means never.  Immutable, safe to share between threads.

    `each_s`: seconds for each single read of work that has no end itself, see `for_one`.  `wake`: set when the answer
    is not wanted any more, so that nobody sleeps on.
    """

    at_s: float | None = None
    clock: Clock = SYSTEM_CLOCK
    each_s: float | None = None
    wake: threading.Event | None = None

    @classmethod
    def after(cls, seconds: float | None, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """The deadline `seconds` from now; None for no deadline."""
        return cls(None if seconds is None else clock.now_s() + seconds, clock)

    @classmethod
    def each(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """No end for work of any length, such as listing a tree, but `seconds` for each read that it needs."""
        return cls(None, clock, each_s=seconds)

    def for_one(self) -> Deadline:
        """The deadline of one read that begins now."""
        return self if self.each_s is None else Deadline.after(self.each_s, self.clock)

    def left_s(self) -> float | None:
        """Seconds left, never below zero; None when there is no end."""
        return None if self.at_s is None else max(0.0, self.at_s - self.clock.now_s())

    def expired(self) -> bool:
        return self.at_s is not None and self.clock.now_s() >= self.at_s

    def check(self, what: str, where: str = "") -> None:
        """Raise `DeadlineExceeded` when the time is over."""
        if self.expired():
            raise DeadlineExceeded(what, where=where, why="the deadline has passed")

    def sooner(self, seconds: float) -> Deadline:
        """This deadline or the one `seconds` from now, whichever comes first."""
        at_s = self.clock.now_s() + seconds
        return self if self.at_s is not None and self.at_s <= at_s else replace(self, at_s=at_s)
