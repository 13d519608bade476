"""Sets of ranges against Python's sets of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tonne.store.ranges import NOTHING, ByteRanges

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def ranges(items: list[tuple[int, int]]) -> ByteRanges:
    return ByteRanges(np.array([s for s, _ in items], np.int64), np.array([s + n for s, n in items], np.int64))


def numbers(made: ByteRanges) -> set[int]:
    return {n for start, end in made for n in range(start, end)}


def expected(items: list[tuple[int, int]]) -> set[int]:
    return {n for start, length in items for n in range(start, start + length)}


def assert_sound(made: ByteRanges) -> None:
    before = -1
    for start, end in made:
        assert before < start < end, made  # not even touching
        before = end


@given(pairs, pairs)
def test_operations_are_those_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, two = ranges(a), ranges(b)
    assert numbers(one) == expected(a)
    assert one.size_bytes == len(expected(a))
    for made, want in (
        (one | two, expected(a) | expected(b)),
        (one & two, expected(a) & expected(b)),
        (one - two, expected(a) - expected(b)),
    ):
        assert_sound(made)
        assert numbers(made) == want
        assert made == ranges([(n, 1) for n in want])


@given(pairs)
def test_one_by_one_is_all_at_once(a: list[tuple[int, int]]) -> None:
    made = NOTHING
    for start, length in a:
        made |= ByteRanges.one(start, length)
        assert_sound(made)
    assert made == ranges(a)


@given(pairs, st.integers(0, 60), st.integers(0, 12))
def test_has(a: list[tuple[int, int]], offset: int, length: int) -> None:
    made = ranges(a)
    want = set(range(offset, offset + length)) <= expected(a)
    assert made.has(offset, length) == want


def test_large_offsets() -> None:
    tail = ByteRanges.one(1 << 61, 5)
    everything = ByteRanges.one(0, np.iinfo(np.int64).max)
    assert list(everything & tail) == [(1 << 61, (1 << 61) + 5)]
    assert next(iter(everything - tail)) == (0, 1 << 61)
