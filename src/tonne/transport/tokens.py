"""Authorization for one registry: Basic, or Bearer with tokens that are renewed before they expire.

Source: distribution docs/spec/auth/token.md and oauth.md.  A token of which the life is not said lives 60 s.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode, urlsplit

from tonne.clock import Deadline
from tonne.errors import Corrupt, CorruptDocument, DeadlineExceeded, ProtocolError, TonneError, Unauthenticated
from tonne.transport.bodies import MemoryBody
from tonne.transport.challenge import parse_challenges
from tonne.transport.channel import Request
from tonne.transport.client import Client, Collect
from tonne.transport.credentials import Credentials, find_credentials
from tonne.transport.documents import parse_object
from tonne.transport.failures import Kind, clean, from_status
from tonne.transport.fields import Head, is_loopback, split_origin

TOKEN_BYTES_MAX = 64 * 1024
TOKEN_LIFE_S = 60.0  # the specification's value where the answer has none
TOKEN_LIFE_S_MAX = 7 * 86400.0
MARGIN_S_MAX = 60.0  # renewed so long before the end, or a fifth of the life if that is shorter
MARGIN_SHARE = 0.2
CLIENT_ID = "tonne"

Scopes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Realm:
    url: str
    service: str


@dataclass(frozen=True, slots=True)
class _Token:
    header: str = field(repr=False)
    renew_at_s: float  # on the client's clock
    expires_at_s: float


class Authorizer:
    """What to send as Authorization to one registry, learned from its challenges.

    Safe to call from any thread.  One lock guards what is known; one lock for each set of scopes is held while its
    token is fetched, so that there is one renewal for all who wait; who still has a valid token does not wait.  After
    an error nothing is forgotten: the next call tries again.
    """

    def __init__(self, client: Client, host: str) -> None:
        self._client = client
        self._clock = client.clock
        self._network = client.network
        self._host = host
        self._lock = threading.Lock()
        self._realm: _Realm | None = None
        self._basic = False
        self._credentials: Credentials | None = None
        self._looked_up = False
        self._tokens: dict[Scopes, _Token] = {}
        self._extra: dict[Scopes, Scopes] = {}  # what a challenge asked for beyond the scopes that we named
        self._renewing: dict[Scopes, threading.Lock] = {}

    def header(self, scopes: Scopes, deadline: Deadline) -> str:
        """The value for Authorization; empty before the registry asked for one."""
        if self._network.token:
            return f"Bearer {self._network.token}"
        with self._lock:
            realm, basic = self._realm, self._basic
        if realm is not None:
            return self._token(realm, scopes, deadline).header
        return self._who(deadline).basic if basic else ""

    def challenged(self, head: Head, scopes: Scopes, sent: str, fresh: bool, deadline: Deadline) -> bool:
        """Learn from a 401 to a request that carried `sent`; whether trying once more can help.

        `fresh`: what was sent was got for this very request, so getting it again changes nothing unless the challenge
        asks for more than was asked for, or says that the token itself is no good.

        With `renew` off, only the first challenge, to a request without credentials, counts.
        """
        if self._network.token or (sent and not self._network.renew):
            return False
        challenges = {item.scheme: item.parameters for item in reversed(parse_challenges(head.all("www-authenticate")))}
        if "bearer" in challenges:
            parameters = challenges["bearer"]
            realm = _Realm(self._checked(parameters.get("realm", "")), parameters.get("service", ""))
            asked = {item for item in parameters.get("scope", "").split() if not _covered(item, scopes)}
            with self._lock:
                self._realm = realm
                before = self._extra.get(scopes, ())
                more = not asked.issubset(before)
                self._extra[scopes] = tuple(sorted(asked.union(before)))
                known = self._tokens.get(scopes)
                if known is not None and known.header == sent:
                    del self._tokens[scopes]
            # RFC 6750, section 3.1: expired, revoked or malformed, and not that it allows too little.
            return more or not fresh or parameters.get("error") == "invalid_token"
        if "basic" in challenges:
            with self._lock:
                self._basic = True
                old = self._credentials
                if sent:
                    self._looked_up = False  # a helper's passwords expire too (ECR's after 12 hours)
            who = self._who(deadline)
            return bool(who.basic) and (not sent or who != old)
        return False

    def _checked(self, realm: str) -> str:
        """A realm that may get our password: https, or what a plain registry on this machine or network names."""
        try:
            scheme, hostname, _ = split_origin(realm)
        except ValueError:
            scheme, hostname = "", ""
        if scheme != "https" and not (hostname and (self._network.plain_http or is_loopback(hostname))):
            raise ProtocolError("the registry names no safe address for tokens", where=self._host, why=clean(realm))
        return realm

    def _who(self, deadline: Deadline) -> Credentials:
        with self._lock:
            if self._looked_up:
                return self._credentials or Credentials()
        found = find_credentials(self._network, self._host, deadline)
        with self._lock:
            self._credentials, self._looked_up = found, True
        return found or Credentials()

    def _token(self, realm: _Realm, scopes: Scopes, deadline: Deadline) -> _Token:
        known, lock = self._look(scopes)
        now_s = self._clock.now_s()
        if known is not None and (now_s < known.renew_at_s or not self._network.renew):
            return known
        valid = known is not None and now_s < known.expires_at_s
        if not lock.acquire(blocking=False):
            if valid and known is not None:
                return known
            left_s = deadline.left_s()
            if not lock.acquire(timeout=-1 if left_s is None else left_s):
                raise DeadlineExceeded("no token in time", where=self._host)
        try:
            newer, _ = self._look(scopes)
            if newer is not None and newer is not known and self._clock.now_s() < newer.expires_at_s:
                return newer
            try:
                token = self._fetch(realm, scopes, deadline)
            except TonneError:
                if valid and known is not None and self._clock.now_s() < known.expires_at_s:
                    return known  # renewing was early, so its failure is not the request's yet
                raise
            with self._lock:
                self._tokens[scopes] = token
            return token
        finally:
            lock.release()

    def _look(self, scopes: Scopes) -> tuple[_Token | None, threading.Lock]:
        with self._lock:
            return self._tokens.get(scopes), self._renewing.setdefault(scopes, threading.Lock())

    def _fetch(self, realm: _Realm, scopes: Scopes, deadline: Deadline) -> _Token:
        who = self._who(deadline)
        with self._lock:
            wanted = (*scopes, *self._extra.get(scopes, ()))
        if who.identity_token:
            head, body = self._post(
                realm, wanted, {"grant_type": "refresh_token", "refresh_token": who.identity_token}, deadline
            )
        else:
            head, body = self._get(realm, wanted, who, deadline)
            if head.status == 405 and who.username:  # a server of the OAuth 2 form alone
                form = {"grant_type": "password", "username": who.username, "password": who.password}
                head, body = self._post(realm, wanted, form, deadline)
        where = f"{urlsplit(realm.url).hostname} (tokens for {self._host})"
        if head.status in (400, 401) and not who.username and not who.identity_token:
            raise Unauthenticated(
                "the registry wants credentials and there are none", where=self._host, why=f"status {head.status}"
            )
        if head.status in (400, 401):
            with self._lock:
                self._looked_up = False  # who logs in again meanwhile is heard
            error = from_status(Kind.TOKEN, replace(head, status=401), body, where, self._clock)
            raise Unauthenticated(error.what, where=self._host, why=error.why, **error.fields)
        if not 200 <= head.status < 300:
            raise from_status(Kind.TOKEN, head, body, where, self._clock, "cannot get a token")
        return self._parse(body, where)

    def _parse(self, body: bytes, where: str) -> _Token:
        try:
            document = parse_object(body, where)
        except CorruptDocument:
            raise ProtocolError("the answer to the request for a token cannot be read", where=where) from None
        text = document.get("token") or document.get("access_token")
        if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
            raise ProtocolError("the answer to the request for a token has none", where=where)
        said = document.get("expires_in")
        numeric = isinstance(said, (int, float)) and not isinstance(said, bool) and said > 0
        life_s = min(float(said), TOKEN_LIFE_S_MAX) if numeric and isinstance(said, (int, float)) else TOKEN_LIFE_S
        now_s = self._clock.now_s()
        # A little chance in the margin, so that the nodes of a fleet do not renew in step.
        margin_s = min(MARGIN_S_MAX, life_s * MARGIN_SHARE) * random.uniform(1.0, 1.25)
        return _Token(f"Bearer {text}", now_s + life_s - margin_s, now_s + life_s)

    def _get(self, realm: _Realm, scopes: Iterable[str], who: Credentials, deadline: Deadline) -> tuple[Head, bytes]:
        query = [("service", realm.service)] if realm.service else []
        query += [("scope", scope) for scope in scopes]
        if who.username:
            query.append(("account", who.username))
        separator = "&" if urlsplit(realm.url).query else "?"
        headers = (("Authorization", who.basic),) if who.basic else ()
        return self._ask(Request("GET", realm.url + separator + urlencode(query), self._host, headers), deadline)

    def _post(
        self, realm: _Realm, scopes: Iterable[str], form: dict[str, str], deadline: Deadline
    ) -> tuple[Head, bytes]:
        fields = {**form, "service": realm.service, "client_id": CLIENT_ID, "scope": " ".join(scopes)}
        headers = (("Content-Type", "application/x-www-form-urlencoded"),)
        return self._ask(
            Request("POST", realm.url, self._host, headers, MemoryBody(urlencode(fields).encode())), deadline
        )

    def _ask(self, request: Request, deadline: Deadline) -> tuple[Head, bytes]:
        collect = Collect(request.where, TOKEN_BYTES_MAX)
        try:
            head = self._client.exchange(request, collect, deadline)
        except Corrupt as error:
            # No bytes of an image are concerned: for those who want to know whether to try again it is no token.
            what = "the answer to the request for a token cannot be read"
            raise ProtocolError(what, where=error.where, why=error.what) from None
        return head, bytes(collect.body)


def _covered(scope: str, scopes: Scopes) -> bool:
    """Whether `scopes` ask for all that `scope` does (``repository:ml/bert:pull,push``)."""
    name, _, actions = scope.rpartition(":")
    for own in scopes:
        own_name, _, own_actions = own.rpartition(":")
        if own_name == name and set(actions.split(",")) <= set(own_actions.split(",")):
            return True
    return False
