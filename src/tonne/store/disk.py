"""The calls of the operating system that the store makes, as a seam: tests let them fail, lose and tear.

Sources: fallocate(2), flock(2), lseek(2), fdatasync(2); Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Protocol

from tonne.durable import DocumentDisk, OsDocumentDisk

_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Disk(DocumentDisk, Protocol):
    """Any thread may call.  Errors are `OSError`; paths are absolute or relative as the store's folder is."""

    def preadv(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes read, 0 at the end of the file."""

    def fdatasync(self, descriptor: int) -> None: ...

    def punch(self, descriptor: int, offset: int, length: int) -> None:
        """Make a hole, which reads as zeros and takes no room; the file's size stays."""

    def next_data(self, descriptor: int, offset: int) -> int | None:
        """The first offset at or after `offset` that is no hole; None when there is none."""

    def lock(self, descriptor: int) -> bool:
        """Take the exclusive lock of the open file if it is free; never waits."""

    def unlock(self, descriptor: int) -> None: ...

    def stat(self, path: str) -> os.stat_result: ...

    def listdir(self, path: str) -> list[str]: ...

    def makedirs(self, path: str) -> None:
        """Make a folder and those above; being there is no error."""

    def rmdir(self, path: str) -> None: ...

    def boot_id(self) -> str:
        """Another one after each start of the machine."""


class OsDisk(OsDocumentDisk):
    """The operating system's disk."""

    def __init__(self) -> None:
        # os.posix_fallocate cannot punch; ctypes lets the GIL go during the call.
        self._fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
        self._fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def preadv(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def punch(self, descriptor: int, offset: int, length: int) -> None:
        while self._fallocate(descriptor, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, offset, length):
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))

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

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def boot_id(self) -> str:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
