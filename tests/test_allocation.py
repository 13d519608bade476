"""Room on the disk: taken, given back, and never at the price of what a file holds."""

import errno
import os
from pathlib import Path

import pytest

from tonne import allocation

MIB = 1024 * 1024


@pytest.fixture
def descriptor(tmp_path: Path) -> object:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_reserved_room_is_taken_and_the_file_stays_as_it_was(descriptor: int) -> None:
    os.pwrite(descriptor, b"held", 4 * MIB)
    before = os.fstat(descriptor)
    allocation.reserve(descriptor, 4 * MIB, 8 * MIB)
    after = os.fstat(descriptor)
    assert after.st_size == before.st_size == 4 * MIB + 4
    assert (after.st_blocks - before.st_blocks) * 512 >= 7 * MIB
    assert os.pread(descriptor, 8, 4 * MIB) == b"held"
    assert not any(os.pread(descriptor, 4 * MIB, 0))


def test_a_small_range_costs_no_call(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_fallocate", lambda: pytest.fail("called"))
    allocation.reserve(descriptor, 0, allocation.RESERVE_BYTES_MIN - 1)


@pytest.mark.parametrize(("number", "told"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EOPNOTSUPP, False)])
def test_only_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch, number: int, told: bool) -> None:
    monkeypatch.setattr(allocation, "_fallocate", lambda: lambda *arguments: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: number)
    if told:
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            allocation.reserve(3, 0, 8 * MIB)
        assert caught.value.errno == number
    else:
        allocation.reserve(3, 0, 8 * MIB)


def test_a_hole_reads_as_zeros_and_takes_no_room(descriptor: int) -> None:
    os.pwrite(descriptor, b"x" * 3 * MIB, 0)
    os.fsync(descriptor)
    before = os.fstat(descriptor).st_blocks
    allocation.punch(descriptor, MIB, MIB)
    assert (before - os.fstat(descriptor).st_blocks) * 512 == MIB
    assert os.pread(descriptor, 3 * MIB, 0) == b"x" * MIB + bytes(MIB) + b"x" * MIB


def test_what_cannot_be_punched_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    opened = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="descriptor"):
            allocation.punch(opened, 0, 1)
    finally:
        os.close(opened)
