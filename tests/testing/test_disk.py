from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.durable import write_document
from tonne.errors import DiskFull, LocalFailure, ReadOnly
from tonne.store.disk import Disk, OsDisk
from tonne.testing.disk import CALLS, FaultyDisk
from tonne.testing.power import after_power_cut, files_below, write_tree

WRITE = os.O_RDWR | os.O_CREAT


def test_it_is_a_disk_with_every_call_of_one() -> None:
    disk: Disk = FaultyDisk()
    own = {name for name in dir(OsDisk) if not name.startswith("_")}
    assert own == set(CALLS)
    assert own <= set(dir(disk))


def test_it_does_what_the_systems_disk_does(tmp_path: Path) -> None:
    disk = FaultyDisk()
    folder = str(tmp_path / "a" / "b")
    disk.makedirs(folder)
    path = f"{folder}/file"
    descriptor = disk.open(path, WRITE)
    disk.reserve(descriptor, 0, 10000)
    assert disk.pwrite(descriptor, b"x" * 10000, 5) == 10000
    disk.fdatasync(descriptor)
    disk.uncache(descriptor, 0, 4096)
    disk.punch(descriptor, 4096, 4096)
    disk.fsync(descriptor)
    assert disk.stat_open(descriptor).st_size == disk.stat(path).st_size == 10005
    assert disk.next_data(descriptor, 4096) == 8192
    buffer = bytearray(20000)
    assert disk.preadv(descriptor, [memoryview(buffer)], 0) == 10005
    assert buffer[:10005] == bytes(5) + b"x" * 4091 + bytes(4096) + b"x" * 1813
    assert disk.lock(descriptor)
    disk.unlock(descriptor)
    disk.close(descriptor)
    assert disk.open_count == 0
    disk.rename(path, f"{folder}/other")
    disk.touch(f"{folder}/other", 1000.5)
    assert disk.stat(f"{folder}/other").st_mtime == 1000.5
    assert disk.listdir(folder) == ["other"]
    disk.unlink(f"{folder}/other")
    disk.rmdir(folder)
    assert not Path(folder).exists()
    assert disk.boot_id() == OsDisk().boot_id()
    disk.boot = "after a restart"
    assert disk.boot_id() == "after a restart"
    assert {call for call, _ in disk.calls} == set(CALLS)


def test_the_nth_call_fails_and_so_many_after_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    descriptor = disk.open(str(tmp_path / "file"), WRITE)
    disk.fail("pwrite", errno.ENOSPC, nth=2, times=2)
    outcome = []
    for _ in range(5):
        try:
            disk.pwrite(descriptor, b"1234", 0)
            outcome.append(0)
        except OSError as error:
            outcome.append(error.errno or -1)
    disk.close(descriptor)
    assert outcome == [0, errno.ENOSPC, errno.ENOSPC, 0, 0]
    assert len(disk.fired) == 2
    assert [step.call for step in disk.steps] == ["create", "pwrite", "pwrite", "pwrite"]


def test_only_the_named_paths_fail_until_it_is_healed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail("open", errno.EROFS, times=None, path="*/records/*")
    (tmp_path / "records").mkdir()
    disk.close(disk.open(str(tmp_path / "data"), WRITE))
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            disk.open(str(tmp_path / "records" / "one"), WRITE)
    disk.heal()
    disk.close(disk.open(str(tmp_path / "records" / "one"), WRITE))


def test_a_torn_write_leaves_a_part_and_an_error(tmp_path: Path) -> None:
    disk = FaultyDisk()
    path = tmp_path / "file"
    descriptor = disk.open(str(path), WRITE)
    disk.tear(keep_bytes=3)
    with pytest.raises(OSError) as caught:
        disk.pwrite(descriptor, b"abcdef", 0)
    disk.close(descriptor)
    assert caught.value.errno == errno.EIO
    assert path.read_bytes() == b"abc"
    assert disk.steps[-1].data == b"abc"


def test_a_short_write_is_no_error(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.shorten(keep_bytes=2, times=None)
    write_document(tmp_path / "file", b"0123456789", disk)
    assert (tmp_path / "file").read_bytes() == b"0123456789"
    assert len(disk.fired) == 5


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [
        ("open", errno.EROFS, ReadOnly),
        ("pwrite", errno.ENOSPC, DiskFull),
        ("fsync", errno.EIO, LocalFailure),
        ("rename", errno.EACCES, ReadOnly),
    ],
)
def test_a_document_that_cannot_be_written_is_an_error_of_ours(
    tmp_path: Path, call: str, number: int, error: type[Exception]
) -> None:
    disk = FaultyDisk()
    disk.fail(call, number)
    with pytest.raises(error):
        write_document(tmp_path / "file", b"new", disk)
    assert disk.fired
    assert files_below(tmp_path) == {}


