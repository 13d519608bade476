"""Making the files of a pull: written in .tonne-pull/files, synced, and moved to their names when they are complete."""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tonne.allocation import reserve
from tonne.codec.frames import Bytes
from tonne.durable import OS_DISK, local_errors, pwrite_all
from tonne.errors import CorruptIndex, LocalFailure, TargetExists, TonneError
from tonne.image.pull_state import PullState, merged
from tonne.image.pull_target import Target, text
from tonne.image.runs import Run
from tonne.image.workers import Halt
from tonne.model import Entry, Extent, blake3_of

SYNC_BYTES = 64 * 1024 * 1024  # of an unfinished file, before it is synced and recorded
SYNC_FILES_MAX = 8  # more complete files than this together are synced as a file system: one flush instead of many
WAITING_MAX = 4096  # files between written and moved; writers wait beyond that
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class PulledFile:
    """A file in the making.  `lock` guards the fields below it."""

    entry: Entry
    path: bytes
    left_bytes: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    unsynced: list[tuple[int, int]] = field(default_factory=list)
    unsynced_bytes: int = 0
    syncing: bool = False

    @property
    def temporary(self) -> bytes:
        return b"%d" % self.entry.inode


class Files:
    """Writes content and commits complete files.

    `begin`, `write`, `done_before` may be called by any thread.  One background thread syncs, records and renames; its
    first failure stops the pull through `halt` and is raised by `close`.  After an error or a crash, what was written
    stays in .tonne-pull/files for the next pull.
    """

    def __init__(self, target: Target, state: PullState, halt: Halt, on_event: Callable[[TonneError], None]) -> None:
        self._target = target.again()
        self._state = state
        self._halt = halt
        self._attributes = Attributes(on_event)
        self._queue: queue.Queue[tuple[PulledFile, bool] | None] = queue.Queue(WAITING_MAX)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="tonne-commit")
        self._thread.start()

    def begin(self, file: PulledFile) -> None:
        """Make the unfinished file at its full length."""
        with local_errors("a file cannot be made", text(file.path)):
            descriptor = os.open(file.temporary, _WRITE, 0o600, dir_fd=self._state.files)
            try:
                os.ftruncate(descriptor, file.entry.size_bytes)
            finally:
                os.close(descriptor)

    def write(self, run: Run[PulledFile], contents: Sequence[Bytes]) -> None:
        """Put the decoded frames of a run where its extents want them."""
        uses = run.uses
        at = 0
        while at < len(uses):
            file = uses[at][0]
            end = at + 1
            while end < len(uses) and uses[end][0] is file:
                end += 1
            self._write_one(file, [(extent, place) for _, extent, place in uses[at:end]], contents)
            at = end

    def _write_one(
        self, file: PulledFile, uses: Sequence[tuple[Extent, int | None]], contents: Sequence[Bytes]
    ) -> None:
        written = 0
        with local_errors("a file cannot be written", text(file.path)):
            descriptor = os.open(file.temporary, _WRITE & ~os.O_CREAT, dir_fd=self._state.files)
            try:
                ranges = [(extent.file_offset, extent.end) for extent, place in uses if place is not None]
                for start, end in merged(ranges):
                    reserve(descriptor, start, end - start)
                for extent, place in uses:
                    written += extent.length
                    if place is None:
                        continue
                    data = memoryview(contents[place])[extent.frame_offset : extent.frame_offset + extent.length]
                    if extent.length == file.entry.size_bytes and blake3_of(data) != file.entry.digest:
                        raise CorruptIndex("a file's content has not the digest of its entry", where=text(file.path))
                    pwrite_all(OS_DISK, descriptor, data, extent.file_offset)
                self._wrote(file, ranges, written, descriptor)
            finally:
                os.close(descriptor)

    def done_before(self, file: PulledFile, size_bytes: int) -> None:
        """So many bytes of the file were found from an earlier pull, or are holes."""
        with local_errors("a file cannot be finished", text(file.path)):
            descriptor = os.open(file.temporary, _WRITE & ~os.O_CREAT, dir_fd=self._state.files)
            try:
                self._wrote(file, [], size_bytes, descriptor)
            finally:
                os.close(descriptor)

    def _wrote(self, file: PulledFile, ranges: list[tuple[int, int]], size_bytes: int, descriptor: int) -> None:
        with file.lock:
            file.left_bytes -= size_bytes
            file.unsynced += ranges
            file.unsynced_bytes += sum(end - start for start, end in ranges)
            complete = file.left_bytes == 0
            sync = not complete and not file.syncing and file.unsynced_bytes >= SYNC_BYTES
            file.syncing = file.syncing or sync
        if complete:
            self._attributes.give(descriptor, file.entry, file.path)
        if complete or sync:
            self._queue.put((file, complete))

    # --- the background thread ---

    def _run(self) -> None:
        last = False
        while not last:
            batch = [self._queue.get()]
            while True:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            last = None in batch
            if self._failure is None:  # else only drain, so that no writer waits for ever
                try:
                    self._commit([item for item in batch if item is not None])
                except BaseException as error:
                    self._failure = error
                    self._halt.stop()

    def _commit(self, batch: list[tuple[PulledFile, bool]]) -> None:
        complete = [file for file, is_complete in batch if is_complete]
        for file, is_complete in batch:
            if not is_complete:
                self._sync_part(file)
        with local_errors("files cannot be synced", str(self._target.path)):
            if len(complete) > SYNC_FILES_MAX:
                sync_file_system(self._target.root)
            else:
                for file in complete:
                    descriptor = os.open(
                        file.temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._state.files
                    )
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)
        for file in complete:
            self._move(file)

    def _sync_part(self, file: PulledFile) -> None:
        with file.lock:
            ranges, file.unsynced, file.unsynced_bytes, file.syncing = file.unsynced, [], 0, False
        with local_errors("a file cannot be synced", text(file.path)):
            try:
                descriptor = os.open(
                    file.temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._state.files
                )
            except FileNotFoundError:
                return  # another thread completed it before this request came, and it was moved
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            self._state.record(file.entry.inode, ranges)

    def _move(self, file: PulledFile) -> None:
        parent, _, name = file.path.rpartition(b"/")
        with local_errors("a file cannot be moved to its place", self._target.where(file.path)):
            folder = self._target.folder(parent, create=True)
            try:
                os.rename(file.temporary, name, src_dir_fd=self._state.files, dst_dir_fd=folder)
            except IsADirectoryError:
                where = self._target.where(file.path)
                raise TargetExists("a folder stands where the image has a file", where=where) from None

    def close(self) -> None:
        """Commit what is complete, end the thread, and raise its failure if it had one."""
        self._queue.put(None)
        self._thread.join()
        self._target.close()
        if self._failure is not None:
            raise self._failure


