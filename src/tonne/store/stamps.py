"""The last use of each stripe of a blob, as one process notes it."""

from __future__ import annotations

import contextlib

from tonne.clock import Clock
from tonne.durable import pwrite_all
from tonne.model.frame import STRIPE_BYTES
from tonne.store.disk import Disk
from tonne.store.files import STAMP

STAMP_EVERY_MS = 1000  # how exact the last use is


class Stamps:
    """Writes stamps, each stripe's at most once a second.

    Any thread may call; two that note the same stripe at once write twice.  Failures are ignored: eviction then chooses
    less well.
    """

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._noted_ms: dict[int, int] = {}

    def touch(self, used: int, offset: int, length: int) -> None:
        """The stripes of a range are in use; `used` is the file's descriptor."""
        now_ms = int(self._clock.wall_s() * 1000)
        for stripe in range(offset // STRIPE_BYTES, (offset + max(length, 1) - 1) // STRIPE_BYTES + 1):
            if abs(now_ms - self._noted_ms.get(stripe, 0)) >= STAMP_EVERY_MS:
                self._noted_ms[stripe] = now_ms
                with contextlib.suppress(OSError):
                    self._disk.pwrite(used, STAMP.pack(now_ms), stripe * STAMP.size)

    def clear(self, used: int, start: int, end: int) -> None:
        """The stripes from `start` to `end` were evicted."""
        first, last = start // STRIPE_BYTES, -(-end // STRIPE_BYTES)
        for stripe in range(first, last):
            self._noted_ms.pop(stripe, None)
        with contextlib.suppress(OSError):
            pwrite_all(self._disk, used, bytes((last - first) * STAMP.size), first * STAMP.size)

    def forget(self) -> None:
        """The file is gone: note all anew."""
        self._noted_ms.clear()
