from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.transport.fields import (
    RETRY_AFTER_S_MAX,
    ContentRange,
    Head,
    is_loopback,
    parse_content_range,
    parse_next_link,
    parse_retry_after,
    parse_upload_range,
    split_origin,
)

SIZES = st.integers(0, 10**18)


@given(first=SIZES, length=st.integers(1, 10**9), rest=SIZES, known=st.booleans())
def test_a_content_range_means_what_it_says(first: int, length: int, rest: int, known: bool) -> None:
    last = first + length - 1
    total = last + 1 + rest
    found = parse_content_range(f"bytes {first}-{last}/{total if known else '*'}")
    assert found == ContentRange(first, last, total if known else None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes 5-4/10",
        "bytes 0-10/10",
        "bytes */10",
        "0-9/10",
        "bytes 0-9",
        "bytes -1-9/10",
        "bytes 0-9/x",
        "bytes 0-9/10\n5",
    ],
)
def test_a_content_range_that_contradicts_itself_is_none(text: str) -> None:
    assert parse_content_range(text) is None


@given(st.text(max_size=60))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for found in (parse_content_range(text), parse_upload_range(text), parse_next_link((text,), "http://h/a")):
        assert found is None or isinstance(found, (ContentRange, int, str))
    wait_s = parse_retry_after(text, 0.0)
    assert wait_s is None or 0 <= wait_s <= RETRY_AFTER_S_MAX


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("0-0", 0),
        ("0-16777215", 16777215),
        ("bytes=0-9", 9),
        ("bytes 0-9", 9),
        ("0--1", -1),
        ("1-5", None),
        ("", None),
        ("0-", None),
    ],
)
def test_the_range_of_an_upload(text: str, last: int | None) -> None:
    assert parse_upload_range(text) == last


def test_retry_after_takes_seconds_and_dates() -> None:
    now_s = 1_700_000_000.0
    date = format_datetime(datetime.fromtimestamp(now_s + 90, UTC), usegmt=True)
    past = format_datetime(datetime.fromtimestamp(now_s - 90, UTC), usegmt=True)
    assert parse_retry_after("12", now_s) == 12.0
    assert parse_retry_after(date, now_s) == 90.0
    assert parse_retry_after(past, now_s) == 0.0
    assert parse_retry_after("soon", now_s) is None
    assert parse_retry_after("-5", now_s) is None
    assert parse_retry_after("999999999", now_s) == RETRY_AFTER_S_MAX


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (('</v2/a/tags/list?n=2&last=x>; rel="next"',), "http://h:5000/v2/a/tags/list?n=2&last=x"),
        (("<http://o/p>; rel=next",), "http://o/p"),
        (('<a>; rel="prev", <b>; title="x, y"; rel="last next"',), "http://h:5000/v2/b"),
        (('<a>; rel="nextish"', "<c>; rel=next"), "http://h:5000/v2/c"),
        (('<a>; rel="prev"',), None),
        ((), None),
    ],
)
def test_the_next_page(values: tuple[str, ...], expected: str | None) -> None:
    assert parse_next_link(values, "http://h:5000/v2/x") == expected


def test_origins_are_scheme_host_and_port() -> None:
    assert split_origin("HTTPS://Reg.Example.com/v2/") == ("https", "reg.example.com", 443)
    assert split_origin("http://reg.example.com:443/") != split_origin("https://reg.example.com/")
    assert split_origin("http://[::1]:5000/x") == ("http", "::1", 5000)
    for url in ("ftp://h/", "/v2/", "http://", "http://h:99999/", "file:///etc/passwd"):
        with pytest.raises(ValueError):
            split_origin(url)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("a.localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("x.localhost", True),
        ("10.0.0.1", False),
        ("[::2]", False),
        ("example.com", False),
        ("128.0.0.1", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_length_that_is_no_number_is_none() -> None:
    for text in ("", "-1", "1x", "٣", "9" * 25):
        assert Head(200, {"content-length": (text,)}).length_bytes is None
    assert Head(200, {"content-length": ("17",)}).length_bytes == 17
    assert Head(200, {"content-type": ("Text/HTML; charset=utf-8",)}).media_type == "text/html"
