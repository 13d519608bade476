"""Logs against a model; torn, stale and foreign records say nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tonne.model import Digest
from tonne.store.ranges import ByteRanges
from tonne.store.records import DROPPED, DURABLE, RECORD_BYTES, WRITTEN, Claims, LogKey, encode_records

BLOB = Digest.of(b"blob")
KEY = LogKey.of(BLOB, "boot")

entries = st.lists(
    st.tuples(st.sampled_from([WRITTEN, DURABLE, DROPPED]), st.booleans(), st.integers(0, 30), st.integers(1, 9)),
    max_size=20,
)


def log_of(items: list[tuple[int, bool, int, int]]) -> bytes:
    """(kind, whether of this boot, offset, length)."""
    data = b""
    for place, (kind, ours, offset, length) in enumerate(items):
        key = KEY if ours else LogKey.of(BLOB, "an earlier boot")
        data += encode_records(kind, ByteRanges.one(offset, length), key, place)
    return data


def model(items: list[tuple[int, bool, int, int]]) -> tuple[set[int], set[int], set[int]]:
    held: set[int] = set()
    durable: set[int] = set()
    dropped: set[int] = set()
    for kind, ours, offset, length in items:
        them = set(range(offset, offset + length))
        if kind == DROPPED:
            held, durable, dropped = held - them, durable - them, dropped | them
        elif kind == DURABLE:
            held, durable = held | them, durable | them
        elif ours:
            held = held | them
    return held, durable, dropped


def numbers(made: ByteRanges) -> set[int]:
    return {n for start, end in made for n in range(start, end)}


@given(entries, st.integers(0, 700))
def test_a_log_says_what_the_model_says(items: list[tuple[int, bool, int, int]], cut: int) -> None:
    data = log_of(items)
    whole = Claims().after(data, KEY, 0)
    assert (numbers(whole.held), numbers(whole.durable), numbers(whole.dropped)) == model(items)
    # In two parts, the first with a torn tail.
    first = Claims().after(data[:cut], KEY, 0)
    place = min(cut, len(data)) // RECORD_BYTES
    assert first.after(data[place * RECORD_BYTES :], KEY, place) == whole
    # Believed as they are appended.
    appended = Claims()
    for kind, ours, offset, length in items:
        if ours or kind != WRITTEN:
            appended = appended.with_records(kind, ByteRanges.one(offset, length))
    assert appended == whole
    # The shortest log says the same.
    again = Claims().after(whole.log(KEY), KEY, 0)
    assert (again.held, again.durable) == (whole.held, whole.durable)
    assert len(whole.log(KEY)) <= whole.log_bytes


@given(entries, st.data())
def test_a_damaged_record_is_as_if_it_were_not_there(
    items: list[tuple[int, bool, int, int]], data: st.DataObject
) -> None:
    log = bytearray(log_of(items))
    if not log:
        return
    at = data.draw(st.integers(0, len(log) - 1))
    log[at] ^= data.draw(st.integers(1, 255))
    rest = [item for place, item in enumerate(items) if place != at // RECORD_BYTES]
    claims = Claims().after(log, KEY, 0)
    assert (numbers(claims.held), numbers(claims.durable), numbers(claims.dropped)) == model(rest)


def test_zeros_another_blobs_log_and_another_place_say_nothing() -> None:
    assert Claims().after(bytes(320), KEY, 0) == Claims()
    log = encode_records(DURABLE, ByteRanges.one(0, 10), KEY, 0)
    assert Claims().after(log, LogKey.of(Digest.of(b"another"), "boot"), 0) == Claims()
    assert Claims().after(log, KEY, 1) == Claims()
    assert numbers(Claims().after(log, KEY, 0).held) == set(range(10))


def test_ranges_beyond_the_file_are_cut() -> None:
    claims = Claims().after(encode_records(DURABLE, ByteRanges.one(5, 10), KEY, 0), KEY, 0).within(8)
    assert list(claims.held) == list(claims.durable) == [(5, 8)]


def test_a_million_records_load_in_a_moment() -> None:
    starts = np.arange(0, 2_400_000, dtype=np.int64) * 10
    ranges = ByteRanges(starts, starts + 7)
    claims = Claims().after(encode_records(DURABLE, ranges, KEY, 0), KEY, 0)
    assert claims.held == ranges
