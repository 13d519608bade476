"""The small parts of the adapter: options, attributes, the log, what is asked of the kernel."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.errors import DeadlineExceeded, ServerError, TonneError, Unreachable
from tonne.model import Entry, Kind
from tonne.mount.log import LINES_A_MINUTE, LOG_BYTES_MAX, Quiet, log_file
from tonne.testing.clock import VirtualClock

pytest.importorskip("pyfuse3", exc_type=ImportError)

import trio

from tonne.image.view import Space
from tonne.mount import serve
from tonne.mount.attributes import Owner, attributes_of, space_of
from tonne.mount.serve import MountPlan, fuse_options, option_text, tune_kernel


def split(options: str) -> list[str]:
    """As libfuse splits what stands behind -o: at commas, unless there is a backslash before."""
    found, current, at = [], "", 0
    while at < len(options):
        if options[at] == "\\" and at + 1 < len(options):
            current += options[at + 1]
            at += 2
        elif options[at] == ",":
            found.append(current)
            current, at = "", at + 1
        else:
            current += options[at]
            at += 1
    return [*found, current]


@given(st.text(max_size=40))
def test_a_name_is_one_option_whatever_is_in_it(text: str) -> None:
    safe = option_text(text)
    assert safe.isascii()
    assert safe.isprintable()
    plain = all(" " <= char <= "~" for char in text)
    parts = split(f"a,fsname={safe},b")
    assert len(parts) == 3
    if plain:
        assert parts[1] == f"fsname={text}"


def test_options_of_a_mount() -> None:
    plan = MountPlan(Path("/mnt"), "oci:/a,b:v1@sha256:12")
    assert fuse_options(plan) == {"ro", "default_permissions", "subtype=tonne", "fsname=oci:/a\\,b:v1@sha256:12"}
    assert "allow_other" in fuse_options(MountPlan(Path("/mnt"), "x", allow_other=True))


class Teller(logging.Handler):
    """Puts messages into a list."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.append(record.getMessage())


def entry(kind: Kind = Kind.FILE, permissions: int = 0o4755, size: int = 1000, links: int = 1) -> Entry:
    return Entry(
        9, 1, 5, b"name", kind, permissions, 10, 20, -1_000_000_001, size, links,
        target=b"target" if kind is Kind.SYMLINK else b"",
    )  # fmt: skip


@given(st.sampled_from(list(Kind)), st.integers(0, 0o7777), st.integers(0, 0o777), st.integers(0, 1 << 60))
def test_attributes(kind: Kind, permissions: int, umask: int, size: int) -> None:
    found = attributes_of(entry(kind, permissions, size), Owner(umask=umask))
    assert found.st_ino == 5
    assert found.st_mode & 0o170000 == int(kind)
    assert found.st_mode & 0o7777 == permissions & ~(0 if kind is Kind.SYMLINK else umask)
    assert (found.st_uid, found.st_gid, found.st_size) == (10, 20, size)
    assert found.st_mtime_ns == found.st_atime_ns == found.st_ctime_ns == -1_000_000_001
    if kind is Kind.FILE:
        assert 0 <= found.st_blocks * 512 - size < 512
    assert found.attr_timeout > 86400


def test_owners_are_kept_unless_others_are_given() -> None:
    found = attributes_of(entry(), Owner(uid=0, gid=7))
    assert (found.st_uid, found.st_gid) == (0, 7)
    assert attributes_of(entry(links=0), Owner()).st_nlink == 1


def test_space() -> None:
    found = space_of(Space(content_bytes=4097, entries=3))
    assert (found.f_blocks, found.f_frsize, found.f_bfree, found.f_files) == (2, 4096, 0, 3)
    assert found.f_namemax == 255


def test_the_kernel_is_tuned_where_it_is_permitted(tmp_path: Path) -> None:
    bdi, connections = tmp_path / "bdi", tmp_path / "connections"
    (bdi / "0:47").mkdir(parents=True)
    (connections / "47").mkdir(parents=True)
    for name in ("max_background", "congestion_threshold"):
        (connections / "47" / name).touch()
    (bdi / "0:47" / "read_ahead_kb").touch()
    log = logging.Logger("test")
    told: list[str] = []
    log.addHandler(Teller(told))
    tune_kernel(os.makedev(0, 47), log, bdi, connections)
    assert (bdi / "0:47" / "read_ahead_kb").read_text() == "4096"
    assert int((connections / "47" / "max_background").read_text()) > 12
    assert told == []
    tune_kernel(os.makedev(0, 48), log, bdi, connections)
    assert len(told) == 1
    assert "read-ahead" in told[0]


