from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.clock import Deadline
from tonne.errors import Busy, Forbidden, ServerError
from tonne.testing.clock import VirtualClock
from tonne.transport.backoff import Backoff


@given(attempts=st.integers(1, 12), first_s=st.floats(0.001, 10), max_s=st.floats(0.001, 60))
def test_waits_are_bounded_and_end(attempts: int, first_s: float, max_s: float) -> None:
    clock = VirtualClock()
    tries = Backoff(attempts, first_s, max_s, 120.0).tries(clock, Deadline(clock=clock))
    error = ServerError("no")
    for _ in range(attempts - 1):
        tries.failed(error)
    with pytest.raises(ServerError) as caught:
        tries.failed(error)
    assert caught.value is error
    assert len(clock.slept_s) <= attempts - 1
    assert all(wait_s <= min(max_s, first_s * 2**number) for number, wait_s in enumerate(clock.slept_s))


def test_progress_starts_the_count_again() -> None:
    clock = VirtualClock()
    tries = Backoff(2, 0.1, 1.0, 120.0).tries(clock, Deadline(clock=clock))
    for _ in range(5):
        tries.failed(ServerError("no"))
        tries.progressed()
    tries.failed(ServerError("no"))
    with pytest.raises(ServerError):
        tries.failed(ServerError("no"))


def test_retry_after_is_obeyed_up_to_a_limit() -> None:
    clock = VirtualClock()
    tries = Backoff(9, 0.1, 1.0, 120.0).tries(clock, Deadline(clock=clock))
    tries.failed(Busy("busy", retry_after_s=30))
    assert 30 <= clock.now_s() <= 30.1
    with pytest.raises(Busy):
        tries.failed(Busy("busy", retry_after_s=121))
    assert clock.now_s() <= 30.1


def test_what_is_not_retryable_or_would_pass_the_deadline_is_raised_at_once() -> None:
    clock = VirtualClock()
    policy = Backoff(9, 0.1, 1.0, 120.0)
    with pytest.raises(Forbidden):
        policy.tries(clock, Deadline(clock=clock)).failed(Forbidden("no"))
    with pytest.raises(Busy):
        policy.tries(clock, Deadline.after(5, clock)).failed(Busy("busy", retry_after_s=10))
    assert clock.slept_s == []
