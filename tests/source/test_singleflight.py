"""Single flight: one read for many, and failures that stay where they belong."""

from __future__ import annotations

import threading

import pytest

from tests.source.gates import Gate, Readers, wait_until
from tonne.clock import Deadline
from tonne.errors import CorruptBytes, DeadlineExceeded, MissingBlob, Stalled
from tonne.source.limit import LimitSource
from tonne.source.memory import MemoryRepository
from tonne.source.seam import Priority, RisingPriority
from tonne.source.singleflight import SingleFlight
from tonne.testing.conformance import soon

DATA = bytes(range(256))


class Case:
    def __init__(self) -> None:
        self.inner = MemoryRepository()
        self.blob = self.inner.add(DATA)
        self.gate = Gate(self.inner)
        self.source = SingleFlight(self.inner)
        self.readers = Readers(self.source, self.blob)


def test_one_read_for_all_who_ask_at_the_same_time() -> None:
    case = Case()
    with case.readers:
        futures = [case.readers.read() for _ in range(20)]
        wait_until(lambda: case.source.waiting == 19)
        case.gate.let_go()
        assert {future.result() for future in futures} == {DATA[:100]}
        assert len(case.gate.arrived) == 1


def test_other_ranges_are_other_reads() -> None:
    case = Case()
    with case.readers:
        futures = [case.readers.read(offset, length) for offset in (0, 1) for length in (10, 11)]
        case.gate.wait_for(4)
        assert case.source.waiting == 0
        case.gate.let_go(4)
        assert [len(future.result()) for future in futures] == [10, 11, 10, 11]


def test_nothing_is_remembered() -> None:
    case = Case()
    with case.readers:
        case.gate.let_go(3)
        case.inner.fail("read", Stalled("no progress"), skip=1)
        assert case.readers.read().result() == DATA[:100]
        with pytest.raises(Stalled):
            case.readers.read().result()
        assert case.readers.read().result() == DATA[:100]
        assert len(case.gate.arrived) == 3


def test_the_buffer_of_the_leader_may_change_when_it_has_returned() -> None:
    case = Case()

    def lead() -> None:
        out = bytearray(100)
        case.source.read(case.blob, 0, memoryview(out), soon())
        out[:] = bytes(100)

    with case.readers:
        leader = threading.Thread(target=lead)
        leader.start()
        case.gate.wait_for(1)
        futures = [case.readers.read() for _ in range(8)]
        wait_until(lambda: case.source.waiting == 8)
        case.gate.let_go()
        leader.join()
        assert {future.result() for future in futures} == {DATA[:100]}


def test_an_error_of_the_source_goes_to_all_each_with_its_own_object() -> None:
    case = Case()
    case.inner.fail("read", MissingBlob("gone", where="memory/test", digest="x"))
    with case.readers:
        futures = [case.readers.read() for _ in range(5)]
        wait_until(lambda: case.source.waiting == 4)
        case.gate.let_go()
        errors = [future.exception() for future in futures]
        assert [type(error) for error in errors] == [MissingBlob] * 5
        assert {str(error) for error in errors} == {"gone: memory/test"}
        assert len({id(error) for error in errors}) == 5
        assert len(case.gate.arrived) == 1


def test_the_deadline_of_the_leader_is_not_that_of_the_others() -> None:
    case = Case()
    with case.readers:
        deadline = Deadline.after(0.05)
        leader = case.readers.read(deadline=deadline)
        case.gate.wait_for(1)
        followers = [case.readers.read() for _ in range(3)]
        wait_until(lambda: case.source.waiting == 3)
        wait_until(deadline.expired)
        case.gate.let_go()
        with pytest.raises(DeadlineExceeded):
            leader.result()
        case.gate.let_go(3)
        assert {follower.result() for follower in followers} == {DATA[:100]}


