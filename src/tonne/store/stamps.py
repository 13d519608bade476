"""The last use of each stripe of a blob, and where its frames begin, as one process notes it."""

from __future__ import annotations

import contextlib

from tonne.clock import Clock
from tonne.model.frame import STRIPE_BYTES
from tonne.store.disk import Disk
from tonne.store.files import LEAD_PLACE, STAMP, USE

STAMP_EVERY_MS = 1000  # how exact the last use is


class Stamps:
    """Writes stamps, each stripe's at most once a second.

    What is read or written in one call belongs to the stripe in which it begins.

    Any thread may call; two that note the same stripe at once write twice.  Failures are ignored: eviction then chooses
    less well, and cuts frames at the stripe's border.
    """

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._noted_ms: dict[int, int] = {}

    def touch(self, used: int, offset: int) -> None:
        """The stripe of what begins at `offset` is in use; `used` is the file's descriptor."""
        now_ms = int(self._clock.wall_s() * 1000)
        stripe = offset // STRIPE_BYTES
        if abs(now_ms - self._noted_ms.get(stripe, 0)) >= STAMP_EVERY_MS:
            self._noted_ms[stripe] = now_ms
            self._write(used, stripe * USE.size, now_ms)

    def lead(self, used: int, start: int, end: int) -> None:
        """Where a range crosses borders of stripes, what lies behind them is of the stripe in which it starts."""
        for stripe in range(start // STRIPE_BYTES + 1, -(-end // STRIPE_BYTES)):
            lead = min(end - stripe * STRIPE_BYTES, STRIPE_BYTES)
            self._write(used, stripe * USE.size + LEAD_PLACE, lead)

    def clear(self, used: int, start: int, end: int) -> None:
        """The stripes from `start` to `end` were evicted.  Where their neighbours' frames end stays known."""
        first = start // STRIPE_BYTES
        for stripe in range(first, max(first + 1, end // STRIPE_BYTES)):
            self._noted_ms.pop(stripe, None)
            self._write(used, stripe * USE.size, 0)

    def forget(self) -> None:
        """The file is gone: note all anew."""
        self._noted_ms.clear()

    def _write(self, used: int, place: int, value: int) -> None:
        with contextlib.suppress(OSError):
            self._disk.pwrite(used, STAMP.pack(value), place)
