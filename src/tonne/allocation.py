"""Room for a file's bytes on the disk, taken and given back: fallocate(2), of which `os` has the least useful part.

Taking the room of some megabytes before they are written is worth its call: ext4 then makes large pieces at once
instead of reserving block by block as pages become dirty (a GiB written so: 0.36 s of CPU instead of 0.66, on 6.18).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os

RESERVE_BYTES_MIN = 1024 * 1024  # below, the call costs more than it brings

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@functools.cache
def _fallocate() -> ctypes._NamedFuncPointer:
    # os.posix_fallocate writes zeros where the file system cannot, and cannot punch; ctypes lets the GIL go.
    call = ctypes.CDLL(None, use_errno=True).fallocate64
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return call


def reserve(descriptor: int, offset: int, length: int) -> None:
    """Have room for bytes that are about to be written; the file's size stays, and so does what it holds.

    `OSError` when the disk or a quota is full.  Whatever else stands against it, a file system that cannot for one, is
    no error: the write will tell.
    """
    if length < RESERVE_BYTES_MIN:
        return
    if _fallocate()(descriptor, _KEEP_SIZE, offset, length):
        number = ctypes.get_errno()
        if number in _FULL:
            raise OSError(number, os.strerror(number))


def punch(descriptor: int, offset: int, length: int) -> None:
    """Make a hole, which reads as zeros and takes no room; the file's size stays.  `OSError` when that cannot be."""
    while _fallocate()(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
