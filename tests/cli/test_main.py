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
from tonne.cli.amounts import amount, encoded, name_fields, share, shown


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


def test_names() -> None:
    assert shown(b"a\x1b[31m\n\xff\xc3\xa9") == "a\\x1b[31m\\n\\xff\xe9"
    assert encoded("é%".encode()) == "é%"
    assert encoded(b"\xff%/a b") == "%FF%25/a b"
    assert name_fields(b"a") == {"path": "a"}
    assert name_fields(b"\xff", "name") == {"name": "%FF", "nameEncoding": "percent"}
