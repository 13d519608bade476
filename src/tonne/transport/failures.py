"""From libcurl's codes and HTTP statuses to tonne.errors.

What the other side writes is quoted in messages, so it is cut short and cleaned: no control characters, no URLs with a
query (they may be signed), no credentials.
"""

from __future__ import annotations

import enum
import errno as os_errno
import json
import re
from dataclasses import dataclass
from typing import Any

import pycurl

from tonne.clock import Clock
from tonne.errors import (
    Busy,
    CorruptBytes,
    Forbidden,
    Missing,
    MissingBlob,
    MissingManifest,
    MissingRepository,
    ProtocolError,
    Refused,
    ServerError,
    SessionLost,
    ShortBody,
    TlsFailure,
    TonneError,
    TooLarge,
    Unauthenticated,
    UnknownHost,
    Unreachable,
    Unsupported,
)
from tonne.quoting import without_secrets
from tonne.transport.fields import Head, parse_retry_after

MESSAGE_CHARS_MAX = 300
_DETAIL_DIGESTS_MAX = 10_000  # blobs of one manifest that may be reported as unknown; beyond any manifest of 4 MiB
_XML = re.compile(r"<(Code|Message)>([^<]{1,500})</\1>")
_DIGEST = re.compile(r"(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})(?![0-9a-f])")


class Kind(enum.Enum):
    """What a request is about: it decides what a 404 means."""

    MANIFEST = "manifest"
    BLOB = "blob"
    UPLOAD_START = "upload"
    UPLOAD = "upload session"
    TAGS = "tags"
    TOKEN = "token"
    OTHER = "resource"


_MISSING: dict[Kind, tuple[type[Missing], str]] = {
    Kind.MANIFEST: (MissingManifest, "no such tag or digest"),
    Kind.BLOB: (MissingBlob, "the registry does not hold the blob"),
    Kind.UPLOAD_START: (MissingRepository, "no such repository, or none that may be pushed to"),
    Kind.UPLOAD: (SessionLost, "the registry has forgotten the upload session"),
    Kind.TAGS: (MissingRepository, "no such repository"),
    Kind.TOKEN: (Missing, "the address for tokens does not exist"),
    Kind.OTHER: (Missing, "the registry does not have it"),
}

# Registries' own codes that say more than the status does (distribution-spec v1.1, "Error Codes").
_BY_CODE: dict[str, tuple[type[TonneError], str]] = {
    "MANIFEST_UNKNOWN": (MissingManifest, "no such tag or digest"),
    "NAME_UNKNOWN": (MissingRepository, "no such repository"),
    "BLOB_UNKNOWN": (MissingBlob, "the registry does not hold the blob"),
    "MANIFEST_BLOB_UNKNOWN": (MissingBlob, "the registry does not hold all blobs of the manifest"),
    "BLOB_UPLOAD_UNKNOWN": (SessionLost, "the registry has forgotten the upload session"),
    "BLOB_UPLOAD_INVALID": (SessionLost, "the registry cannot use the upload session any more"),
    "DIGEST_INVALID": (CorruptBytes, "the registry computed another digest"),
    "SIZE_INVALID": (CorruptBytes, "the registry received another number of bytes"),
    "UNSUPPORTED": (Unsupported, "the registry does not do this"),
    "DENIED": (Forbidden, "the registry does not allow it"),
    "TOOMANYREQUESTS": (Busy, "the registry limits requests"),
}

_BY_STATUS: dict[int, tuple[type[TonneError], str]] = {
    401: (Unauthenticated, "the registry does not accept the credentials"),
    403: (Forbidden, "the registry does not allow it"),
    405: (Unsupported, "the registry does not do this"),
    407: (Refused, "the proxy wants credentials"),
    408: (Busy, "the registry gave up waiting"),
    410: (Missing, "the registry has it no more"),
    411: (Unsupported, "the registry does not take the request in this form"),
    413: (TooLarge, "the registry does not take so many bytes"),
    415: (Unsupported, "the registry does not take this media type"),
    416: (ShortBody, "the registry says that the range lies outside"),
    421: (Busy, "the request reached a wrong server"),
    425: (Busy, "the registry wants the request later"),
    429: (Busy, "the registry limits requests"),
    501: (Unsupported, "the registry does not do this"),
    503: (Busy, "the registry is overloaded or restarts"),
}


@dataclass(frozen=True, slots=True)
class Complaint:
    """What an error body says: the registry's code, its message (cleaned), and the digests that its details name."""

    code: str = ""
    message: str = ""
    digests: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return ": ".join(part for part in (self.code, self.message) if part)


def from_curl(code: int, message: str, where: str, errno: int = 0, began: bool = False) -> TonneError:
    """The error for a libcurl code.  `began`: bytes of the body had arrived."""
    why = clean(message) or f"libcurl error {code}"
    if code in (pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_COULDNT_RESOLVE_PROXY):
        return UnknownHost("cannot resolve the host", where=where, why=why)
    if code == pycurl.E_OPERATION_TIMEDOUT:  # the only time-out that libcurl is given is the one to connect
        return Unreachable("no connection in time", where=where, why=why)
    if code == pycurl.E_PARTIAL_FILE:
        return ShortBody("the connection ended before the body did", where=where, why=why)
    cut = errno in (os_errno.ECONNRESET, os_errno.EPIPE, os_errno.ECONNREFUSED)
    if code in _TLS and not (code == pycurl.E_SSL_CONNECT_ERROR and cut):
        return TlsFailure("no trusted connection", where=where, why=why)
    if code in _PROTOCOL:
        return ProtocolError("the answer does not follow the protocol", where=where, why=why)
    if "CONNECT tunnel failed" in message:
        todo = "check the proxy in the environment, its rules and its password"
        return Unreachable("the proxy does not let the connection through", where=where, why=why, todo=todo)
    if code in _CUT or cut or began:
        return Unreachable("the connection was cut", where=where, why=why)
    return Unreachable("no connection", where=where, why=why)


