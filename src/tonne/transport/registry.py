"""One registry: requests with credentials, redirects and renewal; what repositories of it share.

Redirects are followed here, never by libcurl: credentials go to the registry's own scheme, host and port and to no
other.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from urllib.parse import urljoin, urlsplit

from tonne.clock import SYSTEM_CLOCK, Clock, Deadline
from tonne.errors import ProtocolError, TonneError, Unsupported
from tonne.model import Blob
from tonne.settings import NetworkSettings
from tonne.transport.bodies import Body
from tonne.transport.channel import Receiver, Request
from tonne.transport.client import Client, Collect
from tonne.transport.credentials import HUB_HOSTS
from tonne.transport.failures import Kind, from_status
from tonne.transport.fields import Head, is_loopback, parse_date, split_origin
from tonne.transport.ranges import RangeReceiver
from tonne.transport.redirects import RedirectCache, Target, life_of
from tonne.transport.tokens import Authorizer, Scopes

AUTHORIZATIONS_MAX = 2  # of one request that are answered 401; a token may end just before it is used
REDIRECTS_MAX = 5  # registry, content network and storage are two; a circle ends here
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024  # what an answer that is no blob may have, unless the caller says otherwise
HUB_ENDPOINT = "registry-1.docker.io"  # docker.io itself shows web pages
_DENIED = frozenset((401, 403, 410))  # what storage answers to a signature that has expired
_REDIRECTS = frozenset((301, 302, 303, 307, 308))


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the registry.

    Args:
        url: absolute, or a path that begins with ``/v2/``.
        where: whom errors blame.
        accept: the statuses that are no errors.
        what: what is being done, for messages.
        patience: factor on the stall time-out, for requests on which registries work long.
    """

    kind: Kind
    method: str
    url: str
    where: str
    scopes: Scopes
    accept: Container[int]
    what: str
    headers: tuple[tuple[str, str], ...] = ()
    body: Body | None = None
    limit_bytes: int = DOCUMENT_BYTES_MAX
    patience: float = 1.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An accepted response.  `url` is the one that answered, after redirects; it may be signed."""

    head: Head
    body: bytes
    url: str


class Registry:
    """A registry under one host name.  Safe to call from any thread; shared by all repositories of it.

    After an error it may be used on.  Nothing survives a crash, and nothing needs to.
    """

    def __init__(self, host: str, network: NetworkSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.host = host
        self.network = network
        self.clock = clock
        bare = split_origin(f"http://{host}")[1]
        # A registry on this machine speaks plain HTTP, unless an authority is given, which it would not need then.
        plain = network.plain_http or (is_loopback(bare) and network.ca_file is None)
        self.base = f"{'http' if plain else 'https'}://{HUB_ENDPOINT if host in HUB_HOSTS else host}"
        self._origin = split_origin(self.base)
        self._client = Client(network, clock)
        self._authorizer = Authorizer(self._client, host)
        self._redirects = RedirectCache(clock, network.renew)

    def call(self, call: Call, deadline: Deadline) -> Reply:
        """Carry out a request whose answer is small; raises what its status means unless it is accepted."""
        collect = Collect(call.where, call.limit_bytes, announces_only=call.method == "HEAD")
        request = Request(call.method, urljoin(self.base, call.url), call.where, call.headers, call.body)
        head, url = self._follow(request, collect, call.scopes, deadline, call.patience)
        body = bytes(collect.body)
        if head.status not in call.accept:
            raise from_status(call.kind, head, body, self._blame(call.where, url), self.clock, call.what)
        return Reply(head, body, url)

    def read(self, repository: str, blob: Blob, offset_bytes: int, out: memoryview, deadline: Deadline) -> None:
        """Fill `out` with a blob's bytes from `offset_bytes` on; not verified.

        A target that was redirected to earlier is asked first.  When it denies, it has expired: the registry is asked
        for a new one, once, by one thread for all.
        """
        where = f"{self.host}/{repository}"
        receiver = RangeReceiver(blob.size_bytes, offset_bytes, out, where)
        url = f"{self.base}/v2/{repository}/blobs/{blob.digest}"
        headers = () if receiver.whole else (("Range", receiver.range),)
        request = Request("GET", url, where, (*headers, ("Accept-Encoding", "identity")))
        try:
            self._read_once(request, receiver, repository, deadline)
        except Unsupported:
            # Harbor's proxy cache answers a miss with everything and ranges afterwards, so one is not the last word.
            if not receiver.ignored:
                raise
            self._read_once(request, receiver, repository, deadline)

    def close(self) -> None:
        self._client.close()

    # --- blobs ------------------------------------------------------------------------------------------------------

    def _read_once(self, request: Request, receiver: RangeReceiver, repository: str, deadline: Deadline) -> None:
        scopes = (f"repository:{repository}:pull",)
        key = request.url
        target = self._redirects.get(key)
        if target is not None:
            try:
                head, url = self._elsewhere(request, receiver, target.url, scopes, deadline)
                if head.status not in _DENIED or not self.network.renew:
                    self._settle(head, url, receiver, request)
                    return
            except TonneError:
                # Who tries again shall ask the registry: the storage may have moved, or the blob in it.
                if self.network.renew:
                    self._redirects.drop(key, target)
                raise
            self._redirects.drop(key, target)
        # The second denial of one read is real.
        for last in (False, True) if target is None else (True,):
            found = self._renew_target(request, receiver, scopes, deadline)
            if found is None:
                return
            head, url = self._elsewhere(request, receiver, found.url, scopes, deadline)
            if head.status not in _DENIED or last or not self.network.renew:
                self._settle(head, url, receiver, request)
                return
            # Expired on its way to us, or while we waited for it: a registry behind a cache may hand out old ones.
            self._redirects.drop(key, found)

    def _renew_target(
        self, request: Request, receiver: RangeReceiver, scopes: Scopes, deadline: Deadline
    ) -> Target | None:
        """Where the blob is now; None when the registry sent the bytes itself, which are then in the receiver."""
        key = request.url
        with self._redirects.asking(key, deadline, request.where):
            target = self._redirects.get(key)
            if target is not None:  # somebody has asked while we waited
                return target
            head, url = self._ask_target(request, receiver, scopes, deadline)
            if url is not None:
                issued_s = parse_date(head.first("date"))
                life_s = life_of(url, self.clock.wall_s() if issued_s is None else issued_s)
                return self._redirects.put(key, url, life_s)
        self._settle(head, request.url, receiver, request)
        self._redirects.put_direct(key)
        return None

    def _ask_target(
        self, request: Request, receiver: RangeReceiver, scopes: Scopes, deadline: Deadline
    ) -> tuple[Head, str | None]:
        """Ask the registry for a blob: either it sends the bytes (None) or names another place."""
        for _ in range(REDIRECTS_MAX):
            head = self._authorised(request, receiver, scopes, deadline, 1.0)
            target = self._target(head, request)
            if target is None or split_origin(target) != self._origin:
                return head, target
            request = replace(request, url=target)
        raise ProtocolError("too many redirects", where=request.where)

    def _elsewhere(
        self, request: Request, receiver: Receiver, url: str, scopes: Scopes, deadline: Deadline
    ) -> tuple[Head, str]:
        headers = request.headers
        if urlsplit(url).scheme == "https" or self._origin[0] == "http":
            headers = (*headers, ("Referer", request.url))  # some content networks want it; it holds no secret
        return self._follow(replace(request, url=url, headers=headers), receiver, scopes, deadline, 1.0)

    def _settle(self, head: Head, url: str, receiver: RangeReceiver, request: Request) -> None:
        if head.status in (200, 206):
            receiver.finish()
            return
        raise from_status(
            Kind.BLOB, head, bytes(receiver.body), self._blame(request.where, url), self.clock, "cannot read a blob"
        )

    # --- all requests -----------------------------------------------------------------------------------------------

    def _follow(
        self, request: Request, receiver: Receiver, scopes: Scopes, deadline: Deadline, patience: float
    ) -> tuple[Head, str]:
        for _ in range(REDIRECTS_MAX + 1):
            if split_origin(request.url) == self._origin:
                head = self._authorised(request, receiver, scopes, deadline, patience)
            else:
                head = self._client.exchange(request, receiver, deadline, patience)
            target = self._target(head, request)
            if target is None:
                return head, request.url
            request = replace(request, url=target)
        raise ProtocolError("too many redirects", where=request.where)

    def _authorised(
        self, request: Request, receiver: Receiver, scopes: Scopes, deadline: Deadline, patience: float
    ) -> Head:
        """Send with what the registry wants; after a 401 once more with what it wants then.

        The body is sent again from its start, so callers keep it until it is acknowledged.
        """
        fresh = False
        refused = 0
        while True:
            sent = self._authorizer.header(scopes, deadline)
            headers = (*request.headers, ("Authorization", sent)) if sent else request.headers
            head = self._client.exchange(replace(request, headers=headers), receiver, deadline, patience)
            refused += bool(sent)
            if head.status != 401 or not self._authorizer.challenged(head, scopes, sent, fresh, deadline):
                return head
            if refused == AUTHORIZATIONS_MAX:
                return head
            fresh = True

    def _target(self, head: Head, request: Request) -> str | None:
        """Where a response redirects to, None when it does not."""
        if head.status not in _REDIRECTS:
            return None
        if request.method not in ("GET", "HEAD") and head.status not in (307, 308):
            return None  # these would have to become a GET, which no registry means
        try:
            if not head.first("location"):
                raise ValueError("no Location")
            target = urljoin(request.url, head.first("location"))
            split_origin(target)
        except ValueError:
            raise ProtocolError("a redirect leads nowhere", where=request.where, why=f"status {head.status}") from None
        return target

    def _blame(self, where: str, url: str) -> str:
        origin = split_origin(url)
        return where if origin == self._origin else f"{where} (at {origin[1]})"
