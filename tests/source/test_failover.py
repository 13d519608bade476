"""Failover, in virtual time."""

from __future__ import annotations

import pytest

from tonne.clock import Deadline
from tonne.errors import (
    Busy,
    CorruptBytes,
    DeadlineExceeded,
    LocalFailure,
    MissingBlob,
    MissingManifest,
    ServerError,
    Stalled,
    TonneError,
    Unauthenticated,
    Unreachable,
)
from tonne.source.failover import REST_FIRST_S, REST_MAX_S, FailoverSource
from tonne.source.memory import Asked, MemoryRepository
from tonne.testing.clock import VirtualClock
from tonne.testing.conformance import load


class Case:
    """Sources a, b and so on with the same content."""

    def __init__(self, count: int = 2) -> None:
        self.clock = VirtualClock()
        self.inner = [MemoryRepository(f"{name}/repo") for name in "abc"[:count]]
        contents = [load(source) for source in self.inner]
        self.content = contents[0]
        self.events: list[TonneError] = []
        self.source = FailoverSource(self.inner, self.clock, self.events.append)

    def read(self, seconds: float | None = None) -> str:
        """Which sources a read asks, in order."""
        for source in self.inner:
            source.asked.clear()
        out = bytearray(100)
        order: list[str] = []

        def note(name: str) -> None:
            order.append(name)

        hooks = [source.on_call for source in self.inner]
        for source, hook in zip(self.inner, hooks, strict=True):

            def called(asked: Asked, name: str = source.origin[0], hook: object = hook) -> None:
                note(name)
                if callable(hook):
                    hook(asked)

            source.on_call = called
        try:
            self.source.read(self.content.blob, 0, memoryview(out), Deadline.after(seconds, self.clock))
        finally:
            for source, hook in zip(self.inner, hooks, strict=True):
                source.on_call = hook
        assert bytes(out) == self.content.data[:100]
        return "".join(order)


FAILURES: list[TonneError] = [
    CorruptBytes("wrong bytes"),
    MissingBlob("gone"),
    Unreachable("refused"),
    Unauthenticated("who are you"),
    LocalFailure("input/output error"),
]


@pytest.mark.parametrize("error", FAILURES)
def test_the_next_is_asked(error: TonneError) -> None:
    case = Case()
    case.inner[0].fail("read", error)
    assert case.read() == "ab"
    assert [type(event) for event in case.events] == [type(error)]


def test_as_long_as_the_first_answers_nobody_else_is_asked() -> None:
    case = Case()
    assert [case.read() for _ in range(3)] == ["a", "a", "a"]
    assert case.events == []


def test_wrong_bytes_are_reported_with_their_origin_and_come_from_the_next() -> None:
    case = Case()
    case.inner[0].flip(case.content.blob.digest, 5, times=99)
    good = case.content.data[:100]

    def check(found: memoryview) -> None:
        if bytes(found) != good:
            raise CorruptBytes("wrong bytes came")

    out = bytearray(100)
    case.source.read(case.content.blob, 0, memoryview(out), Deadline.after(None, case.clock), check)
    assert bytes(out) == good
    assert [event.fields["origin"] for event in case.events] == ["a/repo"]


def test_a_failing_source_rests_for_a_doubling_time_and_never_for_ever() -> None:
    case = Case()
    case.inner[0].fail("read", Stalled("no progress"), times=None)
    rest_s = REST_FIRST_S
    for _ in range(12):
        assert case.read() == "ab"
        case.clock.advance(rest_s - 0.01)
        assert case.read() == "b"
        case.clock.advance(0.02)
        rest_s = min(REST_MAX_S, 2 * rest_s)
    case.inner[0].heal()
    assert case.read() == "a"


def test_one_success_sets_the_rest_back() -> None:
    case = Case()
    case.inner[0].fail("read", Stalled("no progress"), times=3)
    for rest_s in (1.0, 2.0, 4.0):
        assert case.read() == "ab"
        case.clock.advance(rest_s + 0.01)
    assert case.read() == "a"
    case.inner[0].fail("read", Stalled("no progress"))
    assert case.read() == "ab"
    case.clock.advance(REST_FIRST_S + 0.01)
    assert case.read() == "a"


