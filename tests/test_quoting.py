"""What others wrote, on a terminal and in a log: harmless, encodable, without secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.errors import LocalFailure, TonneError
from tonne.quoting import shown, without_secrets, without_userinfo

HARMFUL = "\x1b[2J\x9b31m\u202e\u2066\u200f\ud800\udce9\r\n\x00\u2028"


@given(st.text() | st.text(alphabet=HARMFUL + "aé\\%", max_size=20))
def test_what_is_shown_is_printable_and_stays_as_it_is(text: str) -> None:
    found = shown(text)
    assert found.isprintable()
    found.encode()
    assert shown(found) == found
    if text.isprintable():
        assert found == text


@given(st.binary(max_size=40))
def test_bytes_and_the_path_that_stands_for_them_look_alike(name: bytes) -> None:
    assert shown(name) == shown(os.fsdecode(name))
    assert shown(name).isprintable()


def test_forms() -> None:
    assert shown(b"a\x1b[31m\n\xff\xc3\xa9") == "a\\x1b[31m\\n\\xff\xe9"
    assert shown("\u202e\ud800模型") == "\\u202e\\ud800模型"
    assert shown(Path("/a\udce9")) == "/a\\xe9"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("at https://me:geheim@host:5000/v2/ now", "at https://…@host:5000/v2/ now"),
        ("HTTP://me:ge/he@im@host/x", "HTTP://…@host/x"),
        ("http://geheim@proxy", "http://…@proxy"),
        ("'socks5h://me:geheim@proxy:1080': no", "'socks5h://…@proxy:1080': no"),
        ("https://s3/b?X-Amz-Signature=geheim&y=1 and", "https://s3/b?… and"),
        ("Authorization: Bearer geheim.geheim", "Authorization: Bearer …"),
        ("https://host/ml/bert:v1@sha256:00", "https://host/ml/bert:v1@sha256:00"),
        ("oci:./images@home:v1", "oci:./images@home:v1"),
        ("a/b:v1@sha256:00", "a/b:v1@sha256:00"),
    ],
)
def test_secrets_are_cut_out(text: str, found: str) -> None:
    assert without_secrets(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("me:geheim@host/x:v1", "…@host/x:v1"),
        ("me:ge@he/im@host/x", "…@host/x"),
        ("https://me:geheim@host/x", "https://…@host/x"),
        ("host:5000/x:v1@sha256:00", "host:5000/x:v1@sha256:00"),
    ],
)
def test_an_address_without_a_scheme(text: str, found: str) -> None:
    assert without_userinfo(text) == found


def test_an_error_is_harmless_whatever_it_was_made_of() -> None:
    error = TonneError(HARMFUL, where=HARMFUL, why="https://me:geheim@host/?sig=geheim", todo=HARMFUL, digest=HARMFUL)
    error.where += HARMFUL  # as sources do, which put their own name in front
    texts = [str(error), error.line, *(str(value) for value in error.document()["error"].values())]
    for text in texts:
        assert text.isprintable()
        assert "geheim" not in text
        text.encode()
    assert LocalFailure("x", where="模型 é").where == "模型 é"
