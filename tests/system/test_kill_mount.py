"""kill -9 of the process behind a mount: errors at once, never zeros; and what was fetched is not fetched again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.command import Tonne
from tests.system.kills import MIB, fetched, make_model
from tests.system.trees import differences, facts_of
from tonne.mount.table import mount_at
from tonne.testing.faults import Fault, Stall
from tonne.testing.registry import FaultRegistry, Record

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800), pytest.mark.usefixtures("needs_fuse")]

AT_ONCE_S = 5.0  # on a loaded machine; a deadline of a read is 60 s
LIMIT_S = 60.0
READERS = 3  # of each kind

# Reads at random places, compares with the source, and tells how it ended: in whole lines, each with its clock.
READER = """
import errno, mmap, os, random, sys, time
kind, path, source, seed = sys.argv[1:]
chance = random.Random(int(seed))
theirs, ours = os.open(path, os.O_RDONLY), os.open(source, os.O_RDONLY)
size = os.fstat(theirs).st_size
assert size == os.fstat(ours).st_size
shown = mmap.mmap(theirs, 0, prot=mmap.PROT_READ) if kind == "mmap" else None
print("reading", flush=True)
while True:
    length = chance.randrange(1, 70_000)
    at = chance.randrange(size - length)
    try:
        data = shown[at : at + length] if shown else os.pread(theirs, length, at)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
        break
    expected = os.pread(ours, length, at)
    if data != expected:
        print("ZEROS" if not any(data) else "WRONG", at, length, flush=True)
        break
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", shards=3, shard_bytes=32 * MIB + 777)


