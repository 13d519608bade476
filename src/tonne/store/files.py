"""Where a blob lies in the store, and its open files.

FOLDER/version                     "tonne store 1"
FOLDER/lock                        locked by the process that evicts
FOLDER/documents/sha256-HEX        small blobs and manifests as a whole
FOLDER/blobs/sha256-HEX/data       the blob, sparse; locked (flock) by whoever changes anything in this folder
                        records    what is in it (tonne.store.records)
                        used       the last use of each stripe: u64 milliseconds since the epoch, little endian
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from dataclasses import dataclass

from tonne.errors import CorruptDocument
from tonne.model import Digest
from tonne.model.frame import STRIPE_BYTES
from tonne.store.disk import Disk

STAMP = struct.Struct("<Q")
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
ATTEMPTS = 8  # another process may forget the blob between our calls, hardly ever more than once


def name_of(digest: Digest) -> str:
    """The file name of a digest: without the colon, which some tools take for a host."""
    return f"{digest.algorithm}-{digest.hex}"


def digest_of(name: str) -> Digest | None:
    """The digest that a file name stands for; None for any other name."""
    algorithm, _, hexadecimal = name.partition("-")
    try:
        return Digest(algorithm, hexadecimal)
    except CorruptDocument:
        return None


@dataclass(slots=True)
class BlobFiles:
    """Open descriptors; `used` is -1 where it cannot be written."""

    data: int
    records: int
    used: int
    writable: bool


def open_files(disk: Disk, folder: str, create: bool) -> BlobFiles | None:
    """Open a blob's files, to write where that is possible; None when it is not there and not to be made.

    Raises `OSError`; with `create`, also where nothing may be written.
    """
    for _ in range(ATTEMPTS):
        try:
            return _open_all(disk, folder, os.O_RDWR | (os.O_CREAT if create else 0))
        except FileNotFoundError:
            if not create:
                return None
            # makedirs(3) of Python finds a folder that is gone when it looks again.
            with contextlib.suppress(FileExistsError):
                disk.makedirs(folder)
        except OSError as error:
            if create or error.errno not in _READ_ONLY:
                raise
            try:
                return _open_all(disk, folder, os.O_RDONLY)
            except FileNotFoundError:
                return None
    raise OSError(errno.EBUSY, "the blob comes and goes", folder)


def _open_all(disk: Disk, folder: str, flags: int) -> BlobFiles:
    opened: list[int] = []
    writable = flags & os.O_ACCMODE != os.O_RDONLY
    try:
        for name in ("data", "records"):
            opened.append(disk.open(os.path.join(folder, name), flags | os.O_NOFOLLOW))
        if writable:
            opened.append(disk.open(os.path.join(folder, "used"), flags | os.O_CREAT | os.O_NOFOLLOW))
    except BaseException:
        close_all(disk, opened)
        raise
    return BlobFiles(opened[0], opened[1], opened[2] if writable else -1, writable)


def close_all(disk: Disk, descriptors: list[int]) -> None:
    """Close; a failure says nothing that matters here, since what must be kept was synced."""
    for descriptor in descriptors:
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                disk.close(descriptor)


def read_all(disk: Disk, descriptor: int, offset: int, out: memoryview) -> int:
    """Read until `out` is full or the file ends; how many bytes were read."""
    done = 0
    while done < out.nbytes:
        count = disk.preadv(descriptor, [out[done:]], offset + done)
        if count <= 0:
            break
        done += count
    return done


def stripes_with_data(disk: Disk, folder: str) -> list[tuple[int, int]]:
    """(last use in milliseconds, stripe) of each stripe of a blob that takes room; 0 where the use is not known."""
    try:
        data = disk.open(os.path.join(folder, "data"), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    try:
        stripes: list[int] = []
        found = disk.next_data(data, 0)
        while found is not None:
            stripes.append(found // STRIPE_BYTES)
            found = disk.next_data(data, (stripes[-1] + 1) * STRIPE_BYTES)
    finally:
        disk.close(data)
    stamps = _stamps(disk, os.path.join(folder, "used"), stripes[-1] + 1) if stripes else b""
    return [(STAMP.unpack_from(stamps, stripe * STAMP.size)[0], stripe) for stripe in stripes]


def _stamps(disk: Disk, path: str, count: int) -> bytearray:
    """The file's first `count` stamps, zeros where it has none."""
    stamps = bytearray(count * STAMP.size)
    try:
        used = disk.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return stamps
    try:
        read_all(disk, used, 0, memoryview(stamps))
    except OSError:
        return bytearray(count * STAMP.size)
    finally:
        disk.close(used)
    return stamps
