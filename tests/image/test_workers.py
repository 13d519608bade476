"""Many pieces of work at once: order, bounds, the first failure, and stopping."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonne.clock import SYSTEM_CLOCK, Deadline
from tonne.errors import Busy, DeadlineExceeded, Interrupted
from tonne.image.pull_state import covered, merged
from tonne.image.workers import Halt, all_of, in_order
from tonne.transport.backoff import Backoff


@settings(max_examples=30)
@given(st.lists(st.integers(), max_size=40), st.integers(1, 6), st.integers(1, 10))
def test_results_come_in_order(items: list[int], threads: int, ahead: int) -> None:
    assert list(in_order(items, lambda item: item * 2, threads, Halt(), ahead)) == [item * 2 for item in items]


def test_only_so_many_items_are_taken_ahead() -> None:
    taken, done = [0], [0]

    def items() -> Iterator[int]:
        for number in range(100):
            taken[0] += 1
            yield number

    for _ in in_order(items(), lambda number: number, 4, Halt(), ahead=5):
        done[0] += 1
        assert taken[0] <= done[0] + 6
    assert taken[0] == done[0] == 100


def test_work_runs_at_once() -> None:
    barrier = threading.Barrier(4, timeout=10)
    all_of(range(8), lambda _: barrier.wait(), 4, Halt())


def test_the_first_failure_in_order_is_raised_and_stops_the_rest() -> None:
    halt = Halt()
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)
        if number == 2:
            time.sleep(0.05)
            raise KeyError(number)
        if number == 3:
            raise ValueError(number)

    with pytest.raises(KeyError):
        all_of(range(1000), work, 3, halt)
    assert halt.stopped
    assert len(ran) < 50


def test_closing_early_stops_the_workers() -> None:
    halt = Halt()
    before = threading.active_count()
    results = in_order(range(1000), lambda number: number, 3, halt)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]  # a generator behind its interface
    assert halt.stopped
    assert threading.active_count() == before


def test_a_failing_source_of_items_stops_the_workers() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the list ends badly")

    halt = Halt()
    with pytest.raises(OSError, match="badly"):
        all_of(items(), lambda number: number, 2, halt)
    assert halt.stopped


def test_a_halt_ends_deadlines() -> None:
    halt = Halt()
    deadline = halt.deadline
    deadline.check("waiting")
    assert not deadline.expired()
    assert not deadline.sooner(60).expired()
    halt.stop()
    assert deadline.expired()
    assert deadline.left_s() == 0
    with pytest.raises(DeadlineExceeded):
        deadline.check("waiting")
    began_s = time.monotonic()
    halt.sleep(60)
    assert time.monotonic() - began_s < 5
    assert halt.wall_s() > 1e9
    assert not Deadline().expired()


def test_a_stop_wakes_who_sleeps_until_a_deadline_of_it() -> None:
    halt = Halt()
    tries = Backoff(3, 0.1, 1.0, 120.0).tries(SYSTEM_CLOCK, halt.deadline.sooner(1000))
    threading.Timer(0.1, halt.stop).start()
    began_s = time.monotonic()
    with pytest.raises(Busy):
        tries.failed(Busy("later", retry_after_s=100))
    halt = Halt()
    threading.Timer(0.1, halt.stop).start()
    halt.sleep(100)
    assert time.monotonic() - began_s < 20


def test_work_after_a_stop_is_not_begun() -> None:
    halt = Halt()
    halt.stop()
    with pytest.raises(Interrupted):
        all_of([1], lambda number: pytest.fail("it ran"), 1, halt)


ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(ranges, st.integers(0, 60), st.integers(1, 10))
def test_ranges_cover_what_their_bytes_cover(found: list[tuple[int, int]], start: int, length: int) -> None:
    there = {byte for a, b in found for byte in range(a, b)}
    joined = merged(found)
    assert {byte for a, b in joined for byte in range(a, b)} == there
    assert all(a[1] < b[0] for a, b in itertools.pairwise(joined))
    assert covered(joined, start, start + length) == (set(range(start, start + length)) <= there)
