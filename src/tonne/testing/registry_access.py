"""Who may do what in a fault registry: Basic credentials, bearer tokens with a life, scopes.

Source: distribution's docs/spec/auth/token.md, scope.md and oauth.md; RFC 6750 section 3 for `error` in a challenge.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from tonne.clock import Clock
from tonne.testing.registry_body import Response, document, error
from tonne.testing.registry_request import Request

SERVICE = "tonne-testing"
ANONYMOUS = ""  # the user of requests without credentials
_WRITES = frozenset({"upload-start", "upload-patch", "upload-status", "upload-finish", "upload-cancel", "blob-mount"})
_DELETES = frozenset({"manifest-delete", "blob-delete"})


@dataclass(slots=True)
class Auth:
    """How a registry asks for credentials.

    `rights` gives each user, and `ANONYMOUS`, the actions (pull, push, delete) for repositories by glob; a user who
    does not stand there may do everything, an anonymous one nothing.  `announced_s` is what `expires_in` says:
    None leaves it out, which means 60 s by the specification.  `field_name` is the token's in the answer.
    """

    users: dict[str, str] = field(default_factory=lambda: {"user": "secret"})
    scheme: str = "bearer"  # or "basic"
    token_life_s: float = 300.0
    announced_s: float | None = -1.0  # -1: the truth
    field_name: str = "token"
    rights: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    realm: str = ""  # "" for the registry's own /token


@dataclass(frozen=True, slots=True)
class _Grant:
    user: str
    scopes: Mapping[str, frozenset[str]]
    ends_s: float


def needed(request: Request) -> list[tuple[str, str]]:
    """The (repository, action) pairs that a request needs."""
    if not request.repository:
        return []
    pairs = [(request.repository, "pull")]
    if request.kind in _WRITES or request.kind == "manifest-put":
        pairs.append((request.repository, "push"))
    if request.kind in _DELETES:
        pairs.append((request.repository, "delete"))
    if request.kind == "blob-mount" and request.query.get("from"):
        pairs.append((request.query["from"], "pull"))
    return pairs


class Access:
    """Checks requests and gives out tokens.  Any thread may call; `_lock` guards the tokens.

    Tokens outlive a restart of the server, as signed ones do.
    """

    def __init__(self, auth: Auth, clock: Clock) -> None:
        self.auth = auth
        self._clock = clock
        self._lock = threading.Lock()
        self._grants: dict[str, _Grant] = {}

    # --- requests

    def check(self, request: Request, base_url: str) -> Response | None:
        """None when the request may go on, else the answer."""
        wanted = needed(request)
        if self.auth.scheme == "basic":
            user = self._basic(request.headers.get("authorization", ""))
            if user is None or (user == ANONYMOUS and not self._allowed(user, wanted)):
                return error(401, "UNAUTHORIZED", "authentication required", headers={"WWW-Authenticate": self._ask()})
            return None if self._allowed(user, wanted) else self._denied(wanted)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        with self._lock:
            grant = self._grants.get(token) if kind.lower() == "bearer" else None
        if grant is None or grant.ends_s <= self._clock.now_s():
            why = "invalid_token" if kind else ""
            return self._challenge(wanted, base_url, why)
        if all(action in grant.scopes.get(name, ()) for name, action in wanted):
            return None
        if self._allowed(grant.user, wanted):
            return self._challenge(wanted, base_url, "insufficient_scope")
        return self._denied(wanted)

    def revoke(self, request: Request) -> bool:
        """End the token that a request carries; False when it carries none that is valid."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        with self._lock:
            return kind.lower() == "bearer" and self._grants.pop(token, None) is not None

    def revoke_all(self) -> None:
        with self._lock:
            self._grants.clear()

    def _challenge(self, wanted: list[tuple[str, str]], base_url: str, why: str) -> Response:
        actions: dict[str, list[str]] = {}
        for name, action in wanted:
            actions.setdefault(name, []).append(action)
        scope = " ".join(f"repository:{name}:{','.join(found)}" for name, found in actions.items())
        challenge = f'Bearer realm="{self.auth.realm or base_url + "/token"}",service="{SERVICE}"'
        if scope:
            challenge += f',scope="{scope}"'
        if why:
            challenge += f',error="{why}"'
        return error(401, "UNAUTHORIZED", "authentication required", headers={"WWW-Authenticate": challenge})

    @staticmethod
    def _ask() -> str:
        return f'Basic realm="{SERVICE}"'

    @staticmethod
    def _denied(wanted: list[tuple[str, str]]) -> Response:
        return error(403, "DENIED", "requested access to the resource is denied", [list(pair) for pair in wanted])

    def _basic(self, header: str) -> str | None:
        """The user of Basic credentials, `ANONYMOUS` for none, None for wrong ones."""
        kind, _, encoded = header.partition(" ")
        if not kind:
            return ANONYMOUS
        if kind.lower() != "basic":
            return None
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return user if user and self.auth.users.get(user) == password else None

    def _allowed(self, user: str, wanted: list[tuple[str, str]]) -> bool:
        return all(action in self._actions(user, name) for name, action in wanted) and (bool(wanted) or bool(user))

    def _actions(self, user: str, repository: str) -> frozenset[str]:
        rights = self.auth.rights.get(user)
        if rights is None:
            return frozenset({"pull", "push", "delete"}) if user else frozenset()
        found: set[str] = set()
        for pattern, actions in rights.items():
            if fnmatch.fnmatchcase(repository, pattern):
                found |= actions
        return frozenset(found)

    # --- tokens

    def token(self, request: Request, form: bytes) -> Response:
        """Answer a request for a token, GET with Basic credentials or POST with a form."""
        if request.method == "POST":
            fields = {name: values[-1] for name, values in parse_qs(form.decode()).items()}
            scopes = tuple(fields.get("scope", "").split())
            user: str | None = fields.get("username", "")
            if fields.get("grant_type") != "password" or self.auth.users.get(user or "") != fields.get("password"):
                user = None
        else:
            user = self._basic(request.headers.get("authorization", ""))
            scopes = tuple(scope for text in request.scopes for scope in text.split())
        if user is None:
            return error(401, "UNAUTHORIZED", "wrong user or password", headers={"WWW-Authenticate": self._ask()})
        granted = {name: actions & self._actions(user, name) for name, actions in map(_parse_scope, scopes)}
        value = secrets.token_urlsafe(24)
        with self._lock:
            self._grants[value] = _Grant(user, granted, self._clock.now_s() + self.auth.token_life_s)
        body: dict[str, object] = {self.auth.field_name: value}
        if self.auth.announced_s is not None:
            announced_s = self.auth.token_life_s if self.auth.announced_s < 0 else self.auth.announced_s
            body["expires_in"] = int(announced_s) if announced_s == int(announced_s) else announced_s
        return document(200, body)


def _parse_scope(scope: str) -> tuple[str, frozenset[str]]:
    name, _, actions = scope.removeprefix("repository:").rpartition(":")
    return name, frozenset(actions.split(","))
