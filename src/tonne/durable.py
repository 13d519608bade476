"""The one durable write of a document, opening what others may have put there, and what the system's errors mean.

A document is there as a whole or not at all: a temporary file beside the target, its length checked, fsync, rename over
the target, fsync of the folder.  Not for frames: the store has an order of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from typing import Protocol

from tonne.errors import DiskFull, LocalError, LocalFailure, ReadOnly
from tonne.quoting import shown

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def local_error(
    error: OSError, what: str, where: str | bytes | os.PathLike[str] = "", *, reading: bool = False
) -> LocalError:
    """The error of ours that an `OSError` on a local file means: `DiskFull`, `ReadOnly` or `LocalFailure`.

    `reading`: nothing was to be written, so what is not permitted does not call for a place that can be written.
    """
    where = shown(where or error.filename or "")
    why = error.strerror or str(error)
    kind: type[LocalError] = LocalFailure
    if error.errno in _FULL:
        kind = DiskFull
    elif error.errno in _READ_ONLY and not reading:
        kind = ReadOnly
    return kind(what, where=where, why=why, errno=error.errno or 0)


@contextlib.contextmanager
def local_errors(what: str, where: str | bytes | os.PathLike[str] = "", *, reading: bool = False) -> Iterator[None]:
    """Turns every `OSError` inside into the error of ours, as `local_error`."""
    try:
        yield
    except OSError as error:
        raise local_error(error, what, where, reading=reading) from error


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> int:
    """A descriptor of a file, for reading; `OSError` at once when what stands there is none.

    Opening a fifo waits until somebody writes into it, and a device may wait for longer.
    """
    # On a regular file O_NONBLOCK means nothing.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    try:
        need_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def need_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    """`OSError` unless this is what the system says of a regular file."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def read_bounded(path: str | os.PathLike[str], limit_bytes: int) -> bytes | None:
    """A small file as a whole; None when it is longer than `limit_bytes`.  May raise OSError."""
    with open(open_regular(path), "rb") as file:
        data = file.read(limit_bytes + 1)
    return None if len(data) > limit_bytes else data


class DocumentDisk(Protocol):
    """The calls that a durable write makes, so that a test can let each of them fail.  Errors are `OSError`."""

    def open(self, path: str, flags: int) -> int:
        """A descriptor, closed on exec; new files get mode 0644 less the umask."""

    def close(self, descriptor: int) -> None: ...

    def stat_open(self, descriptor: int) -> os.stat_result:
        """fstat(2)."""

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Bytes written; fewer than given is no error."""

    def fsync(self, descriptor: int) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Replaces `new`."""

    def unlink(self, path: str) -> None: ...


class OsDocumentDisk:
    """The operating system's."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def stat_open(self, descriptor: int) -> os.stat_result:
        return os.fstat(descriptor)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)


OS_DISK = OsDocumentDisk()


def pwrite_all(disk: DocumentDisk, descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data`; `OSError` when the disk takes no more."""
    rest = memoryview(data).cast("B")
    while rest.nbytes:
        written = disk.pwrite(descriptor, rest, offset)
        if written <= 0:
            raise OSError(errno.EIO, "nothing was written")
        rest = rest[written:]
        offset += written


def write_document(
    path: str | os.PathLike[str], data: bytes, disk: DocumentDisk = OS_DISK, *, durable: bool = True
) -> None:
    """Put `data` at `path`, replacing what is there; after a crash one of the two is there, whole.

    Raises `DiskFull`, `ReadOnly` or `LocalFailure`; then the target is as it was and the temporary file is gone.  A
    process that is killed may leave ``NAME.PID-THREAD.part`` beside it.

    With `durable` False nothing is synced: for documents that are verified whenever they are read, where a torn one is
    only a missing one.
    """
    target = os.fspath(path)
    partial = f"{target}.{os.getpid()}-{threading.get_ident()}.part"
    with local_errors("a document cannot be written", target):
        try:
            _write_partial(disk, partial, data, durable)
            disk.rename(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink(partial)
            raise
        if durable:
            sync_folder(disk, os.path.dirname(target) or ".")


def _write_partial(disk: DocumentDisk, partial: str, data: bytes, durable: bool) -> None:
    descriptor = disk.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        pwrite_all(disk, descriptor, data, 0)
        if disk.stat_open(descriptor).st_size != len(data):
            raise OSError(errno.EIO, "the file has another length than was written")
        if durable:
            disk.fsync(descriptor)
    finally:
        disk.close(descriptor)


def sync_folder(disk: DocumentDisk, folder: str) -> None:
    """Make the names in a folder durable.  `OSError` when that fails; a file system that cannot is let off."""
    descriptor = disk.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        disk.close(descriptor)
