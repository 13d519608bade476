"""HTTP header fields that registries use, parsed into values.  Pure.

Sources: RFC 9110 (Content-Range 14.4, Retry-After 10.2.3, dates 5.6.7), RFC 8288 (Link), OCI distribution-spec v1.1
(the Range of an upload session, which unlike HTTP's has no unit).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin, urlsplit

_CONTENT_RANGE = re.compile(r"bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19}|\*)\Z", re.IGNORECASE)
_UPLOAD_RANGE = re.compile(r"(?:bytes[= ])?0-(-1|\d{1,19})\Z", re.IGNORECASE)
_LINK = re.compile(r'<([^<>]{1,4096})>((?:\s*;\s*[\w*!#$&+.^`|~-]+(?:\s*=\s*(?:"[^"]*"|[^\s",;]*))?)*)')
_REL_NEXT = re.compile(r';\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next(?=\s*(?:;|\Z)))', re.IGNORECASE)
_LOOPBACK = re.compile(r"(?:127(?:\.\d{1,3}){3}|localhost|.*\.localhost|::1)\Z", re.IGNORECASE)
RETRY_AFTER_S_MAX = 7 * 86400.0  # a date or number beyond a week is nonsense; bounded so that sums stay sane


@dataclass(frozen=True, slots=True)
class Head:
    """The status and header fields of a response; names in lower case, values in the order that they came."""

    status: int
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def first(self, name: str) -> str:
        """The first value of a field, empty when it is absent."""
        values = self.fields.get(name)
        return values[0] if values else ""

    def all(self, name: str) -> tuple[str, ...]:
        return self.fields.get(name, ())

    @property
    def length_bytes(self) -> int | None:
        """Content-Length, None when absent or no number."""
        text = self.first("content-length")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    @property
    def media_type(self) -> str:
        """Content-Type without its parameters, in lower case."""
        return self.first("content-type").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Bytes `first` to `last`, both included, of `total_bytes` (None: not said)."""

    first: int
    last: int
    total_bytes: int | None


def parse_content_range(text: str) -> ContentRange | None:
    """``bytes 0-9/100`` or ``bytes 0-9/*``; None when it is anything else or contradicts itself."""
    match = _CONTENT_RANGE.match(text.strip())
    if not match:
        return None
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if last < first or (total is not None and last >= total):
        return None
    return ContentRange(first, last, total)


def parse_upload_range(text: str) -> int | None:
    """The number of the last byte that an upload session holds (``0-<last>``); None when it cannot be read.

    ``0-0`` stands for one byte by the specification, but distribution answers it for none too.  ``0--1`` is none.
    """
    match = _UPLOAD_RANGE.match(text.strip())
    return int(match[1]) if match else None


def parse_retry_after(text: str, wall_s: float) -> float | None:
    """Seconds to wait, from a number of seconds or an HTTP date; None when absent or unreadable.  Never negative."""
    text = text.strip()
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text):
        return min(float(text), RETRY_AFTER_S_MAX)
    at_s = parse_date(text)
    return None if at_s is None else min(max(0.0, at_s - wall_s), RETRY_AFTER_S_MAX)


def parse_date(text: str) -> float | None:
    """An HTTP date as seconds since the epoch; None when it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def parse_next_link(values: tuple[str, ...], base: str) -> str | None:
    """The absolute URL of ``rel="next"`` in Link fields, None when there is no next page."""
    for value in values:
        for match in _LINK.finditer(value):
            if _REL_NEXT.search(match[2]):
                return str(urljoin(base, match[1]))
    return None


def split_origin(url: str) -> tuple[str, str, int]:
    """Scheme, host in lower case and port of an http(s) URL: what must be equal for credentials to go along.

    Raises ``ValueError`` for anything else.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http or https URL")
    return scheme, parts.hostname.lower(), parts.port or (443 if scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without port, means this machine."""
    return bool(_LOOPBACK.match(host.strip("[]")))