def test_unknown_calls_and_counts_are_refused() -> None:
    disk = FaultyDisk()
    with pytest.raises(ValueError):
        disk.fail("fsink", errno.EIO)
    with pytest.raises(ValueError):
        disk.fail("fsync", errno.EIO, nth=0)
    with pytest.raises(ValueError):
        disk.shorten(keep_bytes=0)


# --- power cuts


def recorded(folder: Path, *, durable: bool) -> tuple[dict[str, bytes], FaultyDisk]:
    """A document that replaces another one, and the state before."""
    (folder / "target").write_bytes(b"old and complete")
    before = files_below(folder)
    disk = FaultyDisk()
    write_document(folder / "target", b"new" * 100, disk, durable=durable)
    return before, disk


def test_at_every_cut_a_durable_document_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    before, disk = recorded(tmp_path, durable=True)
    seen = set()
    for end in range(len(disk.steps) + 1):
        for seed in range(40):
            state = after_power_cut(before, disk.steps[:end], random.Random(seed))
            seen.add(state[str(tmp_path / "target")])
    assert seen == {b"old and complete", b"new" * 100}
    complete = after_power_cut(before, disk.steps, random.Random(0))
    assert complete == {str(tmp_path / "target"): b"new" * 100}


def test_a_document_that_was_not_synced_may_be_torn(tmp_path: Path) -> None:
    """The model must be able to find what it is there to find."""
    before, disk = recorded(tmp_path, durable=False)
    states = [after_power_cut(before, disk.steps, random.Random(seed)) for seed in range(200)]
    seen = {state[str(tmp_path / "target")] for state in states}
    assert {b"old and complete", b"new" * 100, bytes(300), b""} <= seen
    assert any(b"new" in found and len(found) == 300 and found != b"new" * 100 for found in seen)


@given(st.randoms(use_true_random=False), st.data())
def test_what_was_synced_is_always_there(chance: random.Random, data: st.DataObject) -> None:
    """Against a model: bytes written before the last sync of a file and not written since."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        disk = FaultyDisk()
        path = f"{name}/file"
        descriptor = disk.open(path, WRITE)
        folder = disk.open(name, os.O_RDONLY | os.O_DIRECTORY)
        disk.fsync(folder)
        certain: dict[int, int] = {}
        written: dict[int, int] = {}
        for _ in range(data.draw(st.integers(0, 12))):
            if data.draw(st.booleans()):
                at, value = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 255))
                disk.pwrite(descriptor, bytes([value]) * 10, at)
                for place in range(at, at + 10):
                    written[place] = value
                    certain.pop(place, None)
            else:
                disk.fdatasync(descriptor)
                certain = dict(written)
        disk.close(descriptor)
        disk.close(folder)
        state = after_power_cut({}, disk.steps, chance)
    assert all(state[path][place] == value for place, value in certain.items())


def test_a_state_becomes_a_folder(tmp_path: Path) -> None:
    (tmp_path / "old" / "deep").mkdir(parents=True)
    (tmp_path / "old" / "deep" / "file").write_bytes(b"content")
    write_tree(files_below(tmp_path / "old"), tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new" / "deep" / "file").read_bytes() == b"content"


def test_a_name_that_comes_again_is_another_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    path = str(tmp_path / "file")
    for data in (b"first", b"second"):
        descriptor = disk.open(path, WRITE)
        disk.pwrite(descriptor, data, 0)
        disk.fsync(descriptor)
        disk.close(descriptor)
        if data == b"first":
            disk.unlink(path)
    folder = disk.open(str(tmp_path), os.O_RDONLY | os.O_DIRECTORY)
    disk.fsync(folder)
    disk.close(folder)
    assert after_power_cut({}, disk.steps, random.Random(1)) == {path: b"second"}


def test_removed_names_punched_holes_and_untouched_files(tmp_path: Path) -> None:
    for name in ("removed", "punched", "untouched"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    before = files_below(tmp_path)
    disk = FaultyDisk()
    disk.unlink(str(tmp_path / "removed"))
    descriptor = disk.open(str(tmp_path / "punched"), os.O_RDWR)
    disk.punch(descriptor, 4096, 4096)
    unsynced = [after_power_cut(before, disk.steps, random.Random(seed)) for seed in range(40)]
    disk.fdatasync(descriptor)
    disk.close(descriptor)
    folder = disk.open(str(tmp_path), os.O_RDONLY | os.O_DIRECTORY)
    disk.fsync(folder)
    disk.close(folder)
    punched, removed, untouched = (str(tmp_path / name) for name in ("punched", "removed", "untouched"))
    hole = b"x" * 4096 + bytes(4096)
    assert {removed in state for state in unsynced} == {True, False}
    assert {state[punched] for state in unsynced} == {b"x" * 8192, hole}
    assert all(state[untouched] == b"x" * 8192 for state in unsynced)
    certain = {punched: hole, untouched: b"x" * 8192}
    assert all(after_power_cut(before, disk.steps, random.Random(seed)) == certain for seed in range(10))
    assert files_below(tmp_path) == certain
