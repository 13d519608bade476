"""Time as a value that is passed in, so that tests run in virtual time.

`Deadline` is what every seam takes: a point on a clock after which the caller no longer wants the answer.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

from tonne.errors import DeadlineExceeded


class Clock(Protocol):
    """A monotonic clock and the only way to wait on purpose."""

    def now_s(self) -> float:
        """Monotonic seconds; the zero means nothing."""

    def wall_s(self) -> float:
        """Seconds since the epoch, for documents and HTTP dates; may jump."""

    def sleep(self, seconds: float) -> None:
        """Wait; negative or zero returns at once."""


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            threading.Event().wait(seconds)


SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time on `clock`; None means never.  Immutable, safe to share between threads."""

    at_s: float | None = None
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def after(cls, seconds: float | None, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """The deadline `seconds` from now; None for no deadline."""
        return cls(None if seconds is None else clock.now_s() + seconds, clock)

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
        return self if self.at_s is not None and self.at_s <= at_s else Deadline(at_s, self.clock)
