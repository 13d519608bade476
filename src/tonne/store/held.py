"""One blob on the node's disk: the protocol between the threads and processes that read, write, sync and evict it.

Whoever changes anything of a blob holds its lock (flock on the data file, and a lock between the threads of this
process) and has read the log to its end.  Readers take no lock: they look at what they know of the log, read, and look
again whether the log has grown or was replaced meanwhile.

The orders that the rest depends on:

    write   lock, data, WRITTEN, unlock
    sync    fdatasync of the data, lock, read the log (what was dropped meanwhile is left out), DURABLE, unlock
    evict   lock, DROPPED, fdatasync of the log, fsync of the folder, hole, unlock
    forget  lock, unlink the log, fsync of the folder, unlink the rest, unlock
    compact lock, new log, fdatasync, rename, fsync of the folder, unlock

A process that finds its log or its data without a name (link count 0) opens them anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator

from tonne.clock import Clock
from tonne.durable import pwrite_all, sync_folder
from tonne.errors import Locked
from tonne.store.disk import Disk
from tonne.store.files import BlobFiles, block_bytes, read_all
from tonne.store.known import Known
from tonne.store.ranges import NOTHING, ByteRanges
from tonne.store.records import DROPPED, DURABLE, WRITTEN, LogKey
from tonne.store.stamps import Stamps

LOCK_WAIT_S = 2.0  # holders work for milliseconds; a reader must not wait long for a cache
_POLL_FIRST_S = 0.0002
_POLL_MAX_S = 0.01
_SYNC_ATTEMPTS = 3  # where others write the log anew meanwhile
_READ_ATTEMPTS = 3  # of a read that something was taken away under


class HeldBlob:
    """What the store holds of one blob.

    Any thread may call anything but `close`, which is called once, when no other call runs.  `_turn` is held by the
    thread that holds or takes the blob's flock; `_state` guards `_known` and is held for moments only, never during a
    transfer of data; `_sync_turn` keeps syncs apart.  Taken in the order `_sync_turn`, `_turn`, `_state`.

    Raises `OSError` and `Locked`.  After an error nothing is claimed that was not true; what was written and not
    recorded is lost.  What survives a crash stands in the records.
    """

    def __init__(self, disk: Disk, folder: str, key: LogKey, clock: Clock) -> None:
        self.folder = folder
        self.pins = 0  # the store's
        self._disk = disk
        self._clock = clock
        self._sync_turn = threading.Lock()
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._known = Known(disk, folder, key)
        self._stamps = Stamps(disk, clock)

    # --- asking -----------------------------------------------------------------------------------------------------

    def read(self, offset: int, out: memoryview) -> bool:
        """Fill `out`, unverified; False when not all of it is held (`out` may then hold rubbish)."""
        for _ in range(_READ_ATTEMPTS):
            with self._state:
                files = self._known.look(create=False)
                if files is None or not self._known.has(offset, out.nbytes):
                    return False
                losses = self._known.losses
            count = read_all(self._disk, files.data, offset, out)
            with self._state:
                self._known.refresh()
                if losses != self._known.losses:
                    continue  # perhaps this was evicted before it was read: the record goes before the bytes do
            if count != out.nbytes:
                raise OSError(errno.EIO, "the file is shorter than its records say", self.folder)
            return True
        return False

    def held(self) -> ByteRanges:
        """All that is held."""
        with self._state:
            if self._known.look(create=False) is None:
                return NOTHING
            self._known.refresh()
            return self._known.held

    def unsynced_bytes(self) -> int:
        """How much this process has yet to sync."""
        with self._state:
            return self._known.pending.size_bytes + self._known.syncing.size_bytes

    # --- changing ---------------------------------------------------------------------------------------------------

    def write(self, offset: int, data: memoryview) -> int:
        """Keep verified bytes.  How many were written: 0 when they are held already."""
        with self._alone(create=True) as files:
            assert files is not None
            if self._known.held.has(offset, data.nbytes):
                return 0
            self.touch(offset)
            self._stamps.lead(files.used, offset, offset + data.nbytes)
            if len(self._known.beyond):
                # The file is about to grow: what lies behind its end would become zeros that are claimed.
                self._append(DROPPED, self._known.beyond)
                self._known.beyond = NOTHING
            self._disk.reserve(files.data, offset, data.nbytes)
            pwrite_all(self._disk, files.data, data, offset)
            written = ByteRanges.one(offset, data.nbytes)
            self._append(WRITTEN, written)
            with self._state:
                self._known.pending |= written
        return data.nbytes

    def drop(self, offset: int, length: int) -> None:
        """Claim a range no more.  Where the record cannot be written, this process alone forgets it."""
        gone = ByteRanges.one(offset, length)
        try:
            with self._alone(create=False) as files:
                if files is not None and files.writable and len(self._known.held & gone):
                    self._append(DROPPED, gone)
        finally:
            with self._state:
                self._known.take_away(gone)

    def sync(self) -> None:
        """Bring what was written to the disk, and then say so.

        When the disk fails, what was to be synced is claimed no more: Linux marks such pages clean, and may lose them.
        """
        with self._sync_turn:
            for _ in range(_SYNC_ATTEMPTS):
                if self._sync_once():
                    return

    def _sync_once(self) -> bool:
        """False when another process wrote the log anew meanwhile, so that what was synced is to be synced again."""
        with self._state:
            files = self._known.files
            if files is None or not len(self._known.pending):
                return True
            self._known.syncing, self._known.pending = self._known.pending, NOTHING
            syncing = self._known.syncing
        try:
            try:
                if self._known.is_fresh:
                    sync_folder(self._disk, self.folder)
                    sync_folder(self._disk, os.path.dirname(self.folder))
                    self._known.is_fresh = False
                self._disk.fdatasync(files.data)
            except FileNotFoundError:
                with self._state:
                    self._known.refresh()  # the folder is gone: forgotten by another process
                return True
            except OSError:
                with self._state:
                    self._known.syncing = NOTHING
                self._give_up(syncing)
                raise
            records = self._record_synced()
        finally:
            with self._state:
                self._known.pending |= self._known.syncing & self._known.held
                self._known.syncing = NOTHING
        if records is None:
            with self._state:
                return not len(self._known.pending & syncing)
        self._disk.fdatasync(records)
        # Whoever asked for these bytes has them, and a mount's readers have them in the page cache of the mount:
        # they need not be there twice.
        for start, end in syncing:
            self._disk.uncache(files.data, start, end - start)
        return True

    def punch(self, ranges: ByteRanges) -> int:
        """Take bytes away, and what lies in the same blocks of the disk and is not held.  How many bytes it freed."""
        with self._alone(create=False) as files:
            if files is None:
                return 0
            self._must_be_writable(files)
            before = self._blocks_bytes(files)
            block = block_bytes(self._disk.stat_open(files.data))
            blocks = ByteRanges(ranges.starts // block * block, -(-ranges.ends // block) * block)
            holes = ranges | (blocks - self._known.held)
            self._append(DROPPED, holes)
            self._disk.fdatasync(self._known.log.descriptor)
            sync_folder(self._disk, self.folder)
            for start, end in holes:
                self._disk.punch(files.data, start, end - start)
            for start, end in ranges:
                self._stamps.clear(files.used, start, end)
            after = self._blocks_bytes(files)
        return max(0, before - after)

    def forget(self, *, only_empty: bool = False) -> int:
        """Remove everything; where the log is there, that needs no room on the disk.  How many bytes it freed.

        `only_empty`: leave it where anything is held.
        """
        if not self._has_data():
            # An empty folder, from a process that was killed here; others may be making a file in it.
            with contextlib.suppress(OSError):
                self._disk.rmdir(self.folder)
            return 0
        # Made anew where the log is missing: only under the lock of complete files may anything be removed.
        with self._alone(create=True) as files:
            assert files is not None
            if only_empty and len(self._known.held):
                return 0
            freed = self._blocks_bytes(files)
            self._disk.unlink(self._known.path("records"))
            # Else an old log could come back after a crash, and another blob's file of that name with it.
            sync_folder(self._disk, self.folder)
            # The data last: as long as it is there, it is found and removed.
            for name in ("records.new", "used", "data"):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._known.path(name))
            # Another process may have begun the blob anew.
            with contextlib.suppress(OSError):
                self._disk.rmdir(self.folder)
            self._stamps.forget()
            with self._state:
                self._known.reset()
        return freed

    def _has_data(self) -> bool:
        try:
            self._disk.stat(self._known.path("data"))
        except FileNotFoundError:
            return False
        return True

    def compact(self) -> bool:
        """Write the log anew when most of it says nothing any more; whether it was."""
        with self._state:
            if not self._known.log.is_wordy():
                return False
        with self._alone(create=False) as files:
            if files is None or not files.writable or not self._known.log.is_wordy():
                return False
            new = self._known.log.rewrite(self._known.path("records"))
            with self._state:
                self._known.replace_log(files, new)
            # Else the old log could come back after a crash, without what is dropped from now on.
            sync_folder(self._disk, self.folder)
        return True

    def touch(self, offset: int) -> None:
        """Note that the stripe of what begins there is in use."""
        files = self._known.files
        if files is not None and files.used >= 0:
            self._stamps.touch(files.used, offset)

    def close_retired(self) -> None:
        """Close files that were replaced; called when no other call runs."""
        with self._state:
            self._known.close_retired()

    def close(self) -> None:
        """Close the files.  Nothing is synced here."""
        with self._state:
            self._known.reset()
            self._known.close_retired()

    # --- under the blob's lock --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self, create: bool) -> Iterator[BlobFiles | None]:
        """Holds the blob's lock, with the log read to its end; None when there is no such blob and none is made."""
        give_up_s = self._clock.now_s() + LOCK_WAIT_S
        if not self._turn.acquire(timeout=LOCK_WAIT_S):
            raise Locked("a cached blob is locked", where=self.folder)
        try:
            while True:
                with self._state:
                    files = self._known.look(create)
                if files is None:
                    yield None
                    return
                if create:
                    self._must_be_writable(files)
                self._take_lock(files.data, give_up_s)
                try:
                    if self._is_current(files):
                        yield files
                        return
                finally:
                    self._disk.unlock(files.data)
                with self._state:
                    self._known.reset()
        finally:
            self._turn.release()

    def _must_be_writable(self, files: BlobFiles) -> None:
        if not files.writable:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.folder)

    def _take_lock(self, descriptor: int, give_up_s: float) -> None:
        pause_s = _POLL_FIRST_S
        while not self._disk.lock(descriptor):
            if self._clock.now_s() >= give_up_s:
                raise Locked("a cached blob is locked by another process", where=self.folder)
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MAX_S)

    def _is_current(self, files: BlobFiles) -> bool:
        """Whether the open files still have their names; the log is read to its end."""
        if self._disk.stat_open(files.data).st_nlink == 0:
            return False
        with self._state:
            self._known.refresh()
        return self._disk.stat_open(files.records).st_nlink > 0

    def _append(self, kind: int, ranges: ByteRanges) -> None:
        with self._state:
            self._known.append(kind, ranges)

    def _record_synced(self) -> int | None:
        """Record what was synced and is still claimed; the log's descriptor, None when there was nothing."""
        with self._alone(create=False) as files:
            with self._state:
                synced, self._known.syncing = self._known.syncing, NOTHING
            if files is None or not len(synced):
                return None
            try:
                self._append(DURABLE, synced)
            except OSError:
                with self._state:
                    self._known.syncing = synced
                raise
            return files.records

    def _give_up(self, ranges: ByteRanges) -> None:
        """Claim ranges no more after a failure; that the record cannot be written either is not worth an error."""
        with contextlib.suppress(OSError, Locked), self._alone(create=False) as files:
            if files is not None:
                self._append(DROPPED, ranges)
        with self._state:
            self._known.take_away(ranges)

    def _blocks_bytes(self, files: BlobFiles) -> int:
        return self._disk.stat_open(files.data).st_blocks * 512
