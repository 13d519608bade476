"""What a pull keeps beside the files that it makes, in DIR/.tonne-pull, until it is done.

pull.json   which manifest is being pulled
pages       the index's pages at their offsets, sparse; each is verified whenever it is read
records     which bytes of unfinished files are on the disk, durably
files/N     the unfinished file of inode N, at its full length, sparse
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterable

from tonne.durable import local_errors
from tonne.errors import CorruptDocument, TargetExists
from tonne.image.fetch import Keeper, Kept
from tonne.image.pull_target import Target
from tonne.model import Blob, Digest

FOLDER = b".tonne-pull"
FILES = FOLDER + b"/files"
_DOCUMENT = b"pull.json"
_DOCUMENT_BYTES_MAX = 64 * 1024
_VERSION = 1
_RECORD = struct.Struct("<IIQQ")  # CRC-32 of the rest, inode, offset, length


class PullState:
    """The folder .tonne-pull.

    `record` may be called by one thread; all else is done by the thread that opened it.  A crash leaves at worst a torn
    record at the end, which is dropped; a record is written only after its bytes were synced.
    """

    def __init__(self, target: Target, digest: Digest) -> None:
        """Make it, or take up what an earlier pull of the same manifest left (see `pulled_before`)."""
        self._target = target
        where = target.where(FOLDER)
        with local_errors("the state of the pull cannot be written", where):
            self.files = os.dup(target.folder(FILES, create=True))
            folder = target.folder(FOLDER)
            self.pages = os.open(b"pages", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
            self._write_document(folder, digest)
            self.unfinished = {int(name) for name in os.listdir(self.files) if name.isdigit()}
            self.durable = self._compact(folder)
            self._records = os.open(b"records", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)

    @staticmethod
    def pulled_before(target: Target) -> Digest | None:
        """The manifest that an unfinished pull in this folder was of; None when there was none."""
        try:
            folder = target.folder(FOLDER)
        except FileNotFoundError:
            return None
        try:
            with open(
                b"pull.json", "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
            ) as file:
                document = json.loads(file.read(_DOCUMENT_BYTES_MAX))
            return Digest.parse(str(document["manifest"]))
        except FileNotFoundError:
            return None  # killed before the first document: nothing else was made
        except (ValueError, KeyError, TypeError, CorruptDocument, OSError):
            where = target.where(FOLDER)
            raise TargetExists("the state of an earlier pull cannot be read", where=where, todo="use --force") from None

    @staticmethod
    def discard(target: Target) -> None:
        """Remove what an earlier pull left."""
        for path in (FILES, FOLDER):
            try:
                descriptor = target.folder(path)
            except FileNotFoundError:
                continue
            with local_errors("the state of an earlier pull cannot be removed", target.where(path)):
                for name in os.listdir(descriptor):
                    with contextlib.suppress(IsADirectoryError):
                        os.unlink(name, dir_fd=descriptor)
                target.forget(path)
                parent, _, name_bytes = path.rpartition(b"/")
                os.rmdir(name_bytes, dir_fd=target.folder(parent))

    def _write_document(self, folder: int, digest: Digest) -> None:
        data = json.dumps({"version": _VERSION, "manifest": str(digest)}).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(b"pull.json.new", flags, 0o600, dir_fd=folder)
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(b"pull.json.new", _DOCUMENT, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)

    def _compact(self, folder: int) -> dict[int, list[tuple[int, int]]]:
        """Read the records and keep those of files that are still unfinished.

        The others must go before the file of such an inode could be begun anew: they speak of bytes of a file that is
        gone.
        """
        durable: dict[int, list[tuple[int, int]]] = {}
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(b"records", flags, 0o600, dir_fd=folder), "rb") as file:
            while len(data := file.read(_RECORD.size)) == _RECORD.size:
                check, inode, offset, length = _RECORD.unpack(data)
                if check != zlib.crc32(data[4:]):
                    break
                if inode in self.unfinished:
                    durable.setdefault(inode, []).append((offset, offset + length))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(b"records.new", flags, 0o600, dir_fd=folder), "wb") as file:
            for inode, ranges in durable.items():
                ranges[:] = merged(ranges)
                file.write(b"".join(_record(inode, start, end) for start, end in ranges))
            file.flush()
            os.fsync(file.fileno())
        os.rename(b"records.new", b"records", src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
        return durable

    def record(self, inode: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Say that these ranges (start, end) of an unfinished file are on the disk."""
        os.write(self._records, b"".join(_record(inode, start, end) for start, end in merged(ranges)))

    def close(self) -> None:
        """Close the files; what they say stays."""
        for name in ("files", "pages", "_records"):
            descriptor = getattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)


def _record(inode: int, start: int, end: int) -> bytes:
    rest = _RECORD.pack(0, inode, start, end - start)[4:]
    return zlib.crc32(rest).to_bytes(4, "little") + rest


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (start, end) sorted, those that touch made one."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def covered(ranges: list[tuple[int, int]], start: int, end: int) -> bool:
    """Whether one of the merged ranges holds all from `start` to `end`."""
    return any(a <= start and end <= b for a, b in ranges)


class ReadOnlyKeeper:
    """A store that is read and never written: what a pull fetches belongs into its folder alone."""

    def __init__(self, below: Keeper) -> None:
        self._below = below

    def blob(self, blob: Blob) -> Kept:
        return _ReadOnlyKept(self._below.blob(blob))

    def document(self, digest: Digest) -> bytes | None:
        return self._below.document(digest)

    def keep_document(self, digest: Digest, data: bytes) -> None:
        pass


class _ReadOnlyKept:
    def __init__(self, below: Kept) -> None:
        self._below = below

    def read(self, offset: int, out: memoryview) -> bool:
        return self._below.read(offset, out)

    def write(self, offset: int, data: memoryview) -> None:
        pass

    def drop(self, offset: int, length: int) -> None:
        pass


class PagesKeeper:
    """Keeps the pages of one index in a sparse file, and reads all else from `below`.

    No records are needed: whoever reads a page verifies it, and what was never written does not pass.
    """

    def __init__(self, below: Keeper | None, pages: Blob, descriptor: int) -> None:
        self._below = ReadOnlyKeeper(below) if below is not None else None
        self._pages = pages
        self._descriptor = descriptor

    def blob(self, blob: Blob) -> Kept:
        if blob.digest == self._pages.digest:
            return _PagesFile(self._descriptor)
        return self._below.blob(blob) if self._below is not None else _Nothing()

    def document(self, digest: Digest) -> bytes | None:
        return self._below.document(digest) if self._below is not None else None

    def keep_document(self, digest: Digest, data: bytes) -> None:
        pass


class _PagesFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, out: memoryview) -> bool:
        return os.preadv(self._descriptor, [out], offset) == len(out)

    def write(self, offset: int, data: memoryview) -> None:
        with local_errors("the index cannot be kept", "pages"):
            os.pwrite(self._descriptor, data, offset)

    def drop(self, offset: int, length: int) -> None:
        pass  # it is written again in a moment


class _Nothing:
    def read(self, offset: int, out: memoryview) -> bool:
        return False

    def write(self, offset: int, data: memoryview) -> None:
        pass

    def drop(self, offset: int, length: int) -> None:
        pass
