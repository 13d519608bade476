"""The server of computed images as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testing.client import Client
from tonne.testing.computed import ComputedImage
from tonne.testing.serve import main, parse_size, reference_name, served


@contextlib.contextmanager
def server(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the line that it printed."""
    command = [sys.executable, "-m", "tonne.testing", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_the_reference_and_serves_until_a_signal(number: signal.Signals) -> None:
    with server("--computed", "300kB", "--files", "2", "--port", "0") as (process, line):
        address, _, rest = line.partition("/")
        assert rest == "computed/300kb:v1"
        with Client(address) as client:
            manifest = client("GET", "/v2/computed/300kb/manifests/v1")
            assert manifest.status == 200
            assert manifest.body == ComputedImage(300_000, 2).manifest
            assert served(address) == {"requests": 1, "bytes_sent": len(manifest.body)}
        os.kill(process.pid, number)
        assert process.wait(20) == 0


def test_a_real_pull_has_every_byte(tmp_path: Path) -> None:
    ComputedImage(10_000_000, 3).write(tmp_path / "expected")
    with server("--computed", "10MB", "--files", "3", "--latency", "1", "--rate", "500MB") as (_, reference):
        tonne = [sys.executable, "-m", "tonne", "--cache", str(tmp_path / "cache")]
        subprocess.run([*tonne, "pull", reference, str(tmp_path / "pulled")], check=True, capture_output=True)
    compared = 0
    for path in (tmp_path / "expected").rglob("*"):
        if path.is_file():
            pulled = tmp_path / "pulled" / path.relative_to(tmp_path / "expected")
            assert pulled.read_bytes() == path.read_bytes()
            compared += 1
    assert compared == 3


def test_a_port_that_is_taken_is_an_error_and_no_trace() -> None:
    with server("--computed", "1kB", "--files", "1") as (_, line):
        port = line.partition("/")[0].rpartition(":")[2]
        with server("--computed", "1kB", "--files", "1", "--port", port) as (process, nothing):
            assert nothing == ""
            assert process.wait(20) == 1
            assert process.stderr
            assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    "arguments", [["--computed", "ten"], ["--computed", "1kB", "--files", "0"], ["--computed", "0B"], []]
)
def test_what_cannot_be_served_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("10TB", 10**13), ("1.5gb", 1_500_000_000), ("8GiB", 8 * 2**30), ("4096", 4096), ("7 B", 7), ("2Mi", 2**21)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "TB", "10XB", "-1GB", "1e3"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_names_of_repositories() -> None:
    assert reference_name("10TB") == "computed/10tb"
    assert reference_name("1.5 GiB") == "computed/1-5-gib"
