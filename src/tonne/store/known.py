"""What one process knows of a blob: its open files, what the log says, and what it has yet to sync."""

from __future__ import annotations

import errno
import os

from tonne.store.disk import Disk
from tonne.store.files import ATTEMPTS, BlobFiles, close_all, open_files
from tonne.store.log import Log
from tonne.store.ranges import NOTHING, ByteRanges
from tonne.store.records import DROPPED, Claims, LogKey


class Known:
    """The state behind a `HeldBlob`, which guards it by a lock of its own: one thread at a time.

    Raises `OSError`; after an error less is known, never more.  Nothing in here survives the process.
    """

    def __init__(self, disk: Disk, folder: str, key: LogKey) -> None:
        self.folder = folder
        self.files: BlobFiles | None = None
        self.log = Log(disk, -1, key)
        self.pending = NOTHING  # written and not synced; this process will
        self.syncing = NOTHING  # being synced
        self.beyond = NOTHING  # claimed by the log, but behind the end of the data
        self.is_fresh = True  # the names of the files may not be on the disk yet, whoever made them
        self.losses = 0  # how often anything was taken away
        self._disk = disk
        self._key = key
        self._retired: list[int] = []  # descriptors that other threads may still be using

    @property
    def held(self) -> ByteRanges:
        """What is there, as far as the log was read."""
        return self.log.claims.held

    def look(self, create: bool) -> BlobFiles | None:
        """The open files; when they are opened by this call, the log has been read."""
        for _ in range(ATTEMPTS):
            if self.files is not None:
                return self.files
            self.files = open_files(self._disk, self.folder, create)
            if self.files is None:
                return None
            try:
                self._load(self.files)
            except BaseException:
                self.reset()
                raise
        raise OSError(errno.EBUSY, "the blob comes and goes", self.folder)

    def _load(self, files: BlobFiles) -> None:
        """Read the log from its beginning; `reset` when the data is no longer the blob's."""
        self.log = Log(self._disk, files.records, self._key)
        self.log.read_on()
        status = self._disk.stat_open(files.data)
        if status.st_nlink == 0:
            # The log may be that of a new blob of the same name, and speak of other data.
            self.reset()
            return
        self.is_fresh = True
        claims = self.log.claims
        self.log.claims = claims.within(status.st_size)
        self.beyond = claims.held - self.held
        if files.writable:
            # Left by a process that was killed, or in the care of one that lives: syncing twice does no harm.
            self.pending |= self.held - self.log.claims.durable

    def has(self, offset: int, length: int) -> bool:
        """Whether a range is held; the log is only looked at when it is not known to be."""
        if self.held.has(offset, length):
            return True
        self.refresh()
        return self.held.has(offset, length)

    def refresh(self) -> None:
        """Read what others appended to the log, or the log that replaced it."""
        files = self.files
        if files is None:
            return
        place = self.log.place
        dropped = self.log.read_on()
        if dropped is None:
            self._reopen_log(files)
        elif place != self.log.place and self._disk.stat_open(files.data).st_nlink == 0:
            self.reset()  # as in `_load`
        elif len(dropped):
            self.losses += 1
            self.pending -= dropped
            self.syncing -= dropped

    def _reopen_log(self, files: BlobFiles) -> None:
        self.losses += 1
        # What a new log does not show is whether a range was dropped and came back: then our sync was of other bytes.
        unsynced = self.pending | self.syncing
        self.pending = self.syncing = NOTHING
        self.log = Log(self._disk, files.records, self._key)
        flags = os.O_RDWR if files.writable else os.O_RDONLY
        try:
            records = self._disk.open(self.path("records"), flags | os.O_NOFOLLOW)
        except FileNotFoundError:
            self.reset()  # forgotten, or just being
            return
        self._retired.append(files.records)
        files.records = records
        self._load(files)
        self.pending |= unsynced & self.held

    def take_away(self, gone: ByteRanges) -> None:
        """Forget in memory alone."""
        self.losses += 1
        claims = self.log.claims
        self.log.claims = Claims(claims.held - gone, claims.durable - gone)
        self.pending -= gone
        self.syncing -= gone

    def reset(self) -> None:
        """Know nothing; the files are opened anew by the next `look`."""
        if self.files is not None:
            self._retired += [self.files.data, self.files.records, self.files.used]
        self.files = None
        self.losses += 1
        self.log = Log(self._disk, -1, self._key)
        self.pending = self.syncing = self.beyond = NOTHING

    def append(self, kind: int, ranges: ByteRanges) -> None:
        """Put records at the end of the log, and believe them.  Under the blob's lock, after `refresh`."""
        self.log.append(kind, ranges)
        if kind == DROPPED:
            self.losses += 1
            self.pending -= ranges
            self.syncing -= ranges

    def replace_log(self, files: BlobFiles, new: Log) -> None:
        """Go on with a log that says the same as the present one."""
        self._retired.append(files.records)
        files.records, self.log = new.descriptor, new

    def close_retired(self) -> None:
        """Close what was replaced; called when nobody can be using it."""
        if self._retired:
            close_all(self._disk, self._retired)
            self._retired = []

    def path(self, name: str) -> str:
        """Of one of the blob's files."""
        return os.path.join(self.folder, name)
