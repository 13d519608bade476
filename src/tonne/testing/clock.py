"""Time that passes only when someone sleeps."""

from __future__ import annotations

import threading

EPOCH_S = 1_700_000_000.0  # an arbitrary day in 2023, so that virtual dates look like dates

# How long a test waits in real time for a thread to reach its sleep, before it fails.
PATIENCE_S = 10.0

WAKE_POLL_S = 0.02


class VirtualClock:
    """A `tonne.clock.Clock` whose time is a number.

    Two ways to use it:

    - By default `sleep` moves the time to where the sleeper wakes, and returns at once.  Back-off of minutes takes no
      time, and `slept_s` lists what was slept.  Several sleepers at once wake in the order in which they came.
    - With ``manual=True`` a sleeper blocks its thread until the test calls `advance`.  `wait_for_sleepers` waits in
      real time until threads have got there, so the test knows who sleeps when it moves the time.

    Any thread may call anything; one condition guards all of it.  `advance` wakes sleepers in the order of their
    times, and returns after the time is where it was told; the woken threads then run as the machine schedules them.
    """

    def __init__(self, now_s: float = 0.0, *, manual: bool = False) -> None:
        self._now_s = now_s
        self._began_s = now_s
        self._manual = manual
        self._sleepers: list[float] = []
        self._slept_s: list[float] = []
        self._changed = threading.Condition()

    def now_s(self) -> float:
        with self._changed:
            return self._now_s

    def wall_s(self) -> float:
        """`EPOCH_S` at the beginning."""
        with self._changed:
            return EPOCH_S + self._now_s - self._began_s

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> None:
        if seconds <= 0:
            return
        with self._changed:
            self._slept_s.append(seconds)
            wake_s = self._now_s + seconds
            if not self._manual:
                self._now_s = wake_s
                return
            self._sleepers.append(wake_s)
            self._changed.notify_all()
            # An event cannot notify the condition, so it is looked at now and then.
            while self._now_s < wake_s and not (wake is not None and wake.is_set()):
                self._changed.wait(None if wake is None else WAKE_POLL_S)
            self._sleepers.remove(wake_s)

    def advance(self, seconds: float) -> None:
        """Let time pass; sleepers whose time has come wake."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        with self._changed:
            self._now_s += seconds
            self._changed.notify_all()

    @property
    def slept_s(self) -> list[float]:
        """Every sleep so far, in seconds, in the order in which they began."""
        with self._changed:
            return list(self._slept_s)

    @property
    def sleepers(self) -> int:
        """How many threads sleep at the moment."""
        with self._changed:
            return sum(wake_s > self._now_s for wake_s in self._sleepers)

    def wait_for_sleepers(self, count: int, patience_s: float = PATIENCE_S) -> None:
        """Wait in real time until `count` threads sleep; `TimeoutError` when they do not get there."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: sum(wake_s > self._now_s for wake_s in self._sleepers) >= count, patience_s
            )
        if not reached:
            raise TimeoutError(f"{self.sleepers} of {count} threads sleep after {patience_s} s")
