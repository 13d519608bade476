"""What every verb has in common: errors, exit statuses, help, signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tonne import COMMAND, error, run
from tests.image.sketch import make, write_layout
from tonne.cli.amounts import amount, encoded, name_fields, share, shown
from tonne.testing.faults import Fault
from tonne.testing.registry import Auth, FaultRegistry, Rules
from tonne.testing.registry_actions import Status


def test_no_arguments_show_the_help() -> None:
    done = subprocess.run(COMMAND, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"Usage: tonne" in done.stderr + done.stdout
    assert b"Traceback" not in done.stderr


def test_help_and_version() -> None:
    text = run("--help").stdout.decode()
    for verb in ("pack", "inspect", "ls", "cat", "diff", "tags", "rm", "mount", "umount", "pull", "verify", "cp"):
        assert f"\n  {verb} " in text
        assert run(verb, "--help").stdout.startswith(f"Usage: tonne {verb}".encode())
    assert run("--version").stdout.startswith(b"tonne, version ")


def test_mistakes_on_the_command_line() -> None:
    for words in (("nosuchverb",), ("ls",), ("ls", "--nosuchoption", "x"), ("pull", "one"), ("--deadline", "x", "ls")):
        assert error(*words, status=2)["code"] == "usage"
        done = run(*words, status=2)
        assert done.stdout == b""
        assert b"Usage" in done.stderr or b"Error" in done.stderr


def test_json_may_stand_behind_the_verb() -> None:
    done = run("tags", "oci:/nonexistent", "--json", status=3)
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"].startswith("missing")


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("inspect", "not a reference"), "reference.invalid", 2),
        (("inspect", "bert"), "reference.invalid", 2),
        (("inspect", "oci:/nonexistent:v1"), "missing.repository", 3),
        (("--attempts", "1", "inspect", "127.0.0.1:1/a:v1"), "unavailable.connect", 5),
        (("--attempts", "1", "pull", "no-such-host.invalid/a:v1", "x"), "unavailable.host", 5),
        (("--ca", "/nonexistent", "tags", "oci:x"), "settings.invalid", 2),
        (("--cache-size", "many", "tags", "oci:x"), "settings.invalid", 2),
    ],
)
def test_errors_say_what_to_do(words: tuple[str, ...], code: str, status: int) -> None:
    found = error(*words, status=status)
    assert found["code"] == code
    assert found["message"]
    assert found["next"]
    said = run(*words, status=status).stderr.decode()
    assert f"[{code}]" in said
    assert found["next"] in said


@pytest.fixture
def held() -> list[socket.socket]:
    """The connections that the silent server has accepted."""
    return []


@pytest.fixture
def silent_server(held: list[socket.socket]) -> Iterator[str]:
    """Accepts connections and never says a word."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for connection in held:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once(silent_server: str, held: list[socket.socket], number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--no-cache", "--json", "inspect", f"{silent_server}/a:v1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not held:
        assert process.poll() is None
        time.sleep(0.01)
    began_s = time.monotonic()
    process.send_signal(number)
    out, said = process.communicate(timeout=30)
    assert time.monotonic() - began_s < 5
    assert process.returncode == 130
    assert out == b""
    assert json.loads(said.splitlines()[-1])["error"]["code"] == "interrupted"


def test_a_deadline_ends_it(silent_server: str) -> None:
    found = error("--deadline", "0.5", "--attempts", "1", "inspect", f"{silent_server}/a:v1", status=5)
    assert found["code"] in ("unavailable.deadline", "unavailable.stalled")


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert error("tags", f"oci:{tmp_path}/file", status=3)["code"] == "missing.repository"


def test_amounts() -> None:
    assert [amount(n) for n in (0, 1023, 1024, 10 * 1024**2, 1.5 * 1024**4, 1 << 60)] == [
        "0 B", "1023 B", "1.00 KiB", "10.0 MiB", "1.50 TiB", "1024.0 PiB",
    ]  # fmt: skip
    assert (share(1, 4), share(1, 0)) == ("25.0 %", "-")


def test_what_others_wrote_cannot_move_the_cursor(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", {"v1": make("file a text:one")})
    said = run("cat", f"oci:{tmp_path}/layout:v1", "no\x1b[31m\udcff", status=3).stderr
    assert b"\x1b" not in said
    assert b"\\x1b[31m" in said


def test_a_path_that_is_no_text_ends_well(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", {"v1": make("file a text:one")})
    done = run("pull", f"oci:{tmp_path}/layout:v1", f"{tmp_path}/p\udce9")
    assert b"p\\udce9" in done.stdout
    assert (tmp_path / "p\udce9" / "a").read_bytes() == b"one"


def test_names() -> None:
    assert shown(b"a\x1b[31m\n\xff\xc3\xa9") == "a\\x1b[31m\\n\\xff\xe9"
    assert encoded("é%".encode()) == "é%"
    assert encoded(b"\xff%/a b") == "%FF%25/a b"
    assert name_fields(b"a") == {"path": "a"}
    assert name_fields(b"\xff", "name") == {"name": "%FF", "nameEncoding": "percent"}


def test_credentials_go_to_one_host_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command that names two registries is refused before either is asked, unless it is said whose they are."""
    auth = Auth(scheme="basic", users={"me": "secret"})
    with FaultRegistry(Rules(auth=auth)) as ours, FaultRegistry(Rules(auth=auth)) as theirs:
        monkeypatch.setenv("TONNE_USERNAME", "me")
        monkeypatch.setenv("TONNE_PASSWORD", "secret")
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        words = (f"{ours.address}/a:v1", f"{theirs.address}/a:v1")
        refused = [error("cp", *words, status=2), error("diff", *words, status=2)]
        refused.append(error("pack", tmp_path, words[0], "--base", words[1], status=2))
        assert all("TONNE_HOST" in each["next"] for each in refused)
        monkeypatch.setenv("TONNE_TOKEN", "abc")
        assert error("cp", *words, status=2)["code"] == "usage"
        assert not ours.requests
        assert not theirs.requests
        monkeypatch.delenv("TONNE_TOKEN")
        monkeypatch.setenv("TONNE_HOST", ours.address)
        assert error("--attempts", "1", "cp", *words, status=3)["code"] == "missing.manifest"
        assert error("--attempts", "1", "cp", *reversed(words), status=4)["code"] == "refused.credentials"
        assert any(record.scheme == "basic" for record in ours.requests)
        assert theirs.requests
        assert not any(record.scheme for record in theirs.requests)


@pytest.mark.parametrize("verb", ["cp", "rm"])
def test_a_passing_fault_at_the_last_look_is_no_failure(verb: str, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", {"v1": make("file a text:one")})
    layout = f"oci:{tmp_path}/layout:v1"
    with FaultRegistry() as registry:
        reference = f"{registry.address}/a:v1"
        run("cp", layout, reference)
        registry.faults.add(Fault("manifest-get", Status(503)))
        if verb == "cp":
            run("cp", layout, f"{registry.address}/b:v1")
        else:
            run("rm", reference)
        assert registry.faults.fired
