"""What the process behind a mount tells the command, and how the command comes by it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from tonne.errors import DeadlineExceeded, LocalError, LocalFailure, MissingManifest, TonneError, codes
from tonne.mount.report import REPORT_VARIABLE, error_of, launch, send_report


@pytest.mark.parametrize("cls", codes().values(), ids=lambda cls: cls.code)
def test_errors_come_back_as_they_were(cls: type[TonneError]) -> None:
    error = cls("what", where="where", why="why", todo="next", size_bytes=5, digest="sha256:1")
    back = error_of(json.loads(json.dumps(error.document())))
    assert type(back) is cls
    assert (back.what, back.where, back.why, back.next, back.fields) == ("what", "where", "why", "next", error.fields)
    assert back.document() == error.document()


def test_an_unknown_code_is_still_an_error() -> None:
    assert error_of({"error": {"code": "from.the.future", "what": "x"}}).what == "x"


def test_a_report_nobody_reads_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    send_report(write, {"mounted": {}})
    with pytest.raises(OSError):
        os.close(write)


class Program:
    """Stands in for the command: a Python text that finds the descriptor in `report`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tonne.py"
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": ""}

    def write(self, text: str) -> None:
        self.path.write_text(f"import os, sys, json\nreport = int(os.environ[{REPORT_VARIABLE!r}])\n{text}")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def test_what_is_reported_comes_back_while_the_process_goes_on(program: Program, tmp_path: Path) -> None:
    program.write(
        "document = {'mounted': {'pid': os.getpid(), 'words': sys.argv[1:], 'session': os.getsid(0)}}\n"
        "print('into the log', flush=True)\n"
        "os.write(report, json.dumps(document).encode()); os.close(report)\nimport time; time.sleep(60)\n"
    )
    mounted = launch(["mount", "REF", "a b"], program.environment, tmp_path / "log")["mounted"]
    assert mounted["words"] == ["mount", "REF", "a b"]
    assert mounted["session"] == mounted["pid"], "it ends with our terminal"
    assert not ended(mounted["pid"])
    os.kill(mounted["pid"], 9)
    end = time.monotonic() + 10
    while not ended(mounted["pid"]):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert "into the log" in (tmp_path / "log").read_text()


def test_a_reported_error_is_raised(program: Program) -> None:
    document = MissingManifest("no such tag", where="registry/x").document()
    program.write(f"os.write(report, json.dumps({document!r}).encode())\n")
    with pytest.raises(MissingManifest, match="no such tag"):
        launch([], program.environment, None)


def test_a_process_that_dies_in_silence_is_told(program: Program, tmp_path: Path) -> None:
    program.write("sys.exit(7)\n")
    with pytest.raises(LocalFailure, match="status 7") as caught:
        launch([], program.environment, tmp_path / "log")
    assert str(tmp_path / "log") in caught.value.next


@pytest.mark.parametrize(
    "hangs", ["import time; time.sleep(600)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()"]
)
def test_a_process_that_says_nothing_is_ended(program: Program, tmp_path: Path, hangs: str) -> None:
    program.write(f"import signal\nprint(os.getpid(), flush=True)\n{hangs}\n")
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="not ready") as caught:
        launch([], program.environment, tmp_path / "log", wait_s=2, end_s=0.5)
    assert time.monotonic() - began_s < 30
    assert str(tmp_path / "log") in caught.value.next
    assert ended(int((tmp_path / "log").read_text().split()[0]))


@pytest.mark.parametrize("report", ["", 'os.write(report, b\'{"error": {"code": "local", "what": "x"}}\')\n'])
def test_a_process_that_does_not_end_after_its_report_is_ended(program: Program, report: str) -> None:
    program.write(f"{report}os.close(report)\nimport time; time.sleep(600)\n")
    began_s = time.monotonic()
    with pytest.raises(LocalError):
        launch([], program.environment, None, end_s=0.5)
    assert time.monotonic() - began_s < 30


def test_half_a_report_is_none(program: Program) -> None:
    program.write("os.write(report, b'{\"mounted\": '); os.close(report)\n")
    with pytest.raises(LocalFailure, match="ended before it was ready"):
        launch([], program.environment, None)


def test_a_program_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(LocalFailure, match="cannot be started"):
        launch([], os.environ, None)
