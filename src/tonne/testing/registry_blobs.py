"""Blobs of a fault registry: reading, redirecting to the object store, deleting."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import urlencode

from tonne.clock import Clock
from tonne.testing.registry_actions import Exchange, store_denied
from tonne.testing.registry_body import Content, Response, error
from tonne.testing.registry_contents import Contents
from tonne.testing.registry_rules import Rules


class Signer:
    """Makes the object store's URLs and knows them again.  The key lasts as long as the object."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(16)

    def _signature(self, digest: str, expires: str) -> str:
        return hmac.new(self._key, f"{digest}\n{expires}".encode(), hashlib.sha256).hexdigest()

    def query(self, digest: str, life_s: float) -> str:
        expires = f"{self._clock.now_s() + life_s:.3f}"
        return urlencode({"X-Expires": expires, "X-Signature": self._signature(digest, expires)})

    def denial(self, digest: str, expires: str, signature: str) -> Response | None:
        """None when the URL is good."""
        if not hmac.compare_digest(signature, self._signature(digest, expires)):
            return store_denied("The signature does not match")
        if float(expires) <= self._clock.now_s():
            return store_denied("Request has expired")
        return None


def read(exchange: Exchange, content: Content, digest: str, rules: Rules) -> Response:
    """A blob, or the range of it that was asked: RFC 9110 section 14."""
    request = exchange.request
    headers = {"Content-Type": "application/octet-stream", "Docker-Content-Digest": digest, "ETag": f'"{digest}"'}
    head_only = request.method == "HEAD"
    wanted = None if exchange.ignore_range or not rules.ranges else request.range_of(content.size_bytes)
    if wanted is None:
        return Response(200, headers, content, head_only=head_only)
    start, end = wanted
    if start == end:
        size = {"Content-Range": f"bytes */{content.size_bytes}"}
        return error(416, "RANGE_INVALID", "the range lies outside the blob", headers=size)
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{content.size_bytes}"
    return Response(206, headers, content, start, end - start, head_only=head_only)


class BlobRoutes:
    """Answers of both ports to requests for blobs.  Any thread may call; it holds no state of its own."""

    def __init__(self, contents: Contents, rules: Rules, signer: Signer) -> None:
        self._contents, self._rules, self._signer = contents, rules, signer

    def get(self, exchange: Exchange, store_url: str) -> Response:
        """GET and HEAD at the registry."""
        request = exchange.request
        digest = request.subject
        content = self._contents.blob(request.repository, digest)
        if content is None:
            return _unknown(digest, request.method == "HEAD")
        if self._rules.redirect and request.method == "GET":
            life_s = self._rules.redirect_life_s if exchange.redirect_life_s is None else exchange.redirect_life_s
            location = f"{store_url}/blobs/{digest}?{self._signer.query(digest, life_s)}"
            return Response(self._rules.redirect_status, {"Location": location})
        return read(exchange, content, digest, self._rules)

    def store_get(self, exchange: Exchange) -> Response:
        """GET and HEAD at the object store."""
        request = exchange.request
        digest = request.subject
        query = request.query
        denial = self._signer.denial(digest, query.get("X-Expires", "0"), query.get("X-Signature", ""))
        if denial is not None:
            return denial
        if "authorization" in request.headers:
            # What S3 says to a signed URL with credentials on top.
            return Response(400, {"Content-Type": "application/xml"})
        content = self._contents.any_blob(digest)
        if content is None:
            return Response(404, {"Content-Type": "application/xml"})
        return read(exchange, content, digest, self._rules)

    def delete(self, exchange: Exchange) -> Response:
        request = exchange.request
        if not self._rules.can_delete:
            return error(405, "UNSUPPORTED", "deleting is switched off")
        if not self._contents.unlink(request.repository, request.subject):
            return _unknown(request.subject, False)
        return Response(202)


def _unknown(digest: str, head_only: bool) -> Response:
    response = error(404, "BLOB_UNKNOWN", "blob unknown to registry", {"digest": digest})
    response.head_only = head_only
    return response
