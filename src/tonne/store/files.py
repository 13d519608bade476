"""Where a blob lies in the store, and its open files.

FOLDER/version                     "tonne store 1"
FOLDER/lock                        locked by the process that evicts
FOLDER/documents/sha256-HEX        small blobs and manifests as a whole
FOLDER/blobs/sha256-HEX/data       the blob, sparse; locked (flock) by whoever changes anything in this folder
                        records    what is in it (tonne.store.records)
                        used       16 bytes a stripe, little endian: u64 its last use in milliseconds since the epoch,
                                   u64 how many of its first bytes are of a frame that starts in the stripe before
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from dataclasses import dataclass
from typing import Self

from tonne.errors import CorruptDocument
from tonne.model import Digest
from tonne.model.frame import STRIPE_BYTES
from tonne.store.disk import Disk

USE = struct.Struct("<QQ")  # a stripe's last use, its lead
STAMP = struct.Struct("<Q")  # either of them
LEAD_PLACE = STAMP.size  # of the lead in a stripe's record
_USE_PAGE = 256  # stripes of which the use is read at once
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_BLOCK_BYTES_MAX = 128 * 1024  # NFS says what it likes to be asked for; no local file system has larger blocks
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


def block_bytes(status: os.stat_result) -> int:
    """What a file takes room by: a part of a block cannot be given back."""
    return min(max(status.st_blksize, 1), _BLOCK_BYTES_MAX)


def paths_in(disk: Disk, folder: str) -> list[str]:
    """What a folder holds; nothing when it is not there."""
    try:
        return [os.path.join(folder, name) for name in disk.listdir(folder)]
    except FileNotFoundError:
        return []


@dataclass(frozen=True, slots=True)
class UsedStripe:
    """A stripe of a blob that takes room: the bytes of the frames that start in it."""

    used_ms: int  # 0 where it is not known
    start: int
    end: int


def stripes_with_data(disk: Disk, folder: str) -> list[UsedStripe] | None:
    """The stripes of a blob that take room; None when there is no such blob."""
    try:
        data = disk.open(os.path.join(folder, "data"), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        block = block_bytes(disk.stat_open(data))
        stripes: list[UsedStripe] = []
        with _Uses(disk, os.path.join(folder, "used")) as uses:
            found = disk.next_data(data, 0)
            while found is not None:
                stripe = uses.stripe_at(found)
                # The blocks at its borders may be those of its neighbours alone: then it has no stamp.
                inner = disk.next_data(data, -(-stripe.start // block) * block)
                if stripe.used_ms or (inner is not None and inner < stripe.end // block * block):
                    stripes.append(stripe)
                found = disk.next_data(data, stripe.end)
        return stripes
    finally:
        disk.close(data)


class _Uses:
    """Reads a blob's file `used`, a page at a time; what it does not say counts as 0.  For one thread."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._used = -1
        self._page: tuple[int, bytearray] = (-1, bytearray())

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._used = self._disk.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        return self

    def __exit__(self, *exc: object) -> None:
        close_all(self._disk, [self._used])

    def stripe_at(self, offset: int) -> UsedStripe:
        """The stripe that a byte belongs to."""
        number = offset // STRIPE_BYTES
        if number and offset < number * STRIPE_BYTES + self._of(number)[1]:
            number -= 1
        used_ms, lead = self._of(number)
        return UsedStripe(used_ms, number * STRIPE_BYTES + lead, (number + 1) * STRIPE_BYTES + self._of(number + 1)[1])

    def _of(self, stripe: int) -> tuple[int, int]:
        """Last use and lead."""
        page, place = divmod(stripe, _USE_PAGE)
        if self._page[0] != page:
            self._page = page, bytearray(_USE_PAGE * USE.size)
            if self._used >= 0:
                with contextlib.suppress(OSError):
                    read_all(self._disk, self._used, page * _USE_PAGE * USE.size, memoryview(self._page[1]))
        used_ms, lead = USE.unpack_from(self._page[1], place * USE.size)
        return used_ms, lead if lead <= STRIPE_BYTES else 0