def test_a_mount_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(serve, "_device_of", lambda point: ended.wait(60))
    monkeypatch.setattr("pyfuse3.terminate", ended.set)
    failure: list[TonneError] = []
    plan = MountPlan(tmp_path, "x", deadline_s=0.2)
    trio.run(serve._settle, plan, lambda: pytest.fail("it is not ready"), failure, logging.getLogger())
    assert ended.is_set()
    assert [type(error) for error in failure] == [DeadlineExceeded]


def told_by(clock: VirtualClock) -> tuple[Quiet, list[str]]:
    log = logging.Logger("test")
    told: list[str] = []
    log.addHandler(Teller(told))
    return Quiet(log, clock), told


def test_an_error_that_repeats_is_one_line_a_minute() -> None:
    clock = VirtualClock()
    quiet, told = told_by(clock)
    for _ in range(1000):
        quiet.tell(Unreachable("no connection", where="a"))
    assert told == ["no connection: a [unavailable.connect]"]
    quiet.tell(Unreachable("no connection", where="b"))
    assert told[1:] == ["no connection: b [unavailable.connect]"]
    clock.sleep(60)
    quiet.tell(ServerError("it fails"))
    assert told[2:] == ["999 more of [unavailable.connect] in 60 s", "it fails [unavailable.server]"]
    quiet.tell(Unreachable("no connection", where="a"))
    assert told[4:] == ["no connection: a [unavailable.connect]"]
    quiet.tell(Unreachable("no connection", where="a"))
    clock.sleep(1)
    quiet.close()
    assert told[5:] == ["1 more of [unavailable.connect] in 1 s"]


def test_errors_of_a_weekend_take_little_room() -> None:
    """Each has a text of its own, as those of frames do."""
    clock = VirtualClock()
    quiet, told = told_by(clock)
    for number in range(60_000):
        quiet.tell(Unreachable("no connection", where=f"frame {number}"))
        quiet.defect(ValueError(f"frame {number}"))
        clock.sleep(0.01)
    quiet.close()
    assert len(told) <= 2 * 10 * (LINES_A_MINUTE + 1)
    assert sum(int(line.split()[0]) for line in told if " more of " in line) + 2 * 10 * LINES_A_MINUTE == 2 * 60_000


def test_a_log_that_grows_makes_way_while_the_mount_runs(tmp_path: Path) -> None:
    code = (
        "import sys, os\nfrom pathlib import Path\nfrom tonne.mount.log import logger_to_stderr\n"
        "log = logger_to_stderr(Path(sys.argv[1]), bytes_max=10_000)\n"
        "for number in range(2000): log.info('line %d', number)\n"
        "os.write(1, b'by itself')\n"
    )
    path = tmp_path / "x.log"
    with path.open("ab") as output:
        subprocess.run([sys.executable, "-c", code, path], stdout=output, stderr=output, check=True)
    with (tmp_path / "mine").open("ab") as output:
        subprocess.run([sys.executable, "-c", code, path], stdout=output, stderr=output, check=True)
    assert (tmp_path / "mine").stat().st_size > 50_000, "that is not ours to move"
    (tmp_path / "mine").unlink()
    old = path.with_suffix(".log.old")
    assert path.stat().st_size < 11_000
    assert old.stat().st_size < 11_000
    assert path.read_bytes().endswith(b"line 1999\nby itself")
    assert sorted(os.listdir(tmp_path)) == ["x.log", "x.log.old"]
    first = int(path.read_text().split("line ")[1].split()[0])
    assert f"line {first - 1}\n" in old.read_text()


def test_the_log_file(tmp_path: Path) -> None:
    path = log_file(tmp_path / "cache", Path("/mnt/my model"))
    assert path is not None
    assert path.parent == tmp_path / "cache" / "mounts"
    assert "my-model" in path.name
    assert log_file(tmp_path / "cache", Path("/mnt/other")) != path
    path.write_bytes(bytes(LOG_BYTES_MAX + 1))
    assert log_file(tmp_path / "cache", Path("/mnt/my model")) == path
    assert path.stat().st_size == 0
    assert path.with_suffix(".log.old").exists()
    (tmp_path / "file").touch()
    assert log_file(tmp_path / "file", Path("/mnt/x")) is None


def test_large_buffers_go_back_to_the_system() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("not glibc")
    code = (
        "from tonne.heap import tame_allocator\n"
        "assert tame_allocator()\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "before = resident()\n"
        "keep = []\n"
        "for _ in range(20):\n"
        "    blocks = [b'x' * (3 << 20) for _ in range(8)]\n"
        "    keep.append(bytearray(1000))\n"
        "    del blocks\n"
        "assert resident() - before < 4 << 20, resident() - before\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
