"""A file system in memory that several "processes" share, that kills them at any call and loses what was not synced.

Stricter than ext4: names and data that were not synced are lost or kept one by one, writes may be torn, a file may have
grown without its data.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

BLOCK = 512


class Killed(BaseException):
    """The process is gone."""


@dataclass(eq=False)
class Inode:
    blocks: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    synced: tuple[dict[int, bytes], int] = field(default_factory=lambda: ({}, 0))
    unsynced: list[tuple[str, int, bytes]] = field(default_factory=list)  # (kind, offset, data or length)
    locked_by: Handle | None = None

    def punch(self, offset: int, length: int) -> None:
        """Whole blocks go; what is left at the ends becomes zeros."""
        for number in list(self.blocks):
            start, end = max(offset, number * BLOCK), min(offset + length, (number + 1) * BLOCK)
            if start < end:
                if end - start == BLOCK:
                    del self.blocks[number]
                else:
                    self._put(start, bytes(end - start))

    def _put(self, offset: int, data: bytes) -> None:
        while data:
            number, at = divmod(offset, BLOCK)
            part = data[: BLOCK - at]
            block = self.blocks.get(number, bytes(BLOCK))
            self.blocks[number] = block[:at] + part + block[at + len(part) :]
            offset += len(part)
            data = data[len(part) :]

    def get(self, offset: int, length: int) -> bytes:
        out = bytearray()
        end = min(offset + length, self.size)
        while offset < end:
            number, at = divmod(offset, BLOCK)
            part = self.blocks.get(number, bytes(BLOCK))[at : at + end - offset]
            out += part
            offset += len(part)
        return bytes(out)

    def sync(self) -> None:
        self.synced = (dict(self.blocks), self.size)
        self.unsynced = []


@dataclass(eq=False)
class Handle:
    inode: Inode | None
    path: str


class MemoryFiles:
    """The file system.  Folders are durable as soon as they are made."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.synced_names: dict[str, Inode] = {}
        self.unsynced_names: list[tuple[str, str, Inode | None]] = []  # ("link", path, inode), ("unlink", ...)
        self.folders: set[str] = {"/"}
        self.boot = 1

    def link(self, path: str, inode: Inode) -> None:
        self.names[path] = inode
        self.unsynced_names.append(("link", path, inode))

    def unlink(self, path: str) -> None:
        del self.names[path]
        self.unsynced_names.append(("unlink", path, None))

    def rename(self, old: str, new: str) -> None:
        inode = self.names.pop(old)
        self.names[new] = inode
        self.unsynced_names.append(("rename", f"{old}\0{new}", inode))

    def sync_folder(self, folder: str) -> None:
        rest = []
        for change in self.unsynced_names:
            if os.path.dirname(change[1].split("\0")[-1]) == folder:
                self._apply_name(self.synced_names, change)
            else:
                rest.append(change)
        self.unsynced_names = rest

    @staticmethod
    def _apply_name(names: dict[str, Inode], change: tuple[str, str, Inode | None]) -> None:
        kind, path, inode = change
        if kind == "link":
            assert inode is not None
            names[path] = inode
        elif kind == "unlink":
            names.pop(path, None)
        else:
            old, new = path.split("\0")
            if names.get(old) is inode and inode is not None:
                names[new] = names.pop(old)

    def lose_power(self, chance: random.Random | None) -> None:
        """What was not synced is lost or not (None: all of it is lost); the machine starts again."""
        for change in self.unsynced_names:
            if chance is not None and chance.random() < 0.5:
                self._apply_name(self.synced_names, change)
        self.unsynced_names = []
        self.names = dict(self.synced_names)
        self.folders |= {os.path.dirname(path) for path in self.names}
        for inode in dict.fromkeys(self.names.values()):  # in an order that can be repeated
            unsynced = inode.unsynced
            inode.blocks, inode.size = dict(inode.synced[0]), inode.synced[1]
            for kind, offset, data in unsynced:
                fate = "lost" if chance is None else chance.choice(("lost", "kept", "kept", "torn", "grown"))
                if fate == "kept":
                    _apply(inode, kind, offset, data)
                elif kind == "write" and fate == "torn":
                    _apply(inode, kind, offset, data[: len(data) // 3])
                elif kind == "write" and fate == "grown":
                    inode.size = max(inode.size, offset + len(data))
            inode.locked_by = None
            inode.sync()
        self.boot += 1


def _apply(inode: Inode, kind: str, offset: int, data: bytes) -> None:
    if kind == "write":
        inode._put(offset, data)
        inode.size = max(inode.size, offset + len(data))
    elif kind == "punch":
        inode.punch(offset, int.from_bytes(data, "big"))
    else:
        inode.blocks, inode.size = {}, 0


class MemoryDisk:
    """One process's view of it, a `tonne.store.disk.Disk`.

    `before` runs before each call and is told its name: it may raise (`OSError`: the call fails; `Killed`), or do
    something as another process.
    """

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.before: Callable[[str], None] | None = None
        self._handles: dict[int, Handle] = {}
        self._next = 1000
        self._is_dead = False

    def kill(self) -> None:
        """End the process: its descriptors are closed, its locks released."""
        self._is_dead = True
        for handle in self._handles.values():
            if handle.inode is not None and handle.inode.locked_by is handle:
                handle.inode.locked_by = None
        self._handles = {}

    def open_count(self) -> int:
        return len(self._handles)

    def _call(self, name: str) -> None:
        if self._is_dead:
            raise Killed
        if self.before is not None:
            self.before(name)
        if self._is_dead:
            raise Killed

    def _file(self, descriptor: int) -> Inode:
        inode = self._handles[descriptor].inode
        assert inode is not None
        return inode

    def open(self, path: str, flags: int) -> int:
        self._call("open")
        inode: Inode | None = None
        if flags & os.O_DIRECTORY:
            if path not in self.files.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        else:
            if os.path.dirname(path) not in self.files.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            inode = self.files.names.get(path)
            if inode is None:
                if not flags & os.O_CREAT:
                    raise FileNotFoundError(errno.ENOENT, "no such file", path)
                inode = Inode()
                self.files.link(path, inode)
            elif flags & os.O_TRUNC:
                _apply(inode, "truncate", 0, b"")
                inode.unsynced.append(("truncate", 0, b""))
        self._next += 1
        self._handles[self._next] = Handle(inode, path)
        return self._next

    def close(self, descriptor: int) -> None:
        if self._is_dead:
            return
        handle = self._handles.pop(descriptor)
        if handle.inode is not None and handle.inode.locked_by is handle:
            handle.inode.locked_by = None

    def stat_open(self, descriptor: int) -> os.stat_result:
        self._call("stat_open")
        return self._status(self._file(descriptor))

    def stat(self, path: str) -> os.stat_result:
        self._call("stat")
        if path not in self.files.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._status(self.files.names[path])

    def _status(self, inode: Inode) -> os.stat_result:
        links = sum(1 for other in self.files.names.values() if other is inode)
        return os.stat_result(
            (stat.S_IFREG | 0o644, 1, 1, links, 0, 0, inode.size, 0, 0, 0),
            {"st_blocks": len(inode.blocks), "st_blksize": BLOCK},
        )

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self._call("pwrite")
        inode = self._file(descriptor)
        # Large writes come in two parts, so that a kill may fall between them.
        part = bytes(data) if len(data) < 64 else bytes(data)[: len(data) // 2]
        _apply(inode, "write", offset, part)
        inode.unsynced.append(("write", offset, part))
        return len(part)

    def preadv(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._call("preadv")
        data = self._file(descriptor).get(offset, buffers[0].nbytes)
        buffers[0][: len(data)] = data
        return len(data)

    def fsync(self, descriptor: int) -> None:
        self._call("fsync")
        handle = self._handles[descriptor]
        if handle.inode is None:
            self.files.sync_folder(handle.path)
        else:
            handle.inode.sync()

    def fdatasync(self, descriptor: int) -> None:
        self._call("fdatasync")
        self._file(descriptor).sync()

    def uncache(self, descriptor: int, offset: int, length: int) -> None:
        self._call("uncache")

    def reserve(self, descriptor: int, offset: int, length: int) -> None:
        self._call("reserve")

    def punch(self, descriptor: int, offset: int, length: int) -> None:
        self._call("punch")
        inode = self._file(descriptor)
        inode.punch(offset, length)
        inode.unsynced.append(("punch", offset, length.to_bytes(8, "big")))

    def next_data(self, descriptor: int, offset: int) -> int | None:
        self._call("next_data")
        inode = self._file(descriptor)
        found = [number * BLOCK for number in inode.blocks if (number + 1) * BLOCK > offset]
        return max(offset, min(found)) if found else None

    def lock(self, descriptor: int) -> bool:
        self._call("lock")
        handle = self._handles[descriptor]
        assert handle.inode is not None
        if handle.inode.locked_by not in (None, handle):
            return False
        handle.inode.locked_by = handle
        return True

    def unlock(self, descriptor: int) -> None:
        if self._is_dead:
            return
        handle = self._handles[descriptor]
        assert handle.inode is not None
        if handle.inode.locked_by is handle:
            handle.inode.locked_by = None

    def rename(self, old: str, new: str) -> None:
        self._call("rename")
        self.files.rename(old, new)

    def unlink(self, path: str) -> None:
        self._call("unlink")
        if path not in self.files.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.files.unlink(path)

    def touch(self, path: str, mtime_s: float) -> None:
        self._call("touch")
        if path not in self.files.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def listdir(self, path: str) -> list[str]:
        self._call("listdir")
        below = [other for other in (*self.files.names, *self.files.folders) if os.path.dirname(other) == path]
        return [os.path.basename(other) for other in below if other != path]

    def makedirs(self, path: str) -> None:
        self._call("makedirs")
        while path not in self.files.folders:
            self.files.folders.add(path)
            path = os.path.dirname(path)

    def rmdir(self, path: str) -> None:
        self._call("rmdir")
        if any(os.path.dirname(other) == path for other in self.files.names):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self.files.folders.discard(path)

    def boot_id(self) -> str:
        self._call("boot_id")
        return f"boot {self.files.boot}"