class Attributes:
    """Gives files, folders and links their owner, mode, attributes and times.

    What this user or file system cannot do is told once, by kind, and is no failure.
    """

    def __init__(self, on_event: Callable[[TonneError], None]) -> None:
        self._on_event = on_event
        self._told: set[str] = set()
        self._root = os.geteuid() == 0

    def give(self, descriptor: int, entry: Entry, path: bytes) -> None:
        """All of an open file or folder; times last."""
        if self._root:
            self._try("owner", path, lambda: os.fchown(descriptor, entry.uid, entry.gid))
        # Before the mode, which may take away the owner's right to write, and that to set attributes with it.
        self._give_xattrs(descriptor, entry, path)
        # After the owner, since a change of that clears the set-id bits.
        os.fchmod(descriptor, entry.permissions)
        os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))

    def give_link(self, folder: int, name: bytes, entry: Entry, path: bytes) -> None:
        """All of a symbolic link itself."""
        if self._root:
            self._try("owner", path, lambda: os.chown(name, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False))
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)
        # There is no call that takes a folder's descriptor.
        self._give_xattrs(b"/proc/self/fd/%d/%s" % (folder, name), entry, path)

    def _give_xattrs(self, place: int | bytes, entry: Entry, path: bytes) -> None:
        follow = isinstance(place, int)
        for name, value in entry.xattrs:
            self._try("attribute", path, partial(os.setxattr, place, name, value, follow_symlinks=follow))

    def _try(self, kind: str, path: bytes, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            if kind not in self._told:
                self._told.add(kind)
                self._on_event(
                    LocalFailure(f"an {kind} cannot be set", where=text(path), why=error.strerror or str(error))
                )


def sync_file_system(descriptor: int) -> None:
    """syncfs(2), which os does not have: all of a file system, metadata too; reports failures since Linux 5.8."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
