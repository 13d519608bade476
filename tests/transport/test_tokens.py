"""Authorization as registries ask for it, over real HTTP, in virtual time where tokens expire."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.transport.scripted import Answer, ScriptedServer, Seen
from tonne import errors
from tonne.clock import Clock, Deadline
from tonne.settings import NetworkSettings
from tonne.testing.clock import VirtualClock
from tonne.transport.failures import Kind
from tonne.transport.registry import Call, Registry

PULL = ("repository:ml/bert:pull",)
Serve = Callable[..., ScriptedServer]


class TokenRegistry:
    """A registry that wants bearer tokens, with its token server at /token."""

    def __init__(self, serve: Serve, clock: Clock, life_s: float | None = 60.0) -> None:
        self.clock = clock
        self.life_s = life_s
        self.valid: dict[str, float] = {}
        self.issued = 0
        self.revoked = False
        self.answer: Callable[[Seen], Answer | None] = lambda seen: None
        self.scope = 'scope="repository:ml/bert:pull"'
        self.server = serve(self.script)

    def script(self, seen: Seen) -> Answer:
        if seen.path == "/token":
            other = self.answer(seen)
            if other is not None:
                return other
            self.issued += 1
            token = f"token-{self.issued}"
            self.valid[token] = self.clock.now_s() + (60.0 if self.life_s is None else self.life_s)
            document: dict[str, object] = {"token": token}
            if self.life_s is not None:
                document["expires_in"] = self.life_s
            return Answer(200, json.dumps(document).encode())
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        if self.valid.get(token, -1.0) > self.clock.now_s():
            return Answer(200, token.encode())
        challenge = f'Bearer realm="{self.server.url}/token",service="svc",{self.scope}'
        return Answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', {"WWW-Authenticate": challenge})

    @property
    def asked(self) -> list[Seen]:
        return [seen for seen in self.server.seen if seen.path == "/token"]

    def open(self, **settings: object) -> Registry:
        return Registry(self.server.host, NetworkSettings(**settings), self.clock)  # type: ignore[arg-type]


def ask(registry: Registry, scopes: tuple[str, ...] = PULL, path: str = "/v2/ml/bert/x") -> bytes:
    call = Call(Kind.OTHER, "GET", path, "h/ml/bert", scopes, (200,), "cannot ask")
    return registry.call(call, Deadline.after(10)).body


def config(folder: Path, host: str, **entry: str) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"auths": {host: entry}}))
    return path


def test_a_token_is_got_once_and_used(serve: Serve) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    opened = registry.open(username="me", password="word")
    assert [ask(opened) for _ in range(3)] == [b"token-1"] * 3
    (asked,) = registry.asked
    assert asked.query == {"service": ["svc"], "scope": ["repository:ml/bert:pull"], "account": ["me"]}
    assert asked.headers["authorization"] == "Basic " + base64.b64encode(b"me:word").decode()
    opened.close()


def test_anonymous_tokens_need_no_credentials(serve: Serve) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    opened = registry.open()
    assert ask(opened) == b"token-1"
    assert "authorization" not in registry.asked[0].headers
    opened.close()


@pytest.mark.parametrize(("life_s", "wait_s"), [(2.0, 1.7), (60.0, 50.0), (None, 50.0), (1800.0, 1750.0)])
def test_a_token_is_renewed_before_it_expires(serve: Serve, life_s: float | None, wait_s: float) -> None:
    clock = VirtualClock()
    registry = TokenRegistry(serve, clock, life_s)
    opened = registry.open()
    assert ask(opened) == b"token-1"
    clock.advance(wait_s)
    before = len(registry.server.seen)
    assert ask(opened) == b"token-2"
    assert [seen.path for seen in registry.server.seen[before:]] == ["/token", "/v2/ml/bert/x"]  # no 401 in between
    opened.close()


def test_a_young_token_is_not_renewed(serve: Serve) -> None:
    clock = VirtualClock()
    registry = TokenRegistry(serve, clock, 2.0)
    opened = registry.open()
    ask(opened)
    clock.advance(1.4)
    assert ask(opened) == b"token-1"
    opened.close()


def test_after_a_401_the_token_is_renewed_once(serve: Serve) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    opened = registry.open()
    ask(opened)
    registry.valid.clear()  # revoked
    assert ask(opened) == b"token-2"
    opened.close()


def test_a_registry_that_takes_no_token_is_not_asked_for_ever(serve: Serve) -> None:
    registry = TokenRegistry(serve, VirtualClock(), life_s=60)
    registry.answer = lambda seen: Answer(200, b'{"token":"useless"}')
    opened = registry.open()
    with pytest.raises(errors.Unauthenticated):
        ask(opened)
    assert len(registry.server.requests("GET", "/v2/")) == 2
    assert len(registry.asked) == 1
    opened.close()


def test_without_renewal_the_raw_fault_is_seen(serve: Serve) -> None:
    clock = VirtualClock()
    registry = TokenRegistry(serve, clock, 2.0)
    opened = registry.open(renew=False)
    assert ask(opened) == b"token-1"
    clock.advance(3)
    with pytest.raises(errors.Unauthenticated) as caught:
        ask(opened)
    assert caught.value.fields["registry_code"] == "UNAUTHORIZED"
    opened.close()


def test_one_renewal_for_all_who_wait(serve: Serve) -> None:
    clock = VirtualClock()
    registry = TokenRegistry(serve, clock, 60.0)
    opened = registry.open()
    ask(opened)
    clock.advance(61)  # expired: all must wait
    inside, go = threading.Event(), threading.Event()

    def hold(seen: Seen) -> None:
        inside.set()
        assert go.wait(5)

    registry.answer = hold
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(ask(opened))) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert inside.wait(5)
    go.set()
    for thread in threads:
        thread.join(10)
    assert found == [b"token-2"] * 6
    opened.close()


def test_while_a_token_is_valid_nobody_waits_for_its_renewal(serve: Serve) -> None:
    clock = VirtualClock()
    registry = TokenRegistry(serve, clock, 60.0)
    opened = registry.open()
    ask(opened)
    clock.advance(55)
    inside, go = threading.Event(), threading.Event()

    def hold(seen: Seen) -> None:
        inside.set()
        assert go.wait(5)

    registry.answer = hold
    renewing = threading.Thread(target=lambda: ask(opened))
    renewing.start()
    assert inside.wait(5)
    assert ask(opened) == b"token-1"  # while the token server is still thinking
    go.set()
    renewing.join(10)
    assert ask(opened) == b"token-2"
    opened.close()


def test_a_renewal_ahead_of_time_may_fail(serve: Serve) -> None:
    clock = VirtualClock()
    registry = TokenRegistry(serve, clock, 60.0)
    opened = registry.open()
    ask(opened)
    clock.advance(55)
    registry.answer = lambda seen: Answer(503)
    assert ask(opened) == b"token-1"
    clock.advance(6)
    with pytest.raises(errors.Busy):
        ask(opened)
    registry.answer = lambda seen: None
    assert ask(opened) == b"token-2"  # nothing of the failure is remembered
    opened.close()


def test_scopes_have_tokens_of_their_own(serve: Serve) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    opened = registry.open()
    push = ("repository:ml/bert:pull,push", "repository:ml/base:pull")
    assert ask(opened) == b"token-1"
    assert ask(opened, push) == b"token-2"
    assert ask(opened) == b"token-1"
    assert registry.asked[1].query["scope"] == list(push)
    opened.close()


def test_what_a_challenge_wants_beyond_is_asked_for(serve: Serve) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    registry.scope = 'scope="repository:ml/bert:delete",error="insufficient_scope"'
    opened = registry.open()
    ask(opened)
    assert registry.asked[0].query["scope"] == ["repository:ml/bert:pull", "repository:ml/bert:delete"]
    opened.close()


def test_an_identity_token_is_exchanged(serve: Serve, tmp_path: Path) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    opened = registry.open(docker_config=config(tmp_path, registry.server.host, identitytoken="refresh-me"))
    assert ask(opened) == b"token-1"
    (asked,) = registry.asked
    assert asked.method == "POST"
    assert parse_qs(asked.body.decode()) == {
        "grant_type": ["refresh_token"],
        "refresh_token": ["refresh-me"],
        "service": ["svc"],
        "client_id": ["tonne"],
        "scope": ["repository:ml/bert:pull"],
    }
    opened.close()


def test_a_token_server_that_wants_the_other_form(serve: Serve) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    registry.answer = lambda seen: Answer(405) if seen.method == "GET" else None
    opened = registry.open(username="me", password="word")
    assert ask(opened) == b"token-1"
    form = parse_qs(registry.asked[1].body.decode())
    assert (form["grant_type"], form["username"], form["password"]) == (["password"], ["me"], ["word"])
    opened.close()


def test_a_token_that_the_user_gives_is_used_alone(serve: Serve) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    registry.valid["given"] = 10.0
    opened = registry.open(token="given", username="ignored")
    assert ask(opened) == b"given"
    registry.valid.clear()
    with pytest.raises(errors.Unauthenticated):
        ask(opened)
    assert registry.asked == []
    opened.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(401, b'{"details":"incorrect username or password"}'), errors.Unauthenticated),
        (Answer(403), errors.Forbidden),
        (Answer(404), errors.Missing),
        (Answer(429, headers={"Retry-After": "3"}), errors.Busy),
        (Answer(500), errors.ServerError),
        (Answer(200, b"<html>"), errors.ProtocolError),
        (Answer(200, b'{"token":""}'), errors.ProtocolError),
        (Answer(200, b'{"token":"a\\r\\nX-Evil: 1"}'), errors.ProtocolError),
        (Answer(200, b"x" * 70_000), errors.ProtocolError),
        (Answer(200, b"{}", cut=1), errors.ProtocolError),
    ],
)
def test_failures_of_the_token_server(serve: Serve, answer: Answer, error: type[errors.TonneError]) -> None:
    registry = TokenRegistry(serve, VirtualClock())
    registry.answer = lambda seen: answer
    opened = registry.open(username="me", password="secretword")
    with pytest.raises(error) as caught:
        ask(opened)
    assert "secretword" not in str(caught.value)
    opened.close()


@pytest.mark.parametrize("said", ["-5", '"soon"', "null", "true", "0"])
def test_an_odd_life_is_a_minute(serve: Serve, said: str) -> None:
    clock = VirtualClock()
    registry = TokenRegistry(serve, clock)
    registry.answer = lambda seen: Answer(200, b'{"access_token":"odd","expires_in":' + said.encode() + b"}")
    registry.valid["odd"] = 1e9
    opened = registry.open()
    assert ask(opened) == b"odd"
    clock.advance(40)
    ask(opened)
    assert len(registry.asked) == 1
    clock.advance(12)
    ask(opened)
    assert len(registry.asked) == 2
    opened.close()


@pytest.mark.parametrize("realm", ["http://auth.example.test/token", "https://[x/token", "https://a:b/token", "/token"])
def test_no_password_goes_to_a_realm_that_is_not_safe(serve: Serve, realm: str) -> None:
    challenge = f'Bearer realm="{realm}",service="svc"'
    server = serve(lambda seen: Answer(401, headers={"WWW-Authenticate": challenge}))
    opened = Registry(server.host, NetworkSettings(username="me", password="word"))
    with pytest.raises(errors.ProtocolError):
        ask(opened)
    opened.close()


def basic_script(seen: Seen) -> Answer:
    if seen.headers.get("authorization") == "Basic " + base64.b64encode(b"me:new").decode():
        return Answer(200, b"in")
    return Answer(401, headers={"WWW-Authenticate": 'Basic realm="r"'})


def test_basic(serve: Serve) -> None:
    server = serve(basic_script)
    opened = Registry(server.host, NetworkSettings(username="me", password="new"))
    assert [ask(opened), ask(opened)] == [b"in", b"in"]
    assert [seen.headers.get("authorization", "")[:5] for seen in server.seen] == ["", "Basic", "Basic"]
    opened.close()


def test_basic_with_a_wrong_password_or_none(serve: Serve) -> None:
    server = serve(basic_script)
    for settings, count in ((NetworkSettings(username="me", password="old"), 2), (NetworkSettings(), 1)):
        opened = Registry(server.host, settings)
        server.seen.clear()
        with pytest.raises(errors.Unauthenticated, match="credentials") as caught:
            ask(opened)
        assert "docker login" in caught.value.line
        assert len(server.seen) == count
        opened.close()


def test_a_password_that_changed_meanwhile_is_looked_up_again(serve: Serve, tmp_path: Path) -> None:
    server = serve(basic_script)
    path = config(tmp_path, server.host, auth=base64.b64encode(b"me:old").decode())
    opened = Registry(server.host, NetworkSettings(docker_config=path))
    with pytest.raises(errors.Unauthenticated):
        ask(opened)
    config(tmp_path, server.host, auth=base64.b64encode(b"me:new").decode())
    assert ask(opened) == b"in"
    opened.close()
