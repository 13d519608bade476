"""The durable write: whole or not at all, and the right error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tonne.durable import OsDocumentDisk, local_error, write_document
from tonne.errors import DiskFull, LocalFailure, ReadOnly


class FailingDisk(OsDocumentDisk):
    """Fails the named call with an errno; writes at most `step` bytes at once; notes the order of calls."""

    def __init__(self, call: str = "", number: int = errno.EIO, step: int = 1 << 30) -> None:
        self._call = call
        self._number = number
        self._step = step
        self.calls: list[str] = []

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self._call:
            raise OSError(self._number, os.strerror(self._number))

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self._note("pwrite")
        return super().pwrite(descriptor, memoryview(data)[: self._step], offset)

    def fsync(self, descriptor: int) -> None:
        self._note("fsync")
        super().fsync(descriptor)

    def rename(self, old: str, new: str) -> None:
        self._note("rename")
        super().rename(old, new)


def test_writes_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "document"
    write_document(target, b"one")
    write_document(target, b"the second")
    assert target.read_bytes() == b"the second"
    assert os.listdir(tmp_path) == ["document"]


def test_syncs_before_and_after_the_rename(tmp_path: Path) -> None:
    disk = FailingDisk(step=2)
    write_document(tmp_path / "document", b"12345", disk)
    assert disk.calls == ["pwrite", "pwrite", "pwrite", "fsync", "rename", "fsync"]
    assert (tmp_path / "document").read_bytes() == b"12345"


def test_without_durability_nothing_is_synced(tmp_path: Path) -> None:
    disk = FailingDisk(call="fsync")
    write_document(tmp_path / "document", b"12345", disk, durable=False)
    assert (tmp_path / "document").read_bytes() == b"12345"


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EROFS, ReadOnly), (errno.EIO, LocalFailure)]
)
def test_a_failure_leaves_the_old_document(tmp_path: Path, call: str, number: int, kind: type[Exception]) -> None:
    target = tmp_path / "document"
    write_document(target, b"old")
    with pytest.raises(kind) as caught:
        write_document(target, b"new", FailingDisk(call, number))
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["document"]
    assert str(target) in str(caught.value)


def test_a_file_that_is_shorter_than_written_is_a_failure(tmp_path: Path) -> None:
    class Losing(OsDocumentDisk):
        def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
            super().pwrite(descriptor, memoryview(data)[:1], offset)
            return len(data)

    with pytest.raises(LocalFailure):
        write_document(tmp_path / "document", b"12345", Losing())
    assert os.listdir(tmp_path) == []


def test_errors_keep_path_and_number() -> None:
    error = local_error(OSError(errno.EDQUOT, "Disk quota exceeded", "/x/y"), "it failed")
    assert isinstance(error, DiskFull)
    assert error.where == "/x/y"
    assert error.fields["errno"] == errno.EDQUOT
