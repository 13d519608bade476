"""Retry, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.clock import Deadline
from tonne.errors import (
    Busy,
    CorruptBytes,
    CorruptIndex,
    DeadlineExceeded,
    Forbidden,
    MissingBlob,
    ServerError,
    Stalled,
    TonneError,
    Unreachable,
)
from tonne.model import Blob
from tonne.source.memory import MemoryRepository
from tonne.source.retry import CORRUPT_ATTEMPTS, RetrySource
from tonne.testing.clock import VirtualClock
from tonne.testing.conformance import load, read_all
from tonne.transport.backoff import Backoff

BACKOFF = Backoff(attempts=4, first_s=0.5, max_s=30.0, retry_after_max_s=60.0)


class Case:
    def __init__(self, backoff: Backoff = BACKOFF) -> None:
        self.clock = VirtualClock()
        self.inner = MemoryRepository()
        self.content = load(self.inner)
        self.inner.asked.clear()
        self.events: list[TonneError] = []
        self.source = RetrySource(self.inner, backoff, self.clock, self.events.append)

    def read(self, seconds: float | None = None) -> bytes:
        out = bytearray(100)
        self.source.read(self.content.blob, 0, memoryview(out), Deadline.after(seconds, self.clock))
        return bytes(out)

    @property
    def reads(self) -> int:
        return sum(asked.kind == "read" for asked in self.inner.asked)


def test_a_passing_failure_is_not_seen() -> None:
    case = Case()
    case.inner.fail("read", Stalled("no progress"), times=3)
    assert case.read() == case.content.data[:100]
    assert case.reads == 4
    assert [type(event) for event in case.events] == [Stalled] * 3


def test_waits_double_and_are_jittered() -> None:
    firsts = set()
    for _ in range(20):
        case = Case()
        case.inner.fail("read", ServerError("status 500"), times=3)
        case.read()
        assert len(case.clock.slept_s) <= 3
        assert case.clock.now_s() <= 0.5 + 1.0 + 2.0
        firsts.add(case.clock.now_s())
    assert len(firsts) > 10


def test_the_attempts_are_used_up() -> None:
    case = Case()
    case.inner.fail("read", Unreachable("refused"), times=None)
    with pytest.raises(Unreachable):
        case.read()
    assert case.reads == 4
    # The last one came through, so it is no event.
    assert len(case.events) == 3
    case.inner.heal()
    assert case.read() == case.content.data[:100]


def test_one_attempt_is_none_more() -> None:
    case = Case(Backoff(attempts=1, first_s=0.5, max_s=30.0, retry_after_max_s=60.0))
    case.inner.fail("read", Stalled("no progress"))
    with pytest.raises(Stalled):
        case.read()
    assert case.reads == 1
    assert case.events == []
    assert case.clock.slept_s == []


@pytest.mark.parametrize(
    "error", [MissingBlob("gone"), Forbidden("no"), CorruptIndex("bad form"), DeadlineExceeded("late")]
)
def test_what_will_not_change_is_not_tried_again(error: TonneError) -> None:
    case = Case()
    case.inner.fail("read", error)
    with pytest.raises(type(error)):
        case.read()
    assert case.reads == 1
    assert case.clock.slept_s == []


def test_a_busy_registry_is_given_the_time_it_asks_for() -> None:
    case = Case()
    case.inner.fail("read", Busy("status 429", retry_after_s=20.0))
    case.read()
    assert 20.0 <= case.clock.now_s() <= 20.5


def test_a_registry_that_asks_for_too_much_is_not_waited_for() -> None:
    case = Case()
    case.inner.fail("read", Busy("status 429", retry_after_s=61.0))
    with pytest.raises(Busy):
        case.read()
    assert case.clock.now_s() == 0.0


def test_no_wait_goes_past_the_deadline() -> None:
    case = Case()
    case.inner.fail("read", Busy("status 503", retry_after_s=20.0), times=None)
    with pytest.raises(Busy):
        case.read(seconds=30.0)
    assert case.reads == 2
    assert case.clock.now_s() < 30.0


def test_wrong_bytes_are_fetched_again_and_reported_with_their_origin() -> None:
    case = Case()
    case.inner.flip(case.content.blob.digest, 50)
    good = case.content.data[:100]

    def check(found: memoryview) -> None:
        if bytes(found) != good:
            raise CorruptBytes("wrong bytes came")

    out = bytearray(100)
    case.source.read(case.content.blob, 0, memoryview(out), Deadline.after(None, case.clock), check)
    assert bytes(out) == good
    assert [event.fields["origin"] for event in case.events] == [case.inner.origin]


def test_bytes_that_stay_wrong_are_given_up_soon() -> None:
    case = Case(Backoff(attempts=50, first_s=0.5, max_s=30.0, retry_after_max_s=60.0))

    def check(found: memoryview) -> None:
        raise CorruptBytes("wrong bytes came")

    with pytest.raises(CorruptBytes):
        case.source.read(case.content.blob, 0, memoryview(bytearray(9)), Deadline.after(None, case.clock), check)
    assert case.reads == CORRUPT_ATTEMPTS


def test_sizes_and_manifests_too() -> None:
    case = Case()
    never = Deadline.after(None, case.clock)
    calls: list[tuple[str, Callable[[], object], object]] = [
        ("size", lambda: case.source.size(case.content.blob.digest, never), case.content.blob.size_bytes),
        ("manifest", lambda: case.source.manifest("v1", never), case.content.document),
    ]
    for kind, call, expected in calls:
        case.inner.fail(kind, Stalled("no progress"), times=2)
        assert call() == expected
        case.inner.fail(kind, Stalled("no progress"), times=4)
        with pytest.raises(Stalled):
            call()


_ERRORS = {"stall": Stalled("no progress"), "corrupt": CorruptBytes("wrong"), "missing": MissingBlob("gone")}


@given(st.lists(st.sampled_from(sorted(_ERRORS)), max_size=8), st.integers(1, 7))
def test_it_ends_as_the_rules_say(failures: list[str], attempts: int) -> None:
    clock, inner = VirtualClock(), MemoryRepository()
    blob: Blob = inner.add(b"some bytes")
    for failure in failures:
        inner.fail("read", _ERRORS[failure])
    source = RetrySource(inner, Backoff(attempts, 0.5, 30.0, 60.0), clock)
    expected, corrupt = None, 0
    for number, failure in enumerate(failures, start=1):
        corrupt += failure == "corrupt"
        if failure == "missing" or number == attempts or corrupt == CORRUPT_ATTEMPTS:
            expected = type(_ERRORS[failure])
            break
    if expected is None:
        assert read_all(source, blob) == b"some bytes"
    else:
        with pytest.raises(expected):
            read_all(source, blob)
