"""The limit: how many at once, who is first, and that nobody waits for ever."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.source.gates import Gate, Readers, wait_until
from tonne.clock import Deadline, SystemClock
from tonne.errors import DeadlineExceeded, Stalled
from tonne.source.limit import PASSED_MAX, LimitSource
from tonne.source.memory import MemoryRepository
from tonne.source.seam import Priority, RisingPriority
from tonne.testing.conformance import read_all

DATA = bytes(range(256))


class Case:
    def __init__(self, places: int) -> None:
        self.inner = MemoryRepository()
        self.blob = self.inner.add(DATA)
        self.gate = Gate(self.inner)
        self.source = LimitSource(self.inner, places)
        self.readers = Readers(self.source, self.blob)
        self._queued = 0

    def queue(self, priority: Priority, offset: int) -> Future[bytes]:
        """Begin a read, and wait until it waits for a place."""
        before = self.source.waiting
        future = self.readers.read(offset, 1, priority=priority)
        wait_until(lambda: self.source.waiting == before + 1)
        return future

    def order(self) -> list[int]:
        """The offsets of the reads that came through, in order, when they are let go one by one."""
        while self.source.waiting:
            arrived = len(self.gate.arrived)
            self.gate.let_go()
            self.gate.wait_for(arrived + 1)
        self.gate.let_go(1000)
        return [asked.offset for asked in self.gate.arrived]


def test_no_more_than_the_limit_at_once() -> None:
    case = Case(3)
    with case.readers:
        futures = [case.readers.read(number, 1) for number in range(10)]
        wait_until(lambda: case.source.waiting == 7)
        assert len(case.gate.arrived) == 3
        case.gate.let_go()
        case.gate.wait_for(4)
        wait_until(lambda: case.source.waiting == 6)
        assert len(case.gate.arrived) == 4
        case.gate.let_go(100)
        assert b"".join(future.result() for future in futures) == DATA[:10]


def test_the_most_urgent_is_first_and_equals_in_their_order() -> None:
    case = Case(1)
    with case.readers:
        case.readers.read(0, 1)
        case.gate.wait_for(1)
        for offset, priority in enumerate([2, 1, 0, 2, 1, 0], start=1):
            case.queue(Priority(priority), offset)
        assert case.order() == [0, 3, 6, 2, 5, 1, 4]


def test_one_place_is_kept_for_demand() -> None:
    case = Case(2)
    with case.readers:
        case.readers.read(1, 1, priority=Priority.AHEAD)
        case.gate.wait_for(1)
        case.queue(Priority.AHEAD, 2)
        case.queue(Priority.BACKGROUND, 3)
        case.readers.read(4, 1, priority=Priority.DEMAND)
        case.gate.wait_for(2)
        assert [asked.offset for asked in case.gate.arrived] == [1, 4]
        assert case.source.waiting == 2
        case.gate.let_go(4)
        case.gate.wait_for(4)
        assert [asked.offset for asked in case.gate.arrived] == [1, 4, 2, 3]


@pytest.mark.parametrize("priority", [Priority.AHEAD, Priority.BACKGROUND])
def test_the_least_urgent_does_not_starve(priority: Priority) -> None:
    case = Case(1)
    with case.readers:
        case.readers.read(0, 1)
        case.gate.wait_for(1)
        case.queue(priority, 200)
        for offset in range(1, PASSED_MAX + 6):
            case.queue(Priority.DEMAND, offset)
        order = case.order()
        assert order.index(200) == PASSED_MAX + 1
        assert sorted(order) == [*range(PASSED_MAX + 6), 200]


def test_both_queues_that_are_not_urgent_get_their_turn() -> None:
    case = Case(1)
    with case.readers:
        case.readers.read(0, 1)
        case.gate.wait_for(1)
        case.queue(Priority.AHEAD, 200)
        case.queue(Priority.BACKGROUND, 201)
        for offset in range(1, PASSED_MAX + 6):
            case.queue(Priority.DEMAND, offset)
        order = case.order()
        assert order[PASSED_MAX + 1 : PASSED_MAX + 3] == [201, 200]


def test_whoever_waits_gives_up_at_the_deadline_and_nothing_is_lost() -> None:
    case = Case(1)
    with case.readers:
        first = case.readers.read(0, 1)
        case.gate.wait_for(1)
        late = case.readers.read(1, 1, Deadline.after(0.05))
        with pytest.raises(DeadlineExceeded):
            late.result()
        assert case.source.waiting == 0
        case.gate.let_go(2)
        assert first.result() == DATA[:1]
        assert case.readers.read(2, 1).result() == DATA[2:3]


def test_a_place_that_comes_together_with_the_deadline_goes_to_the_next() -> None:
    case = Case(1)

    class Late(SystemClock):
        """The deadline passes at the moment at which the place becomes free."""

        def __init__(self) -> None:
            self.looks = 0

        def now_s(self) -> float:
            self.looks += 1
            if self.looks == 1:
                return 0.0
            case.gate.let_go()
            wait_until(lambda: case.source.waiting == 0)
            return 1.0

    with case.readers:
        first = case.readers.read(0, 1)
        case.gate.wait_for(1)
        clock = Late()
        with pytest.raises(DeadlineExceeded):
            case.source.read(case.blob, 1, memoryview(bytearray(1)), Deadline(0.01, clock))
        assert clock.looks > 1
        assert first.result() == DATA[:1]
        case.gate.let_go()
        assert case.readers.read(2, 1).result() == DATA[2:3]
    assert [asked.offset for asked in case.gate.arrived] == [0, 2]


def test_a_failed_read_gives_its_place_back() -> None:
    inner = MemoryRepository()
    blob = inner.add(DATA)
    source = LimitSource(inner, 1)
    inner.fail("read", Stalled("no progress"), times=3)
    for _ in range(3):
        with pytest.raises(Stalled):
            read_all(source, blob)
    assert read_all(source, blob) == DATA


def test_a_limit_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least one"):
        LimitSource(MemoryRepository(), 0)


def test_a_waiting_read_that_becomes_more_urgent_moves_up_and_counts_as_such() -> None:
    case = Case(2)
    urgency = RisingPriority(Priority.BACKGROUND)
    with case.readers:
        case.readers.read(1, 1, priority=Priority.AHEAD)
        case.gate.wait_for(1)
        case.queue(Priority.AHEAD, 2)  # the second place is kept for demand
        rising = case.readers.read(3, 1, priority=urgency)
        wait_until(lambda: case.source.waiting == 2)
        urgency.rise(Priority.AHEAD)  # still no place
        assert case.source.waiting == 2
        urgency.rise(Priority.DEMAND)
        case.gate.wait_for(2)
        assert [asked.offset for asked in case.gate.arrived] == [1, 3]
        urgency.rise(Priority.DEMAND)
        case.gate.let_go(3)
        assert rising.result() == DATA[3:4]
    # What it took was given back: both places are free again.
    with case.readers.again() as readers:
        first = readers.read(4, 1)
        second = readers.read(5, 1)
        case.gate.wait_for(5)
        case.gate.let_go(2)
        assert first.result() + second.result() == DATA[4:6]


def test_a_read_that_rose_and_gave_up_leaves_the_queue() -> None:
    case = Case(1)
    urgency = RisingPriority(Priority.BACKGROUND)
    with case.readers:
        case.readers.read(0, 1)
        case.gate.wait_for(1)
        gives_up = case.readers.read(1, 1, deadline=Deadline.after(0.2), priority=urgency)
        wait_until(lambda: case.source.waiting == 1)
        urgency.rise(Priority.DEMAND)
        with pytest.raises(DeadlineExceeded):
            gives_up.result()
        assert case.source.waiting == 0
        case.gate.let_go()
