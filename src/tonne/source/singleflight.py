"""One read for all who want the same bytes at the same time."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

from tonne.clock import Deadline
from tonne.errors import Corrupt, DeadlineExceeded, TonneError
from tonne.model import Blob, Digest
from tonne.source.seam import Check, Document, Priority, RisingPriority, Source, Urgent, check_range, deliver

_Key = tuple[Digest, int, int]


class SingleFlight:
    """Passes a read on once when several threads ask for the same range of the same blob at the same time.

    Any thread may call.  `_flights` is guarded by `_lock`, a flight's followers by its own.  A flight is removed before
    its outcome is given out, so nothing is remembered, neither bytes nor failures.

    Followers run their own checks on their own copies.  They get the leader's error, except where it may concern the
    leader alone: its deadline (then they ask again) and what its check says (then each reads for itself).  A follower
    that is more urgent makes the flight so: a reader must not wait behind read-ahead that is still in a queue.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._flights: dict[_Key, _Flight] = {}

    @property
    def origin(self) -> str:
        return self._source.origin

    @property
    def waiting(self) -> int:
        """How many reads wait for another's at the moment."""
        with self._lock:
            return sum(flight.boarded for flight in self._flights.values())

    def read(
        self,
        blob: Blob,
        offset: int,
        out: memoryview,
        deadline: Deadline,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> None:
        check_range(blob, offset, out)
        key = (blob.digest, offset, out.nbytes)

        def ask(urgency: Urgent = priority) -> None:
            self._source.read(blob, offset, out, deadline, check, urgency)

        while True:
            flight, seat = self._board(key, out, priority.now)
            if seat is None:
                with flight.priority.following(priority):
                    self._fly(key, flight, out, ask)
                return
            with flight.priority.following(priority):
                flight.wait(seat, deadline, self.origin)
            if seat.error is None:
                try:
                    deliver(out, check, self.origin)
                except Corrupt:
                    # The leader's check let pass what ours does not.
                    ask()
                return
            if isinstance(seat.error, Corrupt):
                ask()
                return
            if isinstance(seat.error, TonneError) and not isinstance(seat.error, DeadlineExceeded):
                # A copy: an exception that several threads raise would mix up their tracebacks.
                raise copy.copy(seat.error) from seat.error

    def size(self, digest: Digest, deadline: Deadline) -> int:
        return self._source.size(digest, deadline)

    def manifest(self, name: str, deadline: Deadline) -> Document:
        return self._source.manifest(name, deadline)

    def close(self) -> None:
        self._source.close()

    def _board(self, key: _Key, out: memoryview, priority: Priority) -> tuple[_Flight, _Seat | None]:
        """The flight to wait for and a seat in it, or a new flight to lead and None."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, flight.board(out)
            flight = self._flights[key] = _Flight(priority)
            return flight, None

    def _fly(self, key: _Key, flight: _Flight, out: memoryview, ask: Callable[[Urgent], None]) -> None:
        error: BaseException | None = None
        try:
            ask(flight.priority)
        except BaseException as failure:
            error = failure
            raise
        finally:
            with self._lock:
                del self._flights[key]
            # Nobody boards any more; the leader's buffer may change as soon as this returns.
            flight.land(out, error)


class _Seat:
    """A follower's buffer and what became of it: filled when `landed` is set and `error` is None."""

    __slots__ = ("error", "landed", "out")

    def __init__(self, out: memoryview) -> None:
        self.out = out
        self.error: BaseException | None = None
        self.landed = threading.Event()


class _Flight:
    """A read under way.  `_seats` is guarded by `_lock`; nobody boards after `land`, see `SingleFlight`."""

    def __init__(self, priority: Priority) -> None:
        self.priority = RisingPriority(priority)
        self._seats: list[_Seat] = []
        self._lock = threading.Lock()

    @property
    def boarded(self) -> int:
        with self._lock:
            return len(self._seats)

    def board(self, out: memoryview) -> _Seat:
        seat = _Seat(out)
        with self._lock:
            self._seats.append(seat)
        return seat

    def wait(self, seat: _Seat, deadline: Deadline, origin: str) -> None:
        """Until it has landed; `DeadlineExceeded` when that comes first, and then nobody writes to the buffer later."""
        while not seat.landed.wait(deadline.left_s()):
            with self._lock:
                if not seat.landed.is_set() and deadline.expired():
                    self._seats.remove(seat)
                    deadline.check("a read by another thread was not done in time", origin)

    def land(self, out: memoryview, error: BaseException | None) -> None:
        with self._lock:
            for seat in self._seats:
                if error is None:
                    seat.out[:] = out
                seat.error = error
                seat.landed.set()
