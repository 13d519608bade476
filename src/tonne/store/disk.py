"""The calls of the operating system that the store makes, as a seam: tests let them fail, lose and tear.

Sources: fallocate(2), flock(2), lseek(2), fdatasync(2); Linux only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Protocol

from tonne.allocation import punch, reserve
from tonne.durable import DocumentDisk, OsDocumentDisk

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Disk(DocumentDisk, Protocol):
    """Any thread may call.  Errors are `OSError`; paths are absolute or relative as the store's folder is."""

    def preadv(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes read, 0 at the end of the file."""

    def fdatasync(self, descriptor: int) -> None: ...

    def uncache(self, descriptor: int, offset: int, length: int) -> None:
        """Let the page cache go of bytes that are on the disk."""

    def reserve(self, descriptor: int, offset: int, length: int) -> None:
        """Take room for bytes that are about to be written, if that helps; fails only where the disk is full."""

    def punch(self, descriptor: int, offset: int, length: int) -> None:
        """Make a hole, which reads as zeros and takes no room; the file's size stays."""

    def next_data(self, descriptor: int, offset: int) -> int | None:
        """The first offset at or after `offset` that is no hole; None when there is none."""

    def lock(self, descriptor: int) -> bool:
        """Take the exclusive lock of the open file if it is free; never waits."""

    def unlock(self, descriptor: int) -> None: ...

    def stat(self, path: str) -> os.stat_result: ...

    def touch(self, path: str, mtime_s: float) -> None:
        """Set the time of a file, in seconds since the epoch."""

    def listdir(self, path: str) -> list[str]: ...

    def makedirs(self, path: str) -> None:
        """Make a folder and those above; being there is no error."""

    def rmdir(self, path: str) -> None: ...

    def boot_id(self) -> str:
        """Another one after each start of the machine."""


class OsDisk(OsDocumentDisk):
    """The operating system's disk."""

    def preadv(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def uncache(self, descriptor: int, offset: int, length: int) -> None:
        with contextlib.suppress(OSError):  # advice
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def reserve(self, descriptor: int, offset: int, length: int) -> None:
        reserve(descriptor, offset, length)

    def punch(self, descriptor: int, offset: int, length: int) -> None:
        punch(descriptor, offset, length)

    def next_data(self, descriptor: int, offset: int) -> int | None:
        try:
            return os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def stat(self, path: str) -> os.stat_result:
        return os.stat(path)

    def touch(self, path: str, mtime_s: float) -> None:
        os.utime(path, (mtime_s, mtime_s), follow_symlinks=False)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def boot_id(self) -> str:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
