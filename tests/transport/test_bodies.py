from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.errors import LongBody, ShortBody
from tonne.transport.bodies import MemoryBody, StreamBody

PIECES = st.lists(st.binary(max_size=40), max_size=12)


def drain(body: MemoryBody | StreamBody, sizes: list[int]) -> bytes:
    body.rewind()
    found = b""
    for number in range(10_000):
        piece = body.read(sizes[number % len(sizes)])
        if not piece:
            return found
        found += piece
        if len(found) == body.length_bytes:
            return found
    raise AssertionError("no end")


@given(pieces=PIECES, sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_all_bytes_come_in_order_however_they_are_cut(pieces: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(pieces)
    stream = StreamBody(len(whole), lambda: iter([memoryview(piece) for piece in pieces]))
    for body in (stream, MemoryBody(whole)):
        assert drain(body, sizes) == whole
        assert drain(body, sizes) == whole  # rewound


@given(pieces=PIECES, difference=st.integers(-30, 30).filter(bool), sizes=st.lists(st.integers(1, 50), min_size=1))
def test_another_length_is_noticed(pieces: list[bytes], difference: int, sizes: list[int]) -> None:
    length = sum(map(len, pieces)) + difference
    if length < 0:
        return
    body = StreamBody(length, lambda: iter([memoryview(piece) for piece in pieces]))
    with pytest.raises(ShortBody if difference > 0 else LongBody):
        drain(body, sizes)
