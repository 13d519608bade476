"""The folder that is packed, as it was scanned: its entries on disk, and how to open them."""

from __future__ import annotations

import os
import stat
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from tonne.errors import SourceChanged
from tonne.image.pack.failure import blaming, local_failure, shown_path
from tonne.image.pack.rows import Rows, Scratch

FOLLOWED = 1  # the name is a symbolic link of which the target is packed
BELOW_FOLLOWED = 2  # the entry lies below such a link, so that folders may repeat for ever

SCAN = np.dtype(
    [
        ("parent", "<u4"),
        ("inode", "<u4"),  # number of the first name of the same file
        ("mode", "<u4"),
        ("uid", "<u4"),
        ("gid", "<u4"),
        ("links", "<u4"),
        ("first_child", "<u4"),
        ("children", "<u4"),
        ("size", "<u8"),
        ("mtime_ns", "<i8"),
        ("ctime_ns", "<i8"),
        ("dev", "<u8"),
        ("ino", "<u8"),
        ("heap", "<u8"),  # where name, target and attributes stand, one after the other
        ("name_bytes", "<u2"),
        ("target_bytes", "<u2"),
        ("xattrs_bytes", "<u4"),
        ("flags", "<u4"),
        ("root", "<u4"),  # folders: which of the scanner's roots they lie in
    ]
)
_ROW = struct.Struct("<8IQqqQQQHHIII")
_LINKS_OFFSET = 20  # links, first_child, children
_INODE_OFFSET = 4
assert _ROW.size == SCAN.itemsize == 96

NS_MIN, NS_MAX = -(1 << 63), (1 << 63) - 1  # of a time in an image: September 1677 to April 2262
PATH_CHUNK_BYTES = 4000  # what is given to one system call; the kernel takes 4,095
PATHS_KEPT = 4096  # folders whose path is remembered: neighbours in the order share them


def held_ns(ns: int) -> int:
    """The time nearest to `ns`, nanoseconds since 1970, that an image holds; file systems hold others too."""
    return max(NS_MIN, min(NS_MAX, ns))


class ScanRow(NamedTuple):
    """One entry as it was found."""

    parent: int
    inode: int
    mode: int
    uid: int
    gid: int
    links: int
    first_child: int
    children: int
    size: int
    mtime_ns: int
    ctime_ns: int
    dev: int
    ino: int
    heap: int
    name_bytes: int
    target_bytes: int
    xattrs_bytes: int
    flags: int
    root: int

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    def packed(self) -> bytes:
        return _ROW.pack(*self)

    def is_still(self, now: os.stat_result) -> bool:
        """Whether the file is the one that was scanned, unchanged."""
        seen = (self.dev, self.ino, self.size, self.mtime_ns, self.ctime_ns)
        times = (held_ns(now.st_mtime_ns), held_ns(now.st_ctime_ns))
        return seen == (now.st_dev, now.st_ino, now.st_size, *times)


