from __future__ import annotations

import errno
import json

import pycurl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne import errors
from tonne.testing.clock import EPOCH_S, VirtualClock
from tonne.transport.failures import MESSAGE_CHARS_MAX, Kind, clean, from_curl, from_status, parse_complaint
from tonne.transport.fields import Head

CLOCK = VirtualClock()


def body(code: str, message: str = "", detail: object = None) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message, "detail": detail}]}).encode()


def status(kind: Kind, number: int, content: bytes = b"", **fields: str) -> errors.TonneError:
    head = Head(number, {name.replace("_", "-"): (value,) for name, value in fields.items()})
    return from_status(kind, head, content, "h/r", CLOCK)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.MANIFEST, errors.MissingManifest),
        (Kind.BLOB, errors.MissingBlob),
        (Kind.UPLOAD_START, errors.MissingRepository),
        (Kind.UPLOAD, errors.SessionLost),
        (Kind.TAGS, errors.MissingRepository),
        (Kind.TOKEN, errors.Missing),
    ],
)
def test_a_404_depends_on_what_was_asked(kind: Kind, expected: type[errors.TonneError]) -> None:
    assert type(status(kind, 404)) is expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (401, errors.Unauthenticated),
        (403, errors.Forbidden),
        (405, errors.Unsupported),
        (413, errors.TooLarge),
        (416, errors.ShortBody),
        (418, errors.Refused),
        (429, errors.Busy),
        (500, errors.ServerError),
        (502, errors.ServerError),
        (503, errors.Busy),
        (504, errors.ServerError),
        (599, errors.ServerError),
        (302, errors.ProtocolError),
        (299, errors.ProtocolError),
    ],
)
def test_statuses(number: int, expected: type[errors.TonneError]) -> None:
    error = status(Kind.BLOB, number)
    assert type(error) is expected
    assert error.fields["status"] == number
    assert error.where == "h/r"


@pytest.mark.parametrize(
    ("number", "code", "expected"),
    [
        (400, "MANIFEST_BLOB_UNKNOWN", errors.MissingBlob),
        (404, "NAME_UNKNOWN", errors.MissingRepository),
        (400, "DIGEST_INVALID", errors.CorruptBytes),
        (400, "SIZE_INVALID", errors.CorruptBytes),
        (404, "BLOB_UPLOAD_UNKNOWN", errors.SessionLost),
        (400, "BLOB_UPLOAD_INVALID", errors.SessionLost),
        (400, "UNSUPPORTED", errors.Unsupported),
        (403, "DENIED", errors.Forbidden),
        (404, "DENIED", errors.Forbidden),
        (401, "DENIED", errors.Unauthenticated),
        (400, "MANIFEST_INVALID", errors.Refused),
        (500, "MANIFEST_UNKNOWN", errors.ServerError),
    ],
)
def test_the_registrys_code_counts_where_it_says_more(
    number: int, code: str, expected: type[errors.TonneError]
) -> None:
    error = status(Kind.MANIFEST, number, body(code, "the words of the registry"))
    assert type(error) is expected
    assert f"{code}: the words of the registry" in str(error)
    assert error.fields["registry_code"] == code


def test_the_wait_that_is_asked_for() -> None:
    assert status(Kind.BLOB, 429, retry_after="7").fields["retry_after_s"] == 7.0
    date = "Tue, 14 Nov 2023 22:14:20 GMT"  # EPOCH_S + 60
    assert EPOCH_S == 1_700_000_000
    assert status(Kind.BLOB, 503, retry_after=date).fields["retry_after_s"] == 60.0
    assert "retry_after_s" not in status(Kind.BLOB, 429).fields
    assert "retry_after_s" not in status(Kind.BLOB, 500, retry_after="7").fields


def test_a_web_page_is_no_registry() -> None:
    assert type(status(Kind.MANIFEST, 404, b"<html>", content_type="text/html; charset=x")) is errors.ProtocolError
    assert type(status(Kind.MANIFEST, 404, b"\n <!DOCTYPE html>")) is errors.ProtocolError
    assert type(status(Kind.MANIFEST, 502, b"<html>", content_type="text/html")) is errors.ServerError
    assert type(status(Kind.MANIFEST, 401, b"<html>", content_type="text/html")) is errors.Unauthenticated


def test_blobs_that_a_manifest_lacks_are_named() -> None:
    first, second = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    content = json.dumps(
        {
            "errors": [
                {"code": "MANIFEST_BLOB_UNKNOWN", "detail": {"Digest": first}},
                {"code": "MANIFEST_BLOB_UNKNOWN", "message": f"unknown: {second}", "detail": first},
            ]
        }
    ).encode()
    assert status(Kind.MANIFEST, 400, content).fields["digests"] == f"{first} {second}"
    # Cut at the limit, it is not JSON any more.
    assert status(Kind.MANIFEST, 400, content[:-20]).fields["digests"] == f"{first} {second}"


def test_other_forms_of_complaints() -> None:
    s3 = b"<?xml?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    assert parse_complaint(s3).text == "AccessDenied: Request has expired"
    assert parse_complaint(b'{"error":"invalid_scope","error_description":"no"}').text == "invalid_scope: no"
    assert parse_complaint(b'{"details":"incorrect username or password"}').text == "incorrect username or password"
    assert parse_complaint(b"plain words", "text/plain").text == "plain words"
    assert parse_complaint(b"\xff\x00binary").text == ""
    for odd in (b"[1]", b"null", b'{"errors":[]}', b'{"errors":[1]}', b'{"errors":"x"}', b"[" * 100_000):
        assert parse_complaint(odd).text == ""


@given(st.text(max_size=3000))
def test_what_is_quoted_is_one_short_line(text: str) -> None:
    found = clean(text)
    assert len(found) <= MESSAGE_CHARS_MAX
    assert "\n" not in found
    assert "\x1b" not in found
    found.encode()


def test_signatures_and_tokens_are_not_quoted() -> None:
    text = clean(
        "at https://s3.example.com/b?X-Amz-Signature=abcdef and Authorization: Bearer abcdefghij.klm Basic dXNlcjpw"
    )
    assert "https://s3.example.com/b?…" in text
    for secret in ("abcdef", "klm", "dXNlcjpw"):
        assert secret not in text


@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [
        (pycurl.E_COULDNT_RESOLVE_HOST, 0, errors.UnknownHost),
        (pycurl.E_COULDNT_CONNECT, errno.ECONNREFUSED, errors.Unreachable),
        (pycurl.E_OPERATION_TIMEDOUT, 0, errors.Unreachable),
        (pycurl.E_PARTIAL_FILE, 0, errors.ShortBody),
        (pycurl.E_PEER_FAILED_VERIFICATION, 0, errors.TlsFailure),
        (pycurl.E_SSL_CONNECT_ERROR, 0, errors.TlsFailure),
        (pycurl.E_SSL_CONNECT_ERROR, errno.ECONNRESET, errors.Unreachable),
        (pycurl.E_GOT_NOTHING, 0, errors.Unreachable),
        (pycurl.E_RECV_ERROR, errno.ECONNRESET, errors.Unreachable),
        (pycurl.E_UNSUPPORTED_PROTOCOL, 0, errors.ProtocolError),
        (9999, 0, errors.Unreachable),
    ],
)
def test_libcurls_codes(code: int, number: int, expected: type[errors.TonneError]) -> None:
    error = from_curl(code, "words?\x00", "h/r", number)
    assert type(error) is expected
    assert error.where == "h/r"
    assert "\x00" not in str(error)