def test_whoever_gives_up_gets_no_bytes_later() -> None:
    case = Case()
    out = bytearray(100)
    with case.readers:
        leader = case.readers.read()
        case.gate.wait_for(1)
        with pytest.raises(DeadlineExceeded):
            case.source.read(case.blob, 0, memoryview(out), Deadline.after(0.05))
        assert case.source.waiting == 0
        case.gate.let_go()
        assert leader.result() == DATA[:100]
        assert bytes(out) == bytes(100)


def test_what_the_check_of_the_leader_says_concerns_the_leader() -> None:
    def check(found: memoryview) -> None:
        raise CorruptBytes("the leader's index lies")

    case = Case()
    with case.readers:
        leader = case.readers.read(check=check)
        case.gate.wait_for(1)
        followers = [case.readers.read() for _ in range(3)]
        wait_until(lambda: case.source.waiting == 3)
        case.gate.let_go(4)
        with pytest.raises(CorruptBytes):
            leader.result()
        assert {follower.result() for follower in followers} == {DATA[:100]}


def test_a_follower_checks_its_own_copy_and_reads_for_itself_if_it_is_wrong() -> None:
    def check(found: memoryview) -> None:
        if bytes(found) != DATA[:100]:
            raise CorruptBytes("wrong bytes came")

    case = Case()
    case.inner.flip(case.blob.digest, 7)
    with case.readers:
        leader = case.readers.read()
        case.gate.wait_for(1)
        follower = case.readers.read(check=check)
        wait_until(lambda: case.source.waiting == 1)
        case.gate.let_go(2)
        assert leader.result() != DATA[:100]
        assert follower.result() == DATA[:100]
        assert len(case.gate.arrived) == 2


def test_an_error_of_another_kind_stays_with_the_leader() -> None:
    class Odd(Exception):
        pass

    def check(found: memoryview) -> None:
        raise Odd

    case = Case()
    with case.readers:
        leader = case.readers.read(check=check)
        case.gate.wait_for(1)
        follower = case.readers.read()
        wait_until(lambda: case.source.waiting == 1)
        case.gate.let_go(2)
        assert isinstance(leader.exception(), Odd)
        assert follower.result() == DATA[:100]


def test_whoever_joins_makes_the_flight_as_urgent_even_later() -> None:
    """Three reads of the same bytes, all behind a full limit: one transfer, ahead of those nobody waits for."""
    inner = MemoryRepository()
    blob = inner.add(DATA)
    gate, limit = Gate(inner), LimitSource(inner, 1)
    source = SingleFlight(limit)
    urgency = RisingPriority(Priority.BACKGROUND)
    with Readers(source, blob) as readers:
        busy = readers.read(0, 1)
        gate.wait_for(1)
        other = readers.read(1, 1, priority=Priority.AHEAD)
        wait_until(lambda: limit.waiting == 1)
        leader = readers.read(priority=Priority.BACKGROUND)
        wait_until(lambda: limit.waiting == 2)
        follower = readers.read(priority=urgency)
        wait_until(lambda: source.waiting == 1)
        urgency.rise(Priority.DEMAND)
        gate.let_go(3)
        assert (busy.result(), other.result()) == (DATA[:1], DATA[1:2])
        assert leader.result() == follower.result() == DATA[:100]
    assert [(asked.offset, asked.length) for asked in gate.arrived] == [(0, 1), (0, 100), (1, 1)]


def test_whoever_leads_may_become_more_urgent_too() -> None:
    inner = MemoryRepository()
    blob = inner.add(DATA)
    gate, limit = Gate(inner), LimitSource(inner, 1)
    urgency = RisingPriority(Priority.BACKGROUND)
    with Readers(SingleFlight(limit), blob) as readers:
        readers.read(0, 1)
        gate.wait_for(1)
        readers.read(1, 1, priority=Priority.AHEAD)
        wait_until(lambda: limit.waiting == 1)
        readers.read(2, 1, priority=urgency)
        wait_until(lambda: limit.waiting == 2)
        urgency.rise(Priority.DEMAND)
        gate.let_go(3)
    assert [asked.offset for asked in gate.arrived] == [0, 2, 1]