def test_what_is_missing_in_a_source_says_nothing_about_other_blobs() -> None:
    case = Case()
    case.inner[0].fail("read", MissingBlob("gone"), times=2)
    assert [case.read() for _ in range(3)] == ["ab", "ab", "a"]


def test_failures_during_a_rest_do_not_make_it_longer() -> None:
    case = Case(3)
    for source in case.inner[:2]:
        source.fail("read", Stalled("no progress"), times=4)
    # So that the resting ones are asked all the same, and the third does not rest.
    case.inner[2].fail("read", MissingBlob("gone"), times=4)
    for _ in range(4):
        with pytest.raises(Stalled):
            case.read()
    case.clock.advance(REST_FIRST_S - 0.01)
    assert case.read() == "c"
    case.clock.advance(0.02)
    assert case.read() == "a"


def test_a_resting_source_is_asked_when_no_other_is_left() -> None:
    case = Case()
    case.inner[0].fail("read", Stalled("no progress"))
    assert case.read() == "ab"
    case.inner[1].fail("read", MissingBlob("gone"))
    assert case.read() == "ba"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (MissingBlob("gone"), Unreachable("refused"), Unreachable),
        (Unreachable("refused"), MissingBlob("gone"), Unreachable),
        (Unreachable("refused"), Unauthenticated("who are you"), Unauthenticated),
        (Unauthenticated("who are you"), CorruptBytes("wrong bytes"), CorruptBytes),
        (ServerError("status 500"), Busy("status 429"), ServerError),
        (MissingBlob("not here"), MissingBlob("nor here"), MissingBlob),
        (LocalFailure("input/output error"), MissingBlob("gone"), LocalFailure),
    ],
)
def test_when_all_fail_the_most_telling_error_has_every_reason(
    first: TonneError, second: TonneError, expected: type[TonneError]
) -> None:
    case = Case()
    case.inner[0].fail("read", first)
    case.inner[1].fail("read", second)
    with pytest.raises(expected) as caught:
        case.read()
    for origin, error in (("a/repo", first), ("b/repo", second)):
        assert origin in str(caught.value)
        assert error.what in str(caught.value)


def test_a_single_source_speaks_for_itself() -> None:
    case = Case(1)
    case.inner[0].fail("read", Stalled("no progress", where="a/repo", why="for 30 s"))
    with pytest.raises(Stalled) as caught:
        case.read()
    assert str(caught.value) == "no progress: a/repo: for 30 s"
    assert case.events == []


def test_the_callers_own_deadline_ends_it() -> None:
    case = Case()
    case.inner[0].on_call = lambda asked: case.clock.advance(100.0)
    with pytest.raises(DeadlineExceeded):
        case.read(seconds=60.0)
    assert case.inner[1].asked == []
    # That was no fault of the source.
    case.inner[0].on_call = None
    assert case.read() == "a"


def test_a_source_that_hangs_leaves_time_for_the_next() -> None:
    case = Case(3)
    case.inner[0].on_call = lambda asked: case.clock.advance(31.0)
    assert case.read(seconds=60.0) == "ab"
    assert isinstance(case.events[0], DeadlineExceeded)


def test_without_a_deadline_none_is_made_up() -> None:
    case = Case()
    case.inner[0].on_call = lambda asked: case.clock.advance(1e6)
    assert case.read() == "a"


def test_errors_of_the_caller_ask_nobody_else() -> None:
    case = Case()
    with pytest.raises(ValueError, match="not within"):
        case.source.read(case.content.blob, -1, memoryview(bytearray(1)), Deadline.after(None, case.clock))
    assert case.inner[1].asked[-1].kind == "put_manifest"


def test_sizes_and_manifests_too() -> None:
    case = Case()
    never = Deadline.after(None, case.clock)
    case.inner[0].fail("size", MissingBlob("gone"))
    case.inner[0].fail("manifest", MissingManifest("gone"))
    assert case.source.size(case.content.blob.digest, never) == case.content.blob.size_bytes
    assert case.source.manifest("v1", never) == case.content.document


def test_closing_closes_all() -> None:
    case = Case(3)
    case.source.close()
    assert all(source.closed for source in case.inner)


def test_no_sources_at_all() -> None:
    with pytest.raises(ValueError, match="no sources"):
        FailoverSource([], VirtualClock())