class ScannedTree:
    """Entries of the source by number, from 1, breadth-first.

    Any thread may call once the scan is done; `_lock` guards the remembered paths.  The source is read-only to us: what
    changed since the scan is found when it is opened.
    """

    def __init__(self, source: bytes, rows: Rows, heap: Scratch) -> None:
        self.source = source
        self.rows = rows
        self.heap = heap
        self.content_bytes = 0
        self.files = 0
        with blaming(source, "the folder to pack cannot be opened"):
            self._fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._paths: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> ScanRow:
        return ScanRow._make(_ROW.unpack(self.rows.raw(number - 1)))

    def name(self, row: ScanRow) -> bytes:
        return self.heap.read(row.heap, row.name_bytes)

    def path(self, number: int) -> bytes:
        """Where an entry stands relative to the source; empty for the source itself."""
        names: list[bytes] = []
        at = number
        while at > 1:
            with self._lock:
                known = self._paths.get(at)
                if known is not None:
                    self._paths.move_to_end(at)
            if known is not None:
                names.append(known)
                break
            row = self.row(at)
            names.append(self.name(row))
            at = row.parent
        return b"/".join(reversed(names))

    def folder_path(self, number: int) -> bytes:
        """The same for a folder, remembered for those who ask for what is in it."""
        path = self.path(number)
        with self._lock:
            self._paths[number] = path
            if len(self._paths) > PATHS_KEPT:
                self._paths.popitem(last=False)
        return path

    def shown(self, number: int) -> str:
        """The path for a message."""
        return shown_path(os.path.join(self.source, self.path(number)))

    def open_folder(self, path: bytes) -> int:
        """A descriptor of a folder by its path."""
        return self._open(path, os.O_RDONLY | os.O_DIRECTORY)

    def open_file(self, number: int, row: ScanRow) -> int:
        """A descriptor of a file; `SourceChanged` when it is not the one that was scanned any more."""
        parent = self.folder_path(row.parent)
        path = parent + b"/" + self.name(row) if parent else self.name(row)
        # Without O_NONBLOCK a fifo that took the file's place since the scan would be waited for.
        flags = os.O_RDONLY | os.O_NONBLOCK | (0 if row.flags & FOLLOWED else os.O_NOFOLLOW)
        try:
            fd = self._open(path, flags)
        except FileNotFoundError:
            raise SourceChanged("a file went away while it was packed", where=self.shown(number)) from None
        except OSError as error:
            raise local_failure(error, self.shown(number), "a file cannot be read") from error
        try:
            self.check(number, row, fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def check(self, number: int, row: ScanRow, fd: int) -> None:
        """Raise `SourceChanged` when an open file differs from what was scanned."""
        if not row.is_still(self.state(number, fd)):
            raise SourceChanged("a file changed while it was packed", where=self.shown(number))

    def state(self, number: int, fd: int) -> os.stat_result:
        """What the system says of an open file now."""
        try:
            return os.fstat(fd)
        except OSError as error:
            raise local_failure(error, self.shown(number), "a file cannot be looked at") from error

    def _open(self, path: bytes, flags: int) -> int:
        # Paths may be longer than a system call takes: the front is walked with descriptors.
        at = self._fd
        try:
            while len(path) > PATH_CHUNK_BYTES:
                cut = path.rindex(b"/", 0, PATH_CHUNK_BYTES)
                deeper = os.open(path[:cut], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
                if at != self._fd:
                    os.close(at)
                at, path = deeper, path[cut + 1 :]
            return os.open(path or b".", flags | os.O_CLOEXEC, dir_fd=at)
        finally:
            if at != self._fd:
                os.close(at)

    def set_children(self, number: int, links: int, first_child: int, children: int) -> None:
        self.rows.put_raw(number - 1, struct.pack("<III", links, first_child, children), _LINKS_OFFSET)

    def set_inode(self, number: int, inode: int, links: int) -> None:
        self.rows.put_raw(number - 1, struct.pack("<I", inode), _INODE_OFFSET)
        self.rows.put_raw(number - 1, struct.pack("<I", links), _LINKS_OFFSET)

    def all_files(self) -> Iterator[tuple[int, ScanRow]]:
        """Every regular file once, by its first name, in order, with its number."""
        for start, block in self.rows.blocks():
            numbers = np.arange(start + 1, start + 1 + len(block), dtype=np.uint32)
            wanted = ((block["mode"] & 0o170000) == stat.S_IFREG) & (block["inode"] == numbers)
            yield from zip(numbers[wanted].tolist(), map(ScanRow._make, block[wanted].tolist()), strict=True)

    def fingerprint(self) -> bytes:
        """BLAKE3 over everything that was found, to know again whether a tree is the same as at an earlier run."""
        hasher = blake3()
        for _, block in self.rows.blocks():
            block["dev"] = 0  # numbers of devices may change at a reboot
            hasher.update(block.tobytes())
        step = 1 << 20
        for start in range(0, len(self.heap), step):
            hasher.update(self.heap.read(start, min(step, len(self.heap) - start)))
        return hasher.digest()

    def close(self) -> None:
        """Give back the descriptors; idempotent."""
        self.rows.close()
        self.heap.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
