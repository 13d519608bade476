"""Requests about one repository: what its source side and its upload sessions share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from tonne.clock import Deadline
from tonne.errors import ProtocolError, Unavailable
from tonne.model import Digest
from tonne.transport.backoff import Backoff
from tonne.transport.bodies import Body
from tonne.transport.failures import Kind
from tonne.transport.registry import Call, Registry, Reply

COMMIT_PATIENCE = 10.0  # a registry on object storage copies the blob before it answers: minutes for some GiB
_T = TypeVar("_T")


class RepositoryCalls:
    """A repository's name in its registry, with the scopes that requests need.  Immutable; any thread."""

    def __init__(self, registry: Registry, repository: str) -> None:
        self.registry = registry
        self.repository = repository
        self.where = f"{registry.host}/{repository}"
        self.path = f"/v2/{repository}"
        self.pull = (f"repository:{repository}:pull",)
        self.push = (f"repository:{repository}:pull,push",)
        self.backoff = Backoff.of(registry.network)

    def call(
        self,
        kind: Kind,
        method: str,
        url: str,
        accept: tuple[int, ...],
        what: str,
        deadline: Deadline,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        body: Body | None = None,
        scopes: tuple[str, ...] = (),
        limit_bytes: int | None = None,
    ) -> Reply:
        """One request.  Reads ask for the right to pull, everything else for the right to push, unless told."""
        scopes = scopes or (self.pull if method in ("GET", "HEAD") else self.push)
        patience = COMMIT_PATIENCE if method == "PUT" else 1.0
        limit_bytes = self.registry.network.manifest_bytes_max if limit_bytes is None else limit_bytes
        call = Call(kind, method, url, self.where, scopes, accept, what, headers, body, limit_bytes, patience)
        return self.registry.call(call, deadline)

    def insist(self, deadline: Deadline, work: Callable[[], _T], attempts_max: int | None = None) -> _T:
        """Try `work` by the network's policy; for requests that may be repeated without harm."""
        policy = self.backoff
        if attempts_max is not None:
            policy = replace(policy, attempts=min(policy.attempts, attempts_max))
        tries = policy.tries(self.registry.clock, deadline)
        while True:
            try:
                return work()
            except Unavailable as error:
                tries.failed(error)

    def blob_size(self, digest: Digest, deadline: Deadline, scopes: tuple[str, ...]) -> int | None:
        """A blob's length in bytes from a HEAD, None when it is not there."""
        url, what = f"{self.path}/blobs/{digest}", "cannot look for a blob"
        head = self.call(Kind.BLOB, "HEAD", url, (200, 404), what, deadline, scopes=scopes).head
        if head.status == 404:
            return None
        if head.length_bytes is None:
            raise ProtocolError("the registry does not say how long a blob is", where=self.where, digest=digest)
        return head.length_bytes

    def location(self, reply: Reply) -> str:
        """The Location of an upload as an absolute URL, empty when there is none.

        A registry behind a proxy that ends TLS often names itself by ``http``: our own scheme then stays.
        """
        text = reply.head.first("location")
        if not text:
            return ""
        base = urlsplit(self.registry.base)
        try:
            target = urlsplit(urljoin(reply.url, text))
            hostname, port = target.hostname, target.port
        except ValueError:
            hostname, port, target = None, None, base
        if not hostname or target.scheme not in ("http", "https"):
            raise ProtocolError("the registry names no usable place for an upload", where=self.where)
        downgraded = target.scheme == "http" and base.scheme == "https" and hostname == base.hostname
        if downgraded and port in (None, 80, base.port):
            target = target._replace(scheme="https", netloc=base.netloc)
        return target.geturl()


def with_query(url: str, name: str, value: str) -> str:
    """`url` with one more query parameter; what is there stays as it is, since it may be signed."""
    parts = urlsplit(url)
    if any(key == name for key, _ in parse_qsl(parts.query, keep_blank_values=True)):
        return url
    added = urlencode({name: value})
    return urlunsplit(parts._replace(query=f"{parts.query}&{added}" if parts.query else added))
