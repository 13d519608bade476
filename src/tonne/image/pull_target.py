"""The folder that a pull fills, reached through descriptors only, so that no path can leave it.

Every part of a path is opened on its own with O_NOFOLLOW below the one before: a symbolic link inside the folder, made
by an image or by anybody else while we work, is never followed (CWE-59).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import OrderedDict
from pathlib import Path
from types import TracebackType

from tonne.durable import local_errors
from tonne.errors import Locked, TargetExists, UnsafePath

FOLDERS_OPEN_MAX = 64  # descriptors kept for each user of a target: files come folder by folder
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def text(path: bytes) -> str:
    """A path in a message."""
    return path.decode("utf-8", "backslashreplace")


class Target:
    """A folder and what is below it.

    Used by one thread; `again` gives another thread its own.  Holds an exclusive lock (flock on the folder itself) from
    `open` to the last close, so that two pulls never fill the same folder; a crash frees it.
    """

    def __init__(self, path: Path, root: int) -> None:
        self.path = path
        self.root = root
        self._folders: OrderedDict[bytes, int] = OrderedDict()

    @classmethod
    def open(cls, path: Path) -> Target:
        """Open, and make, if need be, the folder; `Locked` when another pull works on it."""
        with local_errors("the target folder cannot be used", str(path)):
            try:
                path.mkdir(parents=True, exist_ok=True)
                root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (FileExistsError, NotADirectoryError):
                raise TargetExists("the target is not a folder", where=str(path)) from None
        try:
            fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(root)
            raise Locked("another pull fills this folder", where=str(path)) from None
        return cls(path, root)

    def again(self) -> Target:
        """The same folder for another thread, under the same lock."""
        return Target(self.path, os.dup(self.root))

    def close(self) -> None:
        for descriptor in self._folders.values():
            os.close(descriptor)
        self._folders.clear()
        if self.root >= 0:
            os.close(self.root)
            self.root = -1

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def where(self, path: bytes) -> str:
        """A path below the folder, in a message."""
        return text(os.path.join(os.fsencode(self.path), path) if path else os.fsencode(self.path))

    def folder(self, path: bytes, create: bool = False) -> int:
        """A descriptor of the folder at `path`, valid until the next call.

        `FileNotFoundError` when it is missing and not to be made; `UnsafePath` when a part of it is a symbolic link,
        `TargetExists` when one is a file.
        """
        if not path:
            return self.root
        held = self._folders.get(path)
        if held is not None:
            self._folders.move_to_end(path)
            return held
        parent_path, _, name = path.rpartition(b"/")
        parent = self.folder(parent_path, create)
        try:
            found = os.open(name, _FOLDER, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
            with local_errors("a folder cannot be made", self.where(path)):
                os.mkdir(name, 0o700, dir_fd=parent)
                found = os.open(name, _FOLDER, dir_fd=parent)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            self._refuse(parent, name, path)
            raise
        if create:
            self._make_writable(found, path)
        self._folders[path] = found
        if len(self._folders) > FOLDERS_OPEN_MAX:
            _, old = self._folders.popitem(last=False)
            os.close(old)
        return found

    def _refuse(self, parent: int, name: bytes, path: bytes) -> None:
        if stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
            why = "a symbolic link stands where the image has a folder"
            raise UnsafePath("a path would lead out of the target", where=self.where(path), why=why)
        raise TargetExists("a file stands where the image has a folder", where=self.where(path))

    def _make_writable(self, descriptor: int, path: bytes) -> None:
        """An earlier pull may have given it its final mode already; it gets that again at the end."""
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o700 != 0o700:
            with local_errors("a folder cannot be written", self.where(path)):
                os.fchmod(descriptor, mode | 0o700)

    def forget(self, path: bytes) -> None:
        """Close a folder's descriptor, before the folder is removed or the lot of them is not needed again."""
        held = self._folders.pop(path, None)
        if held is not None:
            os.close(held)

    def look(self, path: bytes) -> os.stat_result | None:
        """What stands at a path (a link itself, not its target); None when nothing does."""
        parent, _, name = path.rpartition(b"/")
        try:
            return os.lstat(name or b".", dir_fd=self.folder(parent))
        except FileNotFoundError:
            return None

    def names(self, path: bytes) -> list[bytes]:
        """The names in a folder, sorted."""
        # A descriptor of its own, because reading moves the position that a copy would share.
        descriptor = os.open(b".", _FOLDER, dir_fd=self.folder(path))
        try:
            return sorted(os.fsencode(name) for name in os.listdir(descriptor))
        finally:
            os.close(descriptor)

    @property
    def free_bytes(self) -> int:
        """What an unprivileged user may still write there."""
        facts = os.fstatvfs(self.root)
        return facts.f_bavail * facts.f_frsize
