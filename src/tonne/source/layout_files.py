"""What a layout needs of the file system beyond the durable write: making folders, a lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from tonne.clock import Clock, Deadline
from tonne.durable import DocumentDisk, local_errors, sync_folder
from tonne.errors import LocalFailure

_POLL_FIRST_S = 0.005  # an index is rewritten in milliseconds
_POLL_MAX_S = 0.2


@contextlib.contextmanager
def reading_errors(what: str, where: str) -> Iterator[None]:
    """Within it, any OSError is a `LocalFailure`: what may not be read is not a folder that must be written."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise LocalFailure(what, where=where, why=why, errno=error.errno or 0) from error


def make_folders(disk: DocumentDisk, path: str) -> None:
    """Make a folder and those above it, durably.  May raise OSError."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path) or "."
    make_folders(disk, parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    sync_folder(disk, parent)


@contextlib.contextmanager
def locked(path: str, deadline: Deadline, clock: Clock) -> Iterator[None]:
    """Hold the lock on a file, among threads and processes; the file must be there and writable.

    The kernel gives it back when the process ends, however that happens.  Raises `DeadlineExceeded`, `ReadOnly` or
    `LocalFailure`.
    """
    descriptor = _lock(path, deadline, clock)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: str, deadline: Deadline, clock: Clock) -> int:
    wait_s = _POLL_FIRST_S
    while True:
        with local_errors("a file cannot be locked", path):
            if (descriptor := _try_lock(path)) is not None:
                return descriptor
        deadline.check("another process holds the lock on the layout", path)
        left_s = deadline.left_s()
        clock.sleep(wait_s if left_s is None else min(wait_s, left_s))
        wait_s = min(_POLL_MAX_S, 2 * wait_s)


def _try_lock(path: str) -> int | None:
    # Open for writing, since NFS turns the lock into one of ranges, which needs it.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another tool may have put a new file in its place; then a lock on the old one excludes nobody.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
