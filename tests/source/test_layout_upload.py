"""Uploads into a layout: crashes, full disks, several processes, and what is swept."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonne.durable import OsDocumentDisk
from tonne.errors import CorruptBytes, DiskFull, LocalError, LocalFailure, Locked, ReadOnly, SessionLost
from tonne.model import Blob, Digest
from tonne.source.layout import LayoutRepository
from tonne.source.layout_upload import FOLDER, STALE_S
from tonne.testing.conformance import (
    EMPTY_CONFIG,
    TAG,
    load,
    manifest_of,
    read_all,
    send,
    some_bytes,
    soon,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "layout"


@pytest.fixture
def layout(folder: Path) -> Iterator[LayoutRepository]:
    repository = LayoutRepository(str(folder))
    yield repository
    repository.close()


# --- going on


def test_what_was_not_recorded_is_cut_off(folder: Path, layout: LayoutRepository) -> None:
    upload = layout.start(soon())
    upload.append(memoryview(b"recorded"), soon())
    token = upload.token
    layout.close()
    with (folder / FOLDER / token).open("ab") as file:
        file.write(b"written, but not known to be on the disk")
    resumed = layout.resume(token, soon())
    assert resumed.acknowledged_bytes == (folder / FOLDER / token).stat().st_size == 8
    resumed.append(memoryview(b" and more"), soon())
    digest = Digest.of(b"recorded and more")
    resumed.finish(digest, soon())
    assert read_all(layout, Blob(digest, 17)) == b"recorded and more"


@pytest.mark.parametrize("record", [None, b"", b"00000", b"x" * 20, b"9" * 20])
def test_a_record_that_is_lost_or_torn_claims_nothing_that_is_not_there(
    folder: Path, layout: LayoutRepository, record: bytes | None
) -> None:
    upload = layout.start(soon())
    upload.append(memoryview(b"some"), soon())
    token = upload.token
    layout.close()
    path = folder / FOLDER / f"{token}.length"
    if record is None:
        path.unlink()
    else:
        path.write_bytes(record)
    resumed = layout.resume(token, soon())
    # More than there is cannot be acknowledged; nothing that is unreadable can.
    assert resumed.acknowledged_bytes == (4 if record == b"9" * 20 else 0)
    resumed.append(memoryview(b"some")[resumed.acknowledged_bytes :], soon())
    resumed.finish(Digest.of(b"some"), soon())


def test_bytes_that_changed_on_the_disk_meanwhile_are_found(folder: Path, layout: LayoutRepository) -> None:
    upload = layout.start(soon())
    upload.append(memoryview(b"good"), soon())
    token = upload.token
    layout.close()
    (folder / FOLDER / token).write_bytes(b"evil")
    with pytest.raises(CorruptBytes):
        layout.resume(token, soon()).finish(Digest.of(b"good"), soon())
    assert sorted(os.listdir(folder)) == ["index.json", "oci-layout"]


def test_whoever_resumes_takes_over(layout: LayoutRepository) -> None:
    upload = layout.start(soon())
    resumed = layout.resume(upload.token, soon())
    with pytest.raises(SessionLost):
        upload.append(memoryview(b"from the first"), soon())
    with pytest.raises(SessionLost):
        upload.finish(Digest.of(b""), soon())
    resumed.append(memoryview(b"some"), soon())
    resumed.finish(Digest.of(b"some"), soon())
    with pytest.raises(SessionLost):
        resumed.append(memoryview(b"after the end"), soon())
    with pytest.raises(CorruptBytes):
        resumed.finish(Digest.of(b"other"), soon())


def test_an_upload_in_use_elsewhere_cannot_be_taken(folder: Path, layout: LayoutRepository) -> None:
    upload = layout.start(soon())
    other = LayoutRepository(str(folder))
    with pytest.raises(Locked):
        other.resume(upload.token, soon())
    layout.close()
    other.resume(upload.token, soon()).cancel(soon())


@pytest.mark.parametrize("token", ["../../etc/passwd", "0" * 31, "0" * 33, "g" * 32, "0" * 32 + ".length", "0" * 32])
def test_what_is_no_token_of_ours(layout: LayoutRepository, token: str) -> None:
    layout.check_rights(soon())
    with pytest.raises(SessionLost):
        layout.resume(token, soon())


_steps = st.tuples(st.sampled_from(["append", "resume", "fail", "crash"]), st.integers(1, 2000), st.integers(1, 3))


@settings(max_examples=40)
@given(st.lists(_steps, max_size=8))
def test_any_order_of_appends_resumes_and_failures_ends_in_the_same_blob(steps: list[tuple[str, int, int]]) -> None:
    whole = memoryview(some_bytes(9, 5000))
    with tempfile.TemporaryDirectory() as path:
        disk = FaultyDisk()
        layout = LayoutRepository(path, disk=disk)
        upload = layout.start(soon())
        for step, length, nth in steps:
            start = upload.acknowledged_bytes
            chunk = whole[start : start + length]
            if step == "append":
                upload.append(chunk, soon())
                assert upload.acknowledged_bytes == start + chunk.nbytes
            elif step == "fail" and chunk.nbytes:
                disk.fail_at(nth, errno.ENOSPC)
                with pytest.raises(DiskFull):
                    upload.append(chunk, soon())
                disk.heal()
                assert upload.acknowledged_bytes == start
            else:
                token = upload.token
                if step == "crash":
                    layout.close()
                    layout = LayoutRepository(path, disk=disk)
                upload = layout.resume(token, soon())
                assert upload.acknowledged_bytes == start
        upload.append(whole[upload.acknowledged_bytes :], soon())
        upload.finish(Digest.of(whole), soon())
        assert read_all(layout, Blob(Digest.of(whole), whole.nbytes)) == bytes(whole)
        assert FOLDER not in os.listdir(path)
        layout.close()


# --- a disk that fails


class FaultyDisk(OsDocumentDisk):
    """Fails the n-th call that changes something, and all after it, until it is healed."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._number = 0
        self.calls = 0

    def fail_at(self, nth: int, number: int) -> None:
        self._left, self._number = nth, number

    def heal(self) -> None:
        self._left = None

    def _call(self) -> None:
        self.calls += 1
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise OSError(self._number, os.strerror(self._number))

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT:
            self._call()
        return super().open(path, flags)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self._call()
        # What a full disk takes before it is full.
        return super().pwrite(descriptor, memoryview(data)[: max(1, len(data) // 2)], offset)

    def fsync(self, descriptor: int) -> None:
        # Counted only: no test here cuts the power.
        self._call()

    def rename(self, old: str, new: str) -> None:
        self._call()
        super().rename(old, new)


def _calls_of_a_load(path: Path) -> int:
    disk = FaultyDisk()
    load(LayoutRepository(str(path), disk=disk))
    return disk.calls


@pytest.mark.parametrize(
    ("number", "kind", "step"), [(errno.ENOSPC, DiskFull, 1), (errno.EROFS, ReadOnly, 5), (errno.EIO, LocalFailure, 5)]
)
def test_a_disk_that_fails_at_any_call(tmp_path: Path, number: int, kind: type[LocalError], step: int) -> None:
    total = _calls_of_a_load(tmp_path / "counted")
    assert total > 20
    for nth in range(1, total + 1, step):
        path = tmp_path / f"at-{nth}"
        disk = FaultyDisk()
        layout = LayoutRepository(str(path), disk=disk)
        disk.fail_at(nth, number)
        with pytest.raises(kind) as caught:
            load(layout)
        assert str(path) in str(caught.value)
        layout.close()
        disk.heal()
        # Nothing half-done is in the way of a second attempt, and what the first one stored is whole.
        for file in path.glob("blobs/sha256/*"):
            assert Digest.of(file.read_bytes()).hex == file.name
        content = load(LayoutRepository(str(path), disk=disk))
        assert read_all(LayoutRepository(str(path)), content.blob) == content.data
        assert not list(path.glob("*.part"))


def test_a_replaced_tag_survives_a_disk_that_fails_at_any_call(tmp_path: Path) -> None:
    path = tmp_path / "layout"
    disk = FaultyDisk()
    layout = LayoutRepository(str(path), disk=disk)
    content = load(layout)
    config = send(layout, EMPTY_CONFIG)
    for nth in range(1, 100):
        changed = manifest_of([content.blob], config, nth=str(nth))
        disk.fail_at(nth, errno.ENOSPC)
        try:
            layout.put_manifest(TAG, changed, soon())
        except DiskFull:
            disk.heal()
            # The old one or, when only making the name last has failed, the new one; both are whole.
            assert layout.manifest(TAG, soon()) in (content.document, changed)
            layout.put_manifest(TAG, content.document, soon())
        else:
            disk.heal()
            assert layout.manifest(TAG, soon()) == changed
            break
    else:
        pytest.fail("it never got to the end")
    assert nth > 8


# --- several processes

_STORE = """
import sys
from tonne.source.layout import LayoutRepository
from tonne.testing.conformance import EMPTY_CONFIG, manifest_of, send, some_bytes, soon
path, number = sys.argv[1], int(sys.argv[2])
layout = LayoutRepository(path)
for step in range(8):
    blob = send(layout, some_bytes(number * 100 + step, 2000))
    document = manifest_of([blob], send(layout, EMPTY_CONFIG), number=f"{number}-{step}")
    layout.put_manifest(f"p{number}-{step}", document, soon())
    layout.put_manifest("shared", document, soon())
    if step % 2:
        layout.delete(document.digest, "", soon())
"""


def test_four_processes_at_once(folder: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", _STORE, str(folder), str(number)]) for number in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    layout = LayoutRepository(str(folder))
    expected = [f"p{number}-{step}" for number in range(4) for step in (0, 2, 4, 6)]
    assert [tag for tag in layout.tags(soon()) if tag != "shared"] == expected
    for tag in expected:
        document = layout.manifest(tag, soon())
        for layer in json.loads(document.data)["layers"]:
            blob = Blob(Digest.parse(layer["digest"]), layer["size"])
            assert Digest.of(read_all(layout, blob)) == blob.digest
    assert sorted(os.listdir(folder)) == ["blobs", "index.json", "oci-layout"]


_ENDLESS = """
import sys
from tonne.source.layout import LayoutRepository
from tonne.testing.conformance import load, some_bytes, soon
layout = LayoutRepository(sys.argv[1])
load(layout)
upload = layout.start(soon())
data = memoryview(some_bytes(11, 1_000_000))
for start in range(0, len(data), 1000):
    upload.append(data[start:start + 1000], soon())
    print(upload.token, upload.acknowledged_bytes, flush=True)
"""


def test_an_upload_goes_on_after_kill_9(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _ENDLESS, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    lines += process.stdout.readlines()
    process.stdout.close()
    token, told = lines[-1].split()
    layout = LayoutRepository(str(folder))
    upload = layout.resume(token, soon())
    assert int(told) <= upload.acknowledged_bytes <= int(told) + 1000
    data = memoryview(some_bytes(11, 1_000_000))
    upload.append(data[upload.acknowledged_bytes :], soon())
    upload.finish(Digest.of(data), soon())
    assert read_all(layout, Blob(Digest.of(data), data.nbytes)) == bytes(data)
    assert sorted(os.listdir(folder)) == ["blobs", "index.json", "oci-layout"]


# --- sweeping


def _age(path: Path) -> None:
    then_s = time.time() - STALE_S - 60
    os.utime(path, (then_s, then_s))


def test_what_was_forgotten_for_a_day_is_swept(folder: Path, layout: LayoutRepository) -> None:
    forgotten = layout.start(soon())
    forgotten.append(memoryview(b"some"), soon())
    layout.close()
    for path in (folder / FOLDER).iterdir():
        _age(path)
    lonely = folder / FOLDER / ("0" * 32 + ".length")
    lonely.write_bytes(b"0" * 20)
    _age(lonely)
    fresh = layout.start(soon())
    assert sorted(os.listdir(folder / FOLDER)) == [fresh.token, f"{fresh.token}.length"]
    with pytest.raises(SessionLost):
        layout.resume(forgotten.token, soon())
    fresh.cancel(soon())
    assert not (folder / FOLDER).exists()


def test_what_is_in_use_or_younger_or_not_ours_stays(folder: Path, layout: LayoutRepository) -> None:
    in_use = layout.start(soon())
    _age(folder / FOLDER / in_use.token)
    other = LayoutRepository(str(folder))
    younger = other.start(soon())
    other.close()
    foreign = folder / FOLDER / "notes.txt"
    foreign.write_bytes(b"not ours")
    _age(foreign)
    (folder / FOLDER / ("f" * 32)).symlink_to("/etc/hostname")
    layout.check_rights(soon())
    kept = {in_use.token, f"{in_use.token}.length", younger.token, f"{younger.token}.length", "notes.txt", "f" * 32}
    assert set(os.listdir(folder / FOLDER)) == kept
    in_use.append(memoryview(b"some"), soon())
    in_use.finish(Digest.of(b"some"), soon())


def test_a_stale_upload_does_not_keep_blobs(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    layout.start(soon())
    layout.close()
    for path in (folder / FOLDER).iterdir():
        _age(path)
    layout.delete(content.document.digest, TAG, soon())
    assert os.listdir(folder / "blobs" / "sha256") == []


def test_what_a_killed_process_left_of_index_json_goes_with_the_next(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    (folder / "index.json.1-1.part").write_bytes(b"half of an ind")
    (folder / "index.json.bak").write_bytes(b"not ours")
    layout.put_manifest("v2", content.document, soon())
    assert sorted(os.listdir(folder)) == ["blobs", "index.json", "index.json.bak", "oci-layout"]


def test_an_upload_that_is_dropped_lets_go_of_its_file(layout: LayoutRepository) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        layout.start(soon()).append(memoryview(b"some"), soon())
    assert len(os.listdir("/proc/self/fd")) <= before + 4
