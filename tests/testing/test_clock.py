from __future__ import annotations

import threading

import pytest

from tonne.clock import Clock, Deadline, SystemClock
from tonne.errors import DeadlineExceeded
from tonne.testing.clock import EPOCH_S, VirtualClock


def test_a_sleep_moves_the_time_and_returns_at_once() -> None:
    clock: Clock = VirtualClock()
    clock.sleep(3600)
    assert clock.now_s() == 3600
    assert clock.wall_s() == EPOCH_S + 3600


def test_sleeps_are_listed_and_those_of_no_length_are_none() -> None:
    clock = VirtualClock(now_s=10)
    for seconds in (0.5, 0, -1, 2):
        clock.sleep(seconds)
    assert clock.slept_s == [0.5, 2]
    assert clock.now_s() == 12.5


def test_a_deadline_on_it_passes() -> None:
    clock = VirtualClock()
    deadline = Deadline.after(5, clock)
    clock.sleep(4)
    deadline.check("work")
    clock.advance(1)
    with pytest.raises(DeadlineExceeded):
        deadline.check("work")


def test_a_deadline_for_each_read_has_no_end_itself() -> None:
    clock = VirtualClock()
    deadline = Deadline.each(5, clock)
    clock.sleep(100)
    deadline.check("work")
    one = deadline.for_one()
    clock.sleep(4)
    one.check("a read")
    clock.sleep(1)
    assert one.expired()
    assert not deadline.for_one().expired()
    assert one.for_one() is one


def test_a_sleep_ends_when_it_is_woken() -> None:
    wake = threading.Event()
    for clock in (SystemClock(), VirtualClock(manual=True)):
        wake.clear()
        threading.Timer(0.1, wake.set).start()
        clock.sleep(1000, wake)


def test_a_manual_clock_holds_its_sleepers_until_their_time() -> None:
    clock = VirtualClock(manual=True)
    woken: list[str] = []

    def sleeper(name: str, seconds: float) -> None:
        clock.sleep(seconds)
        woken.append(name)

    late = threading.Thread(target=sleeper, args=("late", 10))
    soon = threading.Thread(target=sleeper, args=("soon", 1))
    for thread in (late, soon):
        thread.start()
    clock.wait_for_sleepers(2)
    assert woken == []
    clock.advance(1)
    soon.join(10)
    assert woken == ["soon"]
    assert clock.sleepers == 1
    clock.advance(9)
    late.join(10)
    assert woken == ["soon", "late"]
    assert clock.sleepers == 0


def test_who_never_sleeps_is_not_waited_for_for_ever() -> None:
    with pytest.raises(TimeoutError):
        VirtualClock(manual=True).wait_for_sleepers(1, patience_s=0.01)


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError):
        VirtualClock().advance(-1)
