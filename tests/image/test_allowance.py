"""Memory given out by the byte."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tonne.clock import Deadline
from tonne.errors import DeadlineExceeded
from tonne.image.allowance import Allowance


class Holder:
    """Has a portion from when it gets it until it is released."""

    def __init__(self, pool: ThreadPoolExecutor, allowance: Allowance, size_bytes: int) -> None:
        self.has = threading.Event()
        self._release = threading.Event()
        self._done: Future[None] = pool.submit(self._hold, allowance, size_bytes)

    def _hold(self, allowance: Allowance, size_bytes: int) -> None:
        with allowance.portion(size_bytes, Deadline.after(10)):
            self.has.set()
            assert self._release.wait(10)

    def release(self) -> None:
        self._release.set()
        self._done.result(10)


def waits(holder: Holder) -> bool:
    return not holder.has.wait(0.05)


Hold = Callable[[Allowance, int], Holder]


@pytest.fixture
def hold() -> Iterator[Hold]:
    with ThreadPoolExecutor(8) as pool:
        yield lambda allowance, size_bytes: Holder(pool, allowance, size_bytes)


def test_no_more_than_the_limit_is_out(hold: Hold) -> None:
    allowance = Allowance(10)
    first, second = hold(allowance, 6), hold(allowance, 4)
    assert first.has.wait(5)
    assert second.has.wait(5)
    third = hold(allowance, 1)
    assert waits(third)
    second.release()
    assert third.has.wait(5)
    first.release()
    third.release()


def test_a_portion_beyond_the_limit_gets_all_of_it_alone(hold: Hold) -> None:
    allowance = Allowance(10)
    small = hold(allowance, 1)
    assert small.has.wait(5)
    large = hold(allowance, 50)
    assert waits(large)
    small.release()
    assert large.has.wait(5)
    after = hold(allowance, 1)
    assert waits(after)
    large.release()
    assert after.has.wait(5)
    after.release()


def test_small_portions_do_not_overtake_a_large_one(hold: Hold) -> None:
    allowance = Allowance(10)
    first = hold(allowance, 6)
    assert first.has.wait(5)
    large = hold(allowance, 8)
    assert waits(large)
    small = hold(allowance, 1)
    assert waits(small)
    first.release()
    assert large.has.wait(5)
    assert small.has.wait(5)
    large.release()
    small.release()


def test_who_gives_up_makes_way(hold: Hold) -> None:
    allowance = Allowance(10)
    first = hold(allowance, 6)
    assert first.has.wait(5)
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded), allowance.portion(8, Deadline.after(0.05)):
        pytest.fail("there was no room")
    assert time.monotonic() - began_s < 5
    small = hold(allowance, 4)
    assert small.has.wait(5)
    first.release()
    small.release()
    everything = hold(allowance, 10)
    assert everything.has.wait(5)
    everything.release()


def test_an_error_inside_gives_the_portion_back(hold: Hold) -> None:
    allowance = Allowance(10)
    with pytest.raises(KeyError), allowance.portion(10, Deadline.after(5)):
        raise KeyError
    after = hold(allowance, 10)
    assert after.has.wait(5)
    after.release()
