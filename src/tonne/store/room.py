"""Whether there is room for more within the limit: arithmetic alone, the store does what it says."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tonne.model.frame import STRIPE_BYTES

_HEADROOM_PART = 16  # of the limit: eviction begins when less is free, and frees twice as much
_MEASURE_PART = 64  # of the limit: after so much was written the disk is asked, since other processes write too
_MAKE_ROOM_PART = 16  # of the store: evicted when the disk is full


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to keep some bytes, and whether to measure and evict soon."""

    is_allowed: bool
    wants_tidying: bool


class Room:
    """Counts what this process writes between two measurements of the disk.

    Any thread may call; `_lock` guards all fields.  The limit is kept but for records, and for what other processes
    write between two measurements of ours.  All sizes in bytes.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._measured_bytes: int | None = None
        self._taken_bytes = 0  # allowed, and not on the disk yet
        self._written_bytes = 0  # since the last measurement began
        self._refused_bytes = 0  # the largest request since the last eviction for which there was no room
        self._is_disk_full = False

    def wants_measuring(self) -> bool:
        """Whether nothing can be said before the disk was measured once."""
        return self._limit_bytes is not None and self._measured_bytes is None

    def take(self, size_bytes: int) -> Verdict:
        """Ask for room; when it is allowed, `written` must follow, whatever became of the write."""
        limit = self._limit_bytes
        if limit is None:
            return Verdict(True, False)
        with self._lock:
            before = self._taken_bytes + self._written_bytes
            used = (self._measured_bytes or 0) + before + size_bytes
            if used > limit:
                if size_bytes <= limit:
                    self._refused_bytes = max(self._refused_bytes, size_bytes)
                return Verdict(False, True)
            self._taken_bytes += size_bytes
            step = max(1, limit // _MEASURE_PART)
            is_due = before // step != (before + size_bytes) // step
            return Verdict(True, is_due or used > limit - limit // _HEADROOM_PART)

    def written(self, size_bytes: int) -> None:
        """What was allowed is on the disk, or has failed."""
        if self._limit_bytes is not None:
            with self._lock:
                self._taken_bytes -= size_bytes
                self._written_bytes += size_bytes

    def begin_measuring(self) -> int:
        """What to hand to `measured`."""
        return self._written_bytes

    def measured(self, used_bytes: int, written_before: int) -> None:
        """So much is used, with all that was written before; what was written meanwhile may count twice."""
        with self._lock:
            self._measured_bytes = used_bytes
            self._written_bytes -= written_before

    def disk_is_full(self) -> None:
        self._is_disk_full = True

    def target(self, used_bytes: int) -> int | None:
        """What to evict down to, when so much is used; None: nothing is to be evicted."""
        with self._lock:
            was_full, self._is_disk_full = self._is_disk_full, False
            refused_bytes, self._refused_bytes = self._refused_bytes, 0
        target: int | None = None
        if was_full:
            target = max(0, used_bytes - max(used_bytes // _MAKE_ROOM_PART, STRIPE_BYTES))
        limit = self._limit_bytes
        if limit is not None and used_bytes > limit - max(limit // _HEADROOM_PART, refused_bytes):
            # In a small store one request may be more than the headroom.
            within = limit - max(2 * (limit // _HEADROOM_PART), refused_bytes)
            target = within if target is None else min(target, within)
        return target
