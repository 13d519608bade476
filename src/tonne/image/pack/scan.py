"""Going through the folder: every entry, breadth-first, the names of a folder in byte order."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from tonne.durable import read_bounded
from tonne.errors import FolderTooLarge, MissingPath, SourceChanged, SymlinkOutside, UsageError
from tonne.image.match import Patterns
from tonne.image.pack.attributes import Attributes
from tonne.image.pack.failure import blaming, local_failure, shown_path
from tonne.image.pack.links import leaves
from tonne.image.pack.options import Links, PackOptions
from tonne.image.pack.rows import Rows, Scratch
from tonne.image.pack.tree import BELOW_FOLLOWED, FOLLOWED, PATH_CHUNK_BYTES, SCAN, ScannedTree, ScanRow, held_ns
from tonne.wire.record import NUMBER_MAX

IGNORE_FILE = b".tonneignore"
IGNORE_BYTES_MAX = 1 << 20  # of that file; bounds what a mistaken one costs
FILE_BYTES_MAX = 1 << 62  # of one file; beyond it offsets would not fit signed 64 bits everywhere
FOLDERS_TOGETHER = 1024  # rows read at once when looking for folders
_SPECIAL = {
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
}


def scan_folder(
    source: bytes,
    options: PackOptions,
    scratch: Path,
    leave_out: Collection[tuple[int, int]],
    warn: Callable[[str], None],
    check: Callable[[], None],
) -> ScannedTree:
    """Scan `source`.

    Args:
        scratch: a folder for the tables.
        leave_out: (device, inode) of folders that are not packed, such as the cache.
        warn: told of everything that is left out or kept otherwise than it is.
        check: called now and then; raises to stop.

    Raises `UsageError` when the source is no folder, `SymlinkOutside` as the options say.
    """
    try:
        kind = os.stat(source).st_mode
    except FileNotFoundError:
        raise MissingPath("the folder to pack does not exist", where=shown_path(source)) from None
    except OSError as error:
        raise local_failure(error, source, "the folder to pack cannot be read") from error
    if not stat.S_ISDIR(kind):
        raise UsageError("what is to be packed is no folder", where=shown_path(source), todo="name the folder it is in")
    tree = ScannedTree(os.path.realpath(source), Rows(scratch / "entries", SCAN), Scratch(scratch / "strings"))
    try:
        _Scanner(tree, options, leave_out, warn, check).run()
    except BaseException:
        tree.close()
        raise
    return tree


class _Scanner:
    def __init__(
        self,
        tree: ScannedTree,
        options: PackOptions,
        leave_out: Collection[tuple[int, int]],
        warn: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        self._tree = tree
        self._links = options.links
        self._reproducible = options.reproducible  # then the files' own times do not count
        self._leave_out = set(leave_out)
        self._warn = warn
        self._check = check
        self._attributes = Attributes(lambda what, path: self._tell(path, what))
        self._ignored = Patterns([*self._ignore_file(), *options.exclude])
        self._roots: list[bytes] = [tree.source]
        # Names that may be further names of one file: device, inode, number.
        self._shared = (array("Q"), array("Q"), array("L"))

    def _ignore_file(self) -> list[bytes]:
        path = os.path.join(self._tree.source, IGNORE_FILE)
        try:
            data = read_bounded(os.fsdecode(path), IGNORE_BYTES_MAX)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise local_failure(error, path, "the list of what to leave out cannot be read") from error
        if data is None:
            raise UsageError("the list of what to leave out is too long", where=shown_path(path))
        return data.splitlines()

    def _tell(self, path: bytes, what: str) -> None:
        self._warn(f"{shown_path(path or b'.')}: {what}")

    def run(self) -> None:
        tree = self._tree
        fd = tree.open_folder(b"")
        try:
            found = os.fstat(fd)
            xattrs = self._attributes.read(fd, found.st_dev, b"", True)
        finally:
            os.close(fd)
        self._add(found, 0, b"", b"", xattrs, 0, 0)
        at = 0
        while at < len(tree.rows):
            block = tree.rows.read(at, min(FOLDERS_TOGETHER, len(tree.rows) - at))
            for place in np.flatnonzero((block["mode"] & 0o170000) == stat.S_IFDIR).tolist():
                self._check()
                self._folder(at + place + 1, tree.row(at + place + 1))
            at += len(block)
        self._join_links()

    def _add(
        self, found: os.stat_result, parent: int, name: bytes, target: bytes, xattrs: bytes, flags: int, root: int
    ) -> None:
        tree = self._tree
        number = len(tree.rows) + 1
        mtime_ns = held_ns(found.st_mtime_ns)
        if mtime_ns != found.st_mtime_ns and not self._reproducible:
            where = os.path.join(tree.folder_path(parent), name) if parent else b""
            self._tell(
                where, "its time is not within the years 1678 to 2261, which an image holds: the nearest is kept"
            )
        is_file, is_link = stat.S_ISREG(found.st_mode), stat.S_ISLNK(found.st_mode)
        if number > NUMBER_MAX or found.st_size > FILE_BYTES_MAX:
            raise FolderTooLarge("the folder has more files, or a larger one, than an image can hold")
        if (is_file or is_link) and (found.st_nlink > 1 or flags & FOLLOWED):
            for column, value in zip(self._shared, (found.st_dev, found.st_ino, number), strict=True):
                column.append(value)
        if is_file:
            tree.files += 1
            tree.content_bytes += found.st_size
        row = ScanRow(
            parent=parent,
            inode=number,
            mode=found.st_mode,
            uid=found.st_uid,
            gid=found.st_gid,
            links=1,
            first_child=0,
            children=0,
            size=found.st_size if is_file else len(target),
            mtime_ns=mtime_ns,
            ctime_ns=held_ns(found.st_ctime_ns),
            dev=found.st_dev,
            ino=found.st_ino,
            heap=tree.heap.append(name + target + xattrs),
            name_bytes=len(name),
            target_bytes=len(target),
            xattrs_bytes=len(xattrs),
            flags=flags,
            root=root,
        )
        tree.rows.append(row.packed())

    def _folder(self, number: int, row: ScanRow) -> None:
        tree = self._tree
        path = tree.folder_path(number)
        with blaming(os.path.join(tree.source, path), "a folder cannot be read"):
            fd = tree.open_folder(path)
            try:
                with os.scandir(fd) as listing:
                    # Only names are kept: a folder of millions is listed in bounded memory a name.
                    names = [os.fsencode(entry.name) for entry in listing]
            except BaseException:
                os.close(fd)
                raise
        try:
            names.sort()
            first, folders = len(tree.rows) + 1, 0
            for name in names:
                if self._entry(fd, number, row, path, name):
                    folders += 1
            count = len(tree.rows) + 1 - first
            # As ext4 counts: the name, the folder's own dot, and the two dots of each folder in it.
            tree.set_children(number, 2 + folders, first if count else 0, count)
        finally:
            os.close(fd)

    def _entry(self, fd: int, parent: int, above: ScanRow, folder: bytes, name: bytes) -> bool:
        """Add one entry if it is to be packed; returns whether it is a folder."""
        path = folder + b"/" + name if folder else name
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(found.st_mode) else b""
        except FileNotFoundError:
            raise SourceChanged("a file went away while it was packed", where=shown_path(path)) from None
        except OSError as error:
            raise local_failure(error, path, "a file cannot be looked at") from error
        flags, root = above.flags & BELOW_FOLLOWED, above.root
        if self._is_ignored(path, stat.S_ISDIR(found.st_mode)):
            return False
        if target:
            behind = self._behind(fd, name, path, target, root)
            if behind is not None:
                found, target, flags = behind, b"", FOLLOWED | BELOW_FOLLOWED
                if self._is_ignored(path, stat.S_ISDIR(found.st_mode)):
                    return False
        kind = stat.S_IFMT(found.st_mode)
        if kind in _SPECIAL:
            self._tell(path, f"left out: it is {_SPECIAL[kind]}")
            return False
        if kind == stat.S_IFDIR:
            if (found.st_dev, found.st_ino) in self._leave_out:
                self._tell(path, "left out: tonne itself writes there")
                return False
            if flags & BELOW_FOLLOWED:
                self._check_circle(path, found, parent)
            if flags & FOLLOWED:
                root = len(self._roots)
                self._roots.append(os.path.realpath(os.path.join(self._tree.source, path)))
        xattrs = self._attributes.read(self._reach(fd, path, name), found.st_dev, path, bool(flags & FOLLOWED))
        self._add(found, parent, name, target, xattrs, flags, root)
        return kind == stat.S_IFDIR

    def _is_ignored(self, path: bytes, is_folder: bool) -> bool:
        return path == IGNORE_FILE or self._ignored.matches(path, is_folder)

    def _reach(self, fd: int, path: bytes, name: bytes) -> bytes:
        """A path that a system call takes: attributes of a link cannot be asked for through a descriptor."""
        whole = os.path.join(self._tree.source, path)
        return whole if len(whole) < PATH_CHUNK_BYTES else b"/proc/self/fd/%d/%s" % (fd, name)

    def _behind(self, fd: int, name: bytes, path: bytes, target: bytes, root: int) -> os.stat_result | None:
        """What is packed in a link's place; None when the link is kept."""
        folder = os.path.dirname(os.path.join(self._tree.source, path))
        out = leaves(os.path.realpath(folder), self._roots[root], target)
        shown = f"{shown_path(path)} -> {shown_path(target)}"
        if out and self._links is Links.ERROR:
            raise SymlinkOutside("a symbolic link leaves the folder", where=shown)
        try:
            found = os.stat(name, dir_fd=fd)
        except OSError as error:
            if self._links is Links.ERROR:
                raise SymlinkOutside("a symbolic link is broken", where=shown, why=error.strerror or "") from None
            self._warn(f"{shown}: kept, but it leads nowhere ({error.strerror})")
            return None
        if not out:
            return None
        if self._links is Links.KEEP:
            self._warn(f"{shown}: kept, but it leaves the folder")
            return None
        return found

    def _check_circle(self, path: bytes, found: os.stat_result, parent: int) -> None:
        at = parent
        while at:
            row = self._tree.row(at)
            if (row.dev, row.ino) == (found.st_dev, found.st_ino):
                raise SymlinkOutside(
                    "following a symbolic link leads in a circle", where=shown_path(path), why="a folder holds itself"
                )
            at = row.parent

    def _join_links(self) -> None:
        """Give all names of one file the number of the first, and count them."""
        if not self._shared[2]:
            return
        dev, ino = (np.frombuffer(column, np.uint64) for column in self._shared[:2])
        numbers = np.frombuffer(self._shared[2], np.dtype("L"))
        order = np.lexsort((numbers, ino, dev))
        dev, ino, numbers = dev[order], ino[order], numbers[order]
        new = np.ones(len(numbers), bool)
        new[1:] = (dev[1:] != dev[:-1]) | (ino[1:] != ino[:-1])
        starts = np.flatnonzero(new)
        ends = np.append(starts[1:], len(numbers))
        tree = self._tree
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if end - start < 2:
                continue
            members = numbers[start:end].tolist()
            for number in members:
                tree.set_inode(number, members[0], end - start)
            row = tree.row(members[0])
            if row.is_file:
                tree.files -= end - start - 1
                tree.content_bytes -= (end - start - 1) * row.size
