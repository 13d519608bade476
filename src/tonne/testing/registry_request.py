"""What a registry was asked, told apart by kind.

Source: OCI distribution-spec v1.1, "Endpoints".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

KINDS = (
    "ping",
    "token",
    "catalog",
    "tags",
    "referrers",
    "manifest-get",
    "manifest-head",
    "manifest-put",
    "manifest-delete",
    "blob-get",
    "blob-head",
    "blob-delete",
    "blob-mount",
    "upload-start",
    "upload-patch",
    "upload-status",
    "upload-finish",
    "upload-cancel",
    "store-get",
    "store-head",
    "loop",
    "stats",
    "other",
)
"""`store-…` are of the object store that blob GETs are redirected to; `upload-start` may carry a whole blob
(``?digest=``); `loop` is where `RedirectLoop` leads; `stats` is not recorded."""

_UPLOAD_VERBS = {"PATCH": "upload-patch", "GET": "upload-status", "PUT": "upload-finish", "DELETE": "upload-cancel"}
_ROUTES = (
    ("upload-start", re.compile(r"/v2/(.+)/blobs/uploads/?()\Z")),
    ("upload", re.compile(r"/v2/(.+)/blobs/uploads/([^/]+)\Z")),
    ("blob", re.compile(r"/v2/(.+)/blobs/([^/]+)\Z")),
    ("manifest", re.compile(r"/v2/(.+)/manifests/([^/]+)\Z")),
    ("tags", re.compile(r"/v2/(.+)/tags/list()\Z")),
    ("referrers", re.compile(r"/v2/(.+)/referrers/([^/]+)\Z")),
    ("store", re.compile(r"()/blobs/([^/]+)\Z")),
)
_PLAIN = {"/v2/": "ping", "/v2": "ping", "/token": "token", "/v2/_catalog": "catalog", "/testing/stats": "stats"}
_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)\Z")


@dataclass(frozen=True, slots=True)
class Request:
    """One request's head.  Header names are lower case; `subject` is a digest, a tag or an upload's id, by kind."""

    method: str
    target: str
    headers: Mapping[str, str]
    path: str
    query: Mapping[str, str]
    kind: str
    repository: str = ""
    subject: str = ""
    scopes: tuple[str, ...] = field(default=())  # of a token request: `scope` may stand there several times

    @property
    def has_body(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "") or self.headers.get("content-length", "0") != "0"

    def range_of(self, size_bytes: int) -> tuple[int, int] | None:
        """The bytes asked of a body of that size as (start, end); None when the whole is asked.

        An empty range (start == end) is one that cannot be satisfied.  RFC 9110 section 14: what is not understood,
        several ranges too, is ignored.
        """
        found = _RANGE.match(self.headers.get("range", ""))
        if not found or (not found[1] and not found[2]):
            return None
        if not found[1]:
            return max(0, size_bytes - int(found[2])), size_bytes
        start = int(found[1])
        end = min(int(found[2]) + 1, size_bytes) if found[2] else size_bytes
        return (start, end) if start < end else (start, start)


def parse_request(method: str, target: str, headers: Mapping[str, str], *, store: bool) -> Request:
    """Tell what a request is; `store` for one that came to the object store's port."""
    parts = urlsplit(target)
    path = unquote(parts.path)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    kind, repository, subject = _classify(method, path, dict(pairs), store)
    scopes = tuple(value for name, value in pairs if name == "scope")
    return Request(method, target, headers, path, dict(pairs), kind, repository, subject, scopes)


def _classify(method: str, path: str, query: Mapping[str, str], store: bool) -> tuple[str, str, str]:
    verb = method.lower()
    if path in _PLAIN:
        return _PLAIN[path], "", ""
    if path.startswith("/loop/"):
        return "loop", "", path[6:]
    for route, pattern in _ROUTES:
        found = pattern.match(path)
        if not found or (route == "store") != store:
            continue
        kind = f"{route}-{verb}"
        if route == "upload-start":
            kind = ("blob-mount" if "mount" in query else route) if method == "POST" else "other"
        elif route == "upload":
            kind = _UPLOAD_VERBS.get(method, "other")
        elif route in ("tags", "referrers"):
            kind = route if method == "GET" else "other"
        return (kind if kind in KINDS else "other"), found[1], found[2]
    return "other", "", ""
