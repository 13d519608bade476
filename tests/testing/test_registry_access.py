"""Credentials, tokens, scopes and signed URLs of the fault registry."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator

import pytest

from tests.testing.client import Answer, Client, digest_of
from tonne.testing.clock import VirtualClock
from tonne.testing.registry import Auth, FaultRegistry, Rules

DATA = bytes(range(256)) * 40


def basic(user: str = "user", password: str = "secret") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def registry(clock: VirtualClock) -> Iterator[FaultRegistry]:
    with FaultRegistry(Rules(auth=Auth(token_life_s=60)), clock=clock) as found:
        yield found


@pytest.fixture
def client(registry: FaultRegistry) -> Iterator[Client]:
    with Client(registry.address) as found:
        yield found


@pytest.fixture
def path(registry: FaultRegistry) -> str:
    return f"/v2/a/b/blobs/{registry.add_blob('a/b', DATA)}"


def ask(client: Client, *scopes: str, headers: dict[str, str] | None = None) -> Answer:
    query = "&".join(["service=tonne-testing", *(f"scope={scope}" for scope in scopes)])
    return client("GET", f"/token?{query}", headers=basic() if headers is None else headers)


def bearer(client: Client, *scopes: str, headers: dict[str, str] | None = None) -> dict[str, str]:
    return {"Authorization": f"Bearer {json.loads(ask(client, *scopes, headers=headers).body)['token']}"}


def test_the_challenge_says_where_to_go_and_the_token_opens(client: Client, path: str) -> None:
    answer = client("GET", path)
    assert answer.status == 401
    found = re.match(r'Bearer realm="([^"]+)",service="([^"]+)",scope="([^"]+)"\Z', answer["www-authenticate"])
    assert found
    assert found[3] == "repository:a/b:pull"
    token = json.loads(client("GET", f"{found[1]}?service={found[2]}&scope={found[3]}", headers=basic()).body)
    assert token["expires_in"] == 60
    assert client("GET", path, headers={"Authorization": f"Bearer {token['token']}"}).body == DATA


def test_a_token_ends_when_its_life_is_over(client: Client, path: str, clock: VirtualClock) -> None:
    headers = bearer(client, "repository:a/b:pull")
    clock.advance(59)
    assert client("GET", path, headers=headers).status == 200
    clock.advance(1)
    answer = client("GET", path, headers=headers)
    assert answer.status == 401
    assert answer["www-authenticate"].endswith(',error="invalid_token"')


def test_wrong_credentials_get_no_token(client: Client) -> None:
    for headers in (basic(password="wrong"), basic(user="nobody"), {"Authorization": "Basic %%%"}):
        assert ask(client, "repository:a/b:pull", headers=headers).status == 401


def test_a_scope_that_is_too_narrow_is_401_and_a_right_that_is_missing_403(
    registry: FaultRegistry, client: Client
) -> None:
    assert registry.rules.auth
    registry.rules.auth.users["reader"] = "secret"
    registry.rules.auth.rights["reader"] = {"a/*": frozenset({"pull"})}
    target = "/v2/a/b/blobs/uploads/"
    answer = client("POST", target, headers=bearer(client, "repository:a/b:pull"))
    assert (answer.status, 'error="insufficient_scope"' in answer["www-authenticate"]) == (401, True)
    assert 'scope="repository:a/b:pull,push"' in answer["www-authenticate"]
    assert client("POST", target, headers=bearer(client, "repository:a/b:pull,push")).status == 202
    narrow = bearer(client, "repository:a/b:pull,push", headers=basic("reader"))
    answer = client("POST", target, headers=narrow)
    assert (answer.status, b"DENIED" in answer.body) == (403, True)


def test_a_mount_needs_the_right_to_read_where_it_comes_from(client: Client, path: str) -> None:
    target = f"/v2/c/d/blobs/uploads/?mount={digest_of(DATA)}&from=a/b"
    answer = client("POST", target, headers=bearer(client, "repository:c/d:pull,push"))
    assert answer.status == 401
    assert 'scope="repository:c/d:pull,push repository:a/b:pull"' in answer["www-authenticate"]
    both = bearer(client, "repository:c/d:pull,push", "repository:a/b:pull")
    assert client("POST", target, headers=both).status == 201


def test_the_anonymous_may_do_what_they_have_rights_for(registry: FaultRegistry, client: Client, path: str) -> None:
    assert registry.rules.auth
    registry.rules.auth.rights[""] = {"a/*": frozenset({"pull"})}
    headers = bearer(client, "repository:a/b:pull,push", headers={})
    assert client("GET", path, headers=headers).status == 200
    assert client("POST", "/v2/a/b/blobs/uploads/", headers=headers).status == 403


def test_what_expires_in_says_is_a_knob(registry: FaultRegistry, client: Client, path: str) -> None:
    assert registry.rules.auth
    for announced_s, found in ((None, None), (3600.0, 3600), (-1.0, 60)):
        registry.rules.auth.announced_s = announced_s
        registry.rules.auth.field_name = "access_token"
        body = json.loads(ask(client, "repository:a/b:pull").body)
        assert body.get("expires_in") == found
        assert client("GET", path, headers={"Authorization": f"Bearer {body['access_token']}"}).status == 200


def test_a_token_by_post(client: Client, path: str) -> None:
    form = "grant_type=password&service=x&username=user&password=secret&scope=repository:a/b:pull"
    answer = client("POST", "/token", form, Content_Type="application/x-www-form-urlencoded")
    assert client("GET", path, headers={"Authorization": f"Bearer {json.loads(answer.body)['token']}"}).status == 200
    assert client("POST", "/token", form.replace("secret", "wrong")).status == 401


def test_all_tokens_may_be_ended_and_they_outlive_a_restart(registry: FaultRegistry, client: Client, path: str) -> None:
    headers = bearer(client, "repository:a/b:pull")
    client.close()
    registry.restart()
    assert client("GET", path, headers=headers).status == 200
    registry.revoke_tokens()
    assert client("GET", path, headers=headers).status == 401


def test_basic_credentials() -> None:
    with FaultRegistry(Rules(auth=Auth(scheme="basic"))) as registry, Client(registry.address) as client:
        path = f"/v2/a/b/blobs/{registry.add_blob('a/b', DATA)}"
        answer = client("GET", path)
        assert (answer.status, answer["www-authenticate"]) == (401, 'Basic realm="tonne-testing"')
        assert client("GET", path, headers=basic(password="wrong")).status == 401
        assert client("GET", path, headers=basic()).body == DATA
        assert client("GET", "/v2/", headers=basic()).status == 200
        assert client("GET", "/v2/").status == 401
        assert [record.scheme for record in registry.asked("blob-get")] == ["", "basic", "basic"]


# --- the object store


def test_a_signed_url_works_until_it_expires(clock: VirtualClock) -> None:
    rules = Rules(redirect=True, redirect_life_s=300)
    with FaultRegistry(rules, clock=clock) as registry, Client(registry.address) as client:
        path = f"/v2/a/b/blobs/{registry.add_blob('a/b', DATA)}"
        answer = client("GET", path, Range="bytes=0-9")
        assert (answer.status, answer.body) == (307, b"")
        place = answer["location"]
        assert place.startswith(registry.store_url)
        clock.advance(299)
        assert client("GET", place, Range="bytes=10-19").body == DATA[10:20]
        assert client("HEAD", place)["content-length"] == str(len(DATA))
        clock.advance(1)
        answer = client("GET", place)
        assert (answer.status, b"AccessDenied" in answer.body) == (403, True)
        assert client("HEAD", path).status == 200
        assert [record.kind for record in registry.requests] == [
            "blob-get",
            "store-get",
            "store-head",
            "store-get",
            "blob-head",
        ]


def test_a_signature_is_of_one_blob_and_one_time() -> None:
    with FaultRegistry(Rules(redirect=True)) as registry, Client(registry.address) as client:
        digest, other = (registry.add_blob("a/b", data) for data in (DATA, b"other"))
        place = client("GET", f"/v2/a/b/blobs/{digest}")["location"]
        later = re.sub(r"X-Expires=[0-9.]+", "X-Expires=99999999999.000", place)
        assert later != place
        for forged in (place.replace(digest, other), later, place[:-1], place.partition("?")[0]):
            assert client("GET", forged).status == 403


def test_credentials_at_the_object_store_are_a_leak() -> None:
    with FaultRegistry(Rules(redirect=True)) as registry, Client(registry.address) as client:
        place = client("GET", f"/v2/a/b/blobs/{registry.add_blob('a/b', DATA)}", headers=basic())["location"]
        assert client("GET", place).status == 200
        assert registry.leaks == []
        assert client("GET", place, headers=basic()).status == 400
        assert [record.scheme for record in registry.leaks] == ["basic"]