@contextlib.contextmanager
def readers(point: Path, source: Path, seed: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that read and map files of the mount until they get an error."""
    started = []
    try:
        for number in range(2 * READERS):
            kind, name = ("read", "mmap")[number % 2], f"shard-{number // 2}"
            words = [kind, str(point / name), str(source / name), str(seed + number)]
            started.append(subprocess.Popen([sys.executable, "-c", READER, *words], stdout=subprocess.PIPE))
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"reading\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def ends_of(processes: list[subprocess.Popen[bytes]]) -> list[str]:
    """What each reader got, in the time that an error may take; those that read go first, then those that map."""
    end_s = time.monotonic() + AT_ONCE_S
    found = []
    for process in processes:
        try:
            out, _ = process.communicate(timeout=max(0.01, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            found.append("hangs")
            continue
        status = process.returncode
        found.append(signal.Signals(-status).name if status < 0 else out.decode().strip())
    return [*found[::2], *found[1::2]]


@contextlib.contextmanager
def dropping_pages(folder: Path) -> Iterator[Any]:
    """Gives what makes the kernel forget what it keeps of a mount's files, so that readers must ask; files are opened
    now, while that is possible."""
    opened = [os.open(path, os.O_RDONLY) for path in folder.glob("shard-*")]
    assert opened

    def drop() -> None:
        for descriptor in opened:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    try:
        yield drop
    finally:
        for descriptor in opened:
            with contextlib.suppress(OSError):  # of a dead mount
                os.close(descriptor)


def wait_for(what: str, condition: Any) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def ranges(records: list[Record]) -> list[tuple[str, int, int]]:
    """(blob, start, end) of what was sent as a whole; an answer without a range is the blob from its start."""
    found = []
    for record in records:
        if record.kind == "blob-get" and record.status in (200, 206):
            start, end = record.range or (0, record.sent_bytes)
            if record.sent_bytes == end - start:
                found.append((record.subject, start, end))
    return found


def overlaps(first: list[tuple[str, int, int]], second: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """What of the second lies in the first too."""
    return [
        (blob, max(start, begin), min(end, stop))
        for blob, start, end in first
        for other, begin, stop in second
        if blob == other and max(start, begin) < min(end, stop)
    ]


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for("the process is gone", lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("stalled", [True, False], ids=["while-all-wait", "while-bytes-come"])
def test_killed_under_readers(tmp_path: Path, source: Path, kills: int, stalled: bool) -> None:
    """With a registry that stalls, everything fetched has arrived and each reader waits in the kernel: then no byte may
    be asked for twice.  With one that is slow, the kill comes in the middle of answers."""
    point = tmp_path / "mounted"
    point.mkdir()
    chance = random.Random(21)
    with FaultRegistry(folder=tmp_path / "registry") as registry:
        reference = f"{registry.address}/kill/mount:v1"
        Tonne(tmp_path / "cache-of-pack").run("pack", source, reference)
        for turn in range(max(2, kills // 2)):
            tonne = Tonne(tmp_path / f"cache-{turn}")
            registry.faults.clear()
            registry.forget_requests()
            registry.rules.bytes_per_s = None if stalled else 4 * MIB
            pid = tonne.json("mount", reference, point)["pid"]
            asked_for_index = len(registry.requests)
            assert asked_for_index
            if stalled:
                pass_until = chance.randrange(3, 9)
                registry.faults.add(Fault("blob-get", Stall(LIMIT_S), nth=pass_until, times=None))
            with dropping_pages(point) as drop_pages, readers(point, source, 100 * turn) as processes:
                if stalled:
                    wait_for("a stall", lambda: len(_waiting(registry)) >= 1)
                    time.sleep(1.5)  # what came before it is decoded, kept and given to its readers
                else:
                    wait_for("bytes", lambda since=asked_for_index: fetched(registry, since) > 2 * MIB)
                    time.sleep(chance.uniform(0, 1.5))
                before = ranges(registry.requests)
                came = fetched(registry, asked_for_index)
                killed(pid)
                drop_pages()
                ends = ends_of(processes)
            assert set(ends[:READERS]) <= {"EIO", "ENOTCONN", "ECONNABORTED"}, ends
            assert set(ends[READERS:]) == {"SIGBUS"}, ends
            assert came > MIB, "nothing was fetched before the kill"
            with pytest.raises(OSError):
                os.listdir(point)
            tonne.run("umount", point)
            assert mount_at(point) is None
            registry.faults.clear()
            registry.rules.bytes_per_s = None
            since = len(registry.requests)
            with tonne.mounted(reference, point):
                assert differences(facts_of(source), facts_of(point)) == [], turn
            again = ranges(registry.requests[since:])
            assert again, "all had been fetched before the kill"
            twice = overlaps(before, again)
            if stalled:
                assert twice == [], turn
            else:
                # Whole answers that the process had not yet kept: one for each connection at most.
                assert len({(blob, start) for blob, start, _ in twice}) <= 8, twice
                assert sum(end - start for _, start, end in twice) < came
            assert sorted(path.name for path in tmp_path.glob(f"cache-{turn}/**/*") if path.suffix == ".new") == []


def _waiting(registry: FaultRegistry) -> list[Record]:
    return [record for record in registry.requests if record.fault is not None]


def test_killed_while_it_mounts(tmp_path: Path, source: Path) -> None:
    """Before it is mounted there is nothing to clear away, and the next mount works."""
    point = tmp_path / "mounted"
    point.mkdir()
    tonne = Tonne(tmp_path / "cache")
    with FaultRegistry(folder=tmp_path / "registry") as registry:
        reference = f"{registry.address}/kill/mounting:v1"
        tonne.run("pack", source, reference)
        registry.faults.add(Fault("blob-get", Stall(LIMIT_S), times=None))
        process = subprocess.Popen(
            tonne.arguments("--json", "mount", reference, point),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        wait_for("a request", lambda: len(_waiting(registry)) > 0)
        behind = _children(process.pid)
        for pid in behind:
            os.kill(pid, signal.SIGKILL)
        out, told = process.communicate(timeout=LIMIT_S)
        assert behind, "no process behind the command"
        assert process.returncode not in (0, None), out
        assert json.loads(told.splitlines()[-1])["error"]["code"]
        assert mount_at(point) is None
        registry.faults.clear()
        with tonne.mounted(reference, point):
            assert differences(facts_of(source), facts_of(point)) == []


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found
