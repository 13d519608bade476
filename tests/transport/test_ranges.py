"""What may be made of answers to a range, fed to the receiver in pieces of every size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.errors import LongBody, ProtocolError, ShortBody, TonneError, Unsupported
from tonne.transport.fields import Head
from tonne.transport.ranges import WHOLE_BODY_BYTES_MAX, RangeReceiver

BLOB = bytes(range(256)) * 2
SPANS = st.tuples(st.integers(0, 511), st.integers(1, 512)).filter(lambda span: sum(span) <= 512)
CUTS = st.lists(st.integers(1, 600), min_size=1, max_size=5)


def feed(receiver: RangeReceiver, head: Head, body: bytes, cuts: list[int]) -> None:
    receiver.begin(head)
    at, number = 0, 0
    while at < len(body):
        size = cuts[number % len(cuts)]
        receiver.write(body[at : at + size])
        at, number = at + size, number + 1
    receiver.finish()


def partial(first: int, last: int, total: object = 512, **fields: str) -> Head:
    extra = {name.replace("_", "-"): (value,) for name, value in fields.items()}
    return Head(206, {"content-range": (f"bytes {first}-{last}/{total}",), **extra})


@given(span=SPANS, cuts=CUTS, whole=st.booleans())
def test_the_range_arrives_from_either_answer(span: tuple[int, int], cuts: list[int], whole: bool) -> None:
    offset, length = span
    out = bytearray(length)
    receiver = RangeReceiver(512, offset, memoryview(out), "h/r")
    if whole:
        feed(receiver, Head(200), BLOB, cuts)
    else:
        feed(receiver, partial(offset, offset + length - 1), BLOB[offset : offset + length], cuts)
    assert out == BLOB[offset : offset + length]
    assert receiver.range == f"bytes={offset}-{offset + length - 1}"


@given(span=SPANS, cuts=CUTS, whole=st.booleans(), wrong=st.integers(-20, 20).filter(bool))
def test_another_amount_is_an_error(span: tuple[int, int], cuts: list[int], whole: bool, wrong: int) -> None:
    offset, length = span
    out = bytearray(length)
    receiver = RangeReceiver(512, offset, memoryview(out), "h/r")
    body = BLOB if whole else BLOB[offset : offset + length]
    body = body[:wrong] if wrong < 0 else body + b"x" * wrong
    head = Head(200) if whole else partial(offset, offset + length - 1)
    with pytest.raises(ShortBody if wrong < 0 else LongBody):
        feed(receiver, head, body, cuts)


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (partial(10, 18), ShortBody),
        (partial(11, 19), ProtocolError),
        (partial(10, 20), ProtocolError),
        (partial(10, 19, 511), ShortBody),
        (partial(10, 19, 513), LongBody),
        (partial(10, 19, content_length="9"), ShortBody),
        (partial(10, 19, content_length="11"), LongBody),
        (Head(206, {"content-type": ("multipart/byteranges; boundary=x",)}), ProtocolError),
        (Head(206), ProtocolError),
        (Head(200, {"content-length": ("511",)}), ShortBody),
        (Head(200, {"content-length": ("513",)}), LongBody),
    ],
)
def test_headers_that_do_not_fit_are_noticed_before_a_byte(head: Head, error: type[TonneError]) -> None:
    out = bytearray(10)
    with pytest.raises(error):
        RangeReceiver(512, 10, memoryview(out), "h/r").begin(head)
    assert out == bytes(10)


def test_a_total_that_is_not_said_is_accepted() -> None:
    out = bytearray(10)
    feed(RangeReceiver(512, 10, memoryview(out), "h/r"), partial(10, 19, "*"), BLOB[10:20], [3])
    assert out == BLOB[10:20]


def test_of_a_large_blob_only_all_of_it_is_taken_without_ranges() -> None:
    size = WHOLE_BODY_BYTES_MAX + 1
    out = memoryview(bytearray(10))
    receiver = RangeReceiver(size, 0, out, "h/r")
    with pytest.raises(Unsupported, match="ignores Range"):
        receiver.begin(Head(200))
    assert receiver.ignored
    receiver = RangeReceiver(size, 0, memoryview(bytearray(size)), "h/r")
    assert receiver.whole
    receiver.begin(Head(200))
    assert not receiver.ignored


def test_an_answer_before_leaves_nothing_behind() -> None:
    out = bytearray(10)
    receiver = RangeReceiver(512, 10, memoryview(out), "h/r")
    receiver.begin(Head(401))
    receiver.write(b"error")
    assert receiver.body == b"error"
    receiver.begin(partial(10, 19))
    receiver.write(BLOB[10:14])  # then the connection is cut, and the next attempt begins
    feed(receiver, partial(10, 19), BLOB[10:20], [4])
    assert out == BLOB[10:20]
    assert receiver.body == b""
