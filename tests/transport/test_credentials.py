from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tonne.clock import Deadline
from tonne.errors import BadSettings, DeadlineExceeded
from tonne.settings import NetworkSettings
from tonne.transport.credentials import HUB_KEY, Credentials, find_credentials

NEVER = Deadline()
Find = Callable[..., "Credentials | None"]
Helper = Callable[[str, str], Path]
HOST = "registry.example.com:5000"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def find(tmp_path: Path) -> Find:
    def run(config: object, host: str = HOST, deadline: Deadline = NEVER, **settings: str) -> Credentials | None:
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return find_credentials(NetworkSettings(docker_config=path, **settings), host, deadline)  # type: ignore[arg-type]

    return run


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helper:
    """Writes ``docker-credential-NAME`` into a folder that is first in PATH; it notes what it was asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(name: str, script: str) -> Path:
        asked = tmp_path / f"asked-{name}"
        program = folder / f"docker-credential-{name}"
        program.write_text(f'#!/bin/sh\nread -r server\necho "$1 $server" >> {asked}\n{script}\n')
        program.chmod(0o755)
        return asked

    return write


@pytest.mark.timeout(20)
def test_a_configuration_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    network = NetworkSettings(docker_config=tmp_path / "config.json")
    assert find_credentials(network, HOST, Deadline.after(10)) is None
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to(os.devnull)
    assert find_credentials(network, HOST, Deadline.after(10)) is None


def test_the_settings_win(find: Find) -> None:
    config = {"auths": {HOST: {"auth": encoded("file:word")}}}
    assert find(config) == Credentials("file", "word")
    assert find(config, username="me", password="mine") == Credentials("me", "mine")


@pytest.mark.parametrize("key", [HOST, f"https://{HOST}", f"https://{HOST}/v2/", f"https://{HOST}/v1/"])
def test_entries_under_the_keys_that_docker_writes(find: Find, key: str) -> None:
    assert find({"auths": {key: {"auth": encoded("me:a:b")}}}) == Credentials("me", "a:b")
    assert find({"auths": {key: {"username": "me", "password": "pw"}}}) == Credentials("me", "pw")
    assert find({"auths": {key: {"auth": encoded("me:"), "identitytoken": "tok"}}}) == Credentials("me", "", "tok")


def test_docker_hub_has_an_odd_key(find: Find) -> None:
    config = {"auths": {HUB_KEY: {"auth": encoded("hub:pw")}}}
    assert find(config, "docker.io") == Credentials("hub", "pw")
    assert find(config) is None


def test_nothing_is_found_where_nothing_is(find: Find, tmp_path: Path) -> None:
    configs: tuple[object, ...] = (
        "",
        {},
        {"auths": {}},
        {"auths": {HOST: {}}},
        {"auths": {"other": {"auth": encoded("a:b")}}},
        {"auths": []},
    )
    for config in configs:
        assert find(config) is None
    assert find_credentials(NetworkSettings(docker_config=tmp_path / "none.json"), HOST, NEVER) is None
    assert find_credentials(NetworkSettings(), HOST, NEVER) is None


@pytest.mark.parametrize("config", ["{", "[]", "1", '{"auths":{"' + HOST + '":{"auth":"***"}}}'])
def test_what_cannot_be_read_is_said(find: Find, config: str) -> None:
    with pytest.raises(BadSettings):
        find(config)


def test_a_helper_of_the_host_goes_before_the_general_one(find: Find, helper: Helper) -> None:
    one = helper("one", 'echo \'{"ServerURL":"x","Username":"u1","Secret":"s1"}\'')
    two = helper("two", 'echo \'{"ServerURL":"x","Username":"u2","Secret":"s2"}\'')
    config = {"credHelpers": {HOST: "one"}, "credsStore": "two", "auths": {HOST: {"auth": encoded("u3:s3")}}}
    assert find(config) == Credentials("u1", "s1")
    assert find(config, "other.example.com") == Credentials("u2", "s2")
    assert one.read_text() == f"get {HOST}\n"
    assert two.read_text() == "get other.example.com\n"


def test_a_helper_without_an_entry_leaves_the_word_to_the_file(find: Find, helper: Helper) -> None:
    helper("none", "echo 'credentials not found in native keychain'; exit 1")
    assert find({"credsStore": "none", "auths": {HOST: {"auth": encoded("u:s")}}}) == Credentials("u", "s")
    assert find({"credsStore": "none"}) is None


def test_a_helper_may_give_an_identity_token(find: Find, helper: Helper) -> None:
    asked = helper("tok", 'echo \'{"Username":"<token>","Secret":"refresh"}\'')
    assert find({"credsStore": "tok"}, "docker.io") == Credentials(identity_token="refresh")
    assert asked.read_text() == f"get {HUB_KEY}\n"


def test_helpers_that_fail_are_named(find: Find, helper: Helper) -> None:
    helper("bad", "echo 'keychain is locked' >&2; exit 1")
    helper("odd", "echo not json")
    with pytest.raises(BadSettings, match=r"docker-credential-bad: keychain is locked"):
        find({"credsStore": "bad"})
    with pytest.raises(BadSettings, match="docker-credential-odd"):
        find({"credsStore": "odd"})
    with pytest.raises(BadSettings, match="not installed"):
        find({"credsStore": "absent"})
    with pytest.raises(BadSettings, match="impossible name"):
        find({"credsStore": "../evil"})


def test_a_helper_is_not_waited_for_beyond_the_deadline(find: Find, helper: Helper) -> None:
    helper("slow", "exec sleep 20")
    with pytest.raises(DeadlineExceeded):
        find({"credsStore": "slow"}, deadline=Deadline.after(0.2))


@pytest.mark.parametrize(
    "script",
    [
        """echo '{"Username":"me","Secret":"geheim"}'; exit 1""",
        "echo 'Authorization: Bearer geheim.geheim' >&2; exit 1",
        "echo 'cannot reach https://me:geheim@vault/v1?sig=geheim'; exit 1",
        "echo 'password=geheim is wrong'; exit 1",
        "echo 'refused eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzI1NiJ9.geheim0123456789'; exit 1",
        "printf 'Secret: geheim\\033[2J'; exit 1",
    ],
)
def test_what_a_helper_says_when_it_fails_holds_no_secret(find: Find, helper: Helper, script: str) -> None:
    helper("leaky", script)
    with pytest.raises(BadSettings, match="docker-credential-leaky") as caught:
        find({"credsStore": "leaky"})
    assert "geheim" not in str(caught.value.document())
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("where", ["", " >&2"])
def test_a_helper_that_writes_without_an_end_is_ended(find: Find, helper: Helper, where: str) -> None:
    helper("endless", f"exec yes{where}")
    with pytest.raises(BadSettings, match="without an end"):
        find({"credsStore": "endless"})


def test_a_helper_is_not_waited_for_because_of_what_it_started(find: Find, helper: Helper, tmp_path: Path) -> None:
    helper("agent", f"""sleep 20 & echo $! > {tmp_path}/pid; echo '{{"Username":"u","Secret":"s"}}'""")
    began_s = time.monotonic()
    assert find({"credsStore": "agent"}) == Credentials("u", "s")
    assert time.monotonic() - began_s < 10
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # what a helper leaves running on purpose goes on


def test_what_a_helper_started_ends_with_it_when_it_takes_too_long(find: Find, helper: Helper, tmp_path: Path) -> None:
    helper("slow", f"sleep 20 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(DeadlineExceeded):
        find({"credsStore": "slow"}, deadline=Deadline.after(0.5))
    until_s = time.monotonic() + 10
    while Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cwd").exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_secrets_are_not_shown() -> None:
    assert "word" not in repr(Credentials("me", "word", "tokenword"))
    assert "word" not in repr(NetworkSettings(password="word", token="tokenword"))