_TLS = frozenset(
    (
        pycurl.E_SSL_CONNECT_ERROR,
        pycurl.E_PEER_FAILED_VERIFICATION,
        pycurl.E_SSL_CACERT_BADFILE,
        pycurl.E_SSL_CERTPROBLEM,
        pycurl.E_SSL_CIPHER,
        pycurl.E_SSL_ISSUER_ERROR,
        pycurl.E_USE_SSL_FAILED,
        pycurl.E_SSL_ENGINE_NOTFOUND,
        pycurl.E_SSL_ENGINE_SETFAILED,
    )
)
_CUT = frozenset(
    (
        pycurl.E_GOT_NOTHING,
        pycurl.E_SEND_ERROR,
        pycurl.E_RECV_ERROR,
        pycurl.E_SEND_FAIL_REWIND,
        pycurl.E_HTTP2,
        92,  # CURLE_HTTP2_STREAM, for which pycurl has no name; the numbers are libcurl's interface and stay
    )
)
_PROTOCOL = frozenset(
    (
        pycurl.E_UNSUPPORTED_PROTOCOL,
        pycurl.E_URL_MALFORMAT,
        pycurl.E_FTP_WEIRD_SERVER_REPLY,  # code 8: also what is no HTTP answer
        pycurl.E_BAD_CONTENT_ENCODING,
        100,  # CURLE_TOO_LARGE: headers beyond libcurl's limit
    )
)


def from_status(kind: Kind, head: Head, body: bytes, where: str, clock: Clock, what: str = "") -> TonneError:
    """The error for a response that is no success.

    Args:
        body: as much of the body as was kept.
        where: whom to blame, such as the registry's host and repository.
        what: what was being done, for the message; the class decides when empty.
    """
    status = head.status
    complaint = parse_complaint(body, head.media_type)
    fields: dict[str, Any] = {"status": status}
    if complaint.code:
        fields["registry_code"] = complaint.code
    cls, reason = _classify(kind, status, complaint, _is_page(head, body))
    if issubclass(cls, Busy):
        wait_s = parse_retry_after(head.first("retry-after"), clock.wall_s())
        if wait_s is not None:
            fields["retry_after_s"] = round(wait_s, 3)
    if issubclass(cls, MissingBlob) and complaint.digests:
        fields["digests"] = " ".join(complaint.digests)
    why = f"status {status}" + (f", {complaint.text}" if complaint.text else "")
    return cls(f"{what}: {reason}" if what else reason, where=where, why=why, **fields)


def _classify(kind: Kind, status: int, complaint: Complaint, page: bool) -> tuple[type[TonneError], str]:
    if 500 <= status < 600:
        return _BY_STATUS.get(status, (ServerError, "the registry failed"))
    if status in (401, 407, 413, 429):  # here the status says more than any code
        return _BY_STATUS[status]
    if complaint.code in _BY_CODE:
        return _BY_CODE[complaint.code]
    if page and status in (200, 404, 405):
        return ProtocolError, "a web page answers, not a registry"
    if status == 404 or (status == 410 and kind is not Kind.TOKEN):
        return _MISSING[kind]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 400 <= status < 500:
        return Refused, "the registry refuses the request"
    return ProtocolError, "the registry answers with an unexpected status"


def _is_page(head: Head, body: bytes) -> bool:
    start = body[:64].lstrip().lower()
    return head.media_type == "text/html" or start.startswith((b"<!doctype html", b"<html"))


def parse_complaint(body: bytes, media_type: str = "") -> Complaint:
    """What an error body says, in the form of the distribution spec, of a token server or of S3; empty otherwise."""
    text = body.decode("utf-8", "replace")
    if "<Code>" in text:
        found = dict(_XML.findall(text))
        return Complaint(clean(found.get("Code", "")), clean(found.get("Message", "")))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # A body cut at the limit is not JSON any more; the first code and message still stand at its start.
        code = re.search(r'"code"\s*:\s*"([A-Z_]{1,64})"', text)
        if code:
            return Complaint(code[1], "", _digests(text))
        return Complaint(message=clean(text)) if media_type == "text/plain" else Complaint()
    if not isinstance(document, dict):
        return Complaint()
    errors = document.get("errors")
    if isinstance(errors, list) and errors and all(isinstance(item, dict) for item in errors):
        first = errors[0]
        details = " ".join(json.dumps(item.get("detail")) + " " + str(item.get("message")) for item in errors)
        return Complaint(clean(_text(first.get("code"))), clean(_text(first.get("message"))), _digests(details))
    message = document.get("error_description") or document.get("details") or document.get("message")
    return Complaint(clean(_text(document.get("error"))), clean(_text(message)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _digests(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_DIGEST.findall(text)))[:_DETAIL_DIGESTS_MAX]


def clean(text: str) -> str:
    """Somebody else's text, fit to be quoted in one line."""
    text = "".join(char if char.isprintable() else " " for char in text[: 4 * MESSAGE_CHARS_MAX])
    text = without_secrets(" ".join(text.split()))
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"
