"""Several sources of the same blobs, asked in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from tonne.clock import Clock, Deadline
from tonne.errors import Corrupt, DeadlineExceeded, LocalError, Missing, Refused, TonneError, Unavailable
from tonne.model import Blob, Digest
from tonne.source.seam import Check, Document, Priority, Source, Urgent

REST_FIRST_S = 1.0  # a source that failed is asked last for so long: about what a restart behind a balancer takes
REST_MAX_S = 60.0  # doubled up to this; never for ever, since what is down comes back

# The most telling first: what calls for somebody's action hides behind nothing else.
_TELLING: tuple[type[TonneError], ...] = (Corrupt, Refused, LocalError, Unavailable, Missing)

T = TypeVar("T")


class _Member:
    """A source and its recent failures.  Guarded by the lock of the `FailoverSource`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rest_s = 0.0  # how long it rested last; 0 after a success
        self.rests_until_s = 0.0


class FailoverSource:
    """Asks the first source, and when it fails the next.

    Any thread may call.  `Missing`, `Corrupt`, `Unavailable`, `Refused` and a failing local disk lead to the next
    source; the caller's own deadline, and errors of the caller, do not.  A source that failed (for any reason but
    `Missing`, which says nothing about other blobs) rests: it is asked last for a time that doubles with each failure
    after a rest, up to a minute, and that one success sets back.  Where there are several sources, every failure is
    told to `on_event` at once.  When all fail, the most telling error is raised, with every origin's reason.
    """

    def __init__(
        self, sources: Sequence[Source], clock: Clock, on_event: Callable[[TonneError], None] | None = None
    ) -> None:
        """`sources`: at least one, the preferred first."""
        if not sources:
            raise ValueError("no sources")
        self._members = [_Member(source) for source in sources]
        self._clock = clock
        self._on_event = on_event or (lambda error: None)
        self._lock = threading.Lock()

    @property
    def origin(self) -> str:
        """All origins, the preferred first."""
        return ", ".join(member.source.origin for member in self._members)

    def read(
        self,
        blob: Blob,
        offset: int,
        out: memoryview,
        deadline: Deadline,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> None:
        self._first(lambda source, until: source.read(blob, offset, out, until, check, priority), deadline)

    def size(self, digest: Digest, deadline: Deadline) -> int:
        return self._first(lambda source, until: source.size(digest, until), deadline)

    def manifest(self, name: str, deadline: Deadline) -> Document:
        return self._first(lambda source, until: source.manifest(name, until), deadline)

    def close(self) -> None:
        for member in self._members:
            member.source.close()

    def _first(self, work: Callable[[Source, Deadline], T], deadline: Deadline) -> T:
        failures: list[tuple[_Member, TonneError]] = []
        order = self._order()
        for place, member in enumerate(order):
            try:
                result = work(member.source, _share(deadline, len(order) - place))
            except _TELLING as error:
                if isinstance(error, DeadlineExceeded) and deadline.expired():
                    raise
                failures.append((member, error))
                self._failed(member, error)
                continue
            with self._lock:
                member.rest_s = member.rests_until_s = 0.0
            return result
        raise _most_telling(failures)

    def _order(self) -> list[_Member]:
        now_s = self._clock.now_s()
        with self._lock:
            # The sort is stable: within both groups the order of preference stays.
            return sorted(self._members, key=lambda member: now_s < member.rests_until_s)

    def _failed(self, member: _Member, error: TonneError) -> None:
        now_s = self._clock.now_s()
        with self._lock:
            # Reads that fail together, or one that had no other source to ask, count once.
            if not isinstance(error, Missing) and now_s >= member.rests_until_s:
                member.rest_s = min(REST_MAX_S, max(REST_FIRST_S, 2 * member.rest_s))
                member.rests_until_s = now_s + member.rest_s
        if len(self._members) > 1:
            self._on_event(error)


def _share(deadline: Deadline, sources: int) -> Deadline:
    """Half of the time that is left while there are others: a source that hangs must not use up theirs."""
    left_s = deadline.left_s()
    return deadline if left_s is None or sources < 2 else deadline.sooner(left_s / 2)


def _most_telling(failures: Sequence[tuple[_Member, TonneError]]) -> TonneError:
    if len(failures) == 1:
        return failures[0][1]

    def rank(failure: tuple[_Member, TonneError]) -> int:
        return next(place for place, kind in enumerate(_TELLING) if isinstance(failure[1], kind))

    member, best = min(failures, key=rank)
    others = [f"{other.source.origin}: {error.what}" for other, error in failures if error is not best]
    # The same object, so that what a caller's check raised is what the caller gets.
    best.why = "; ".join([best.why, *others] if best.why else others)
    if member.source.origin not in best.where:
        best.where = f"{member.source.origin}: {best.where}" if best.where else member.source.origin
    return best
