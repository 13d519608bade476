"""The log of one blob as a file: read on when others have appended, appended to, written anew."""

from __future__ import annotations

import os

from tonne.durable import pwrite_all
from tonne.store.disk import Disk
from tonne.store.files import close_all, read_all
from tonne.store.ranges import NOTHING, ByteRanges
from tonne.store.records import RECORD_BYTES, Claims, LogKey, encode_records

_PIECE_BYTES = 1024 * 1024
_COMPACT_BYTES_MIN = 64 * 1024  # a log below this is not worth the two syncs
_COMPACT_FACTOR = 4  # a log is written anew when it is so many times longer than it needs to be


class Log:
    """An open log and what it says.

    For one thread at a time.  `append` and `rewrite` only under the blob's lock and after `read_on`.  Raises `OSError`;
    after an error `claims` says what was read or appended before it.  A crash leaves at worst a torn record at the end,
    over which the next one is written.
    """

    def __init__(self, disk: Disk, descriptor: int, key: LogKey) -> None:
        self.descriptor = descriptor  # closed by whoever opened it
        self.claims = Claims()
        self._disk = disk
        self._key = key
        self.place = 0  # so many records are in `claims`

    def read_on(self) -> ByteRanges | None:
        """Read what was appended; all that those records dropped.  None: this log is no longer the blob's."""
        status = self._disk.stat_open(self.descriptor)
        if status.st_nlink == 0 or status.st_size < self.place * RECORD_BYTES:
            return None
        left = status.st_size // RECORD_BYTES - self.place
        if not left:
            return NOTHING
        buffer = memoryview(bytearray(min(left * RECORD_BYTES, _PIECE_BYTES)))
        while left:
            piece = buffer[: left * RECORD_BYTES]
            if read_all(self._disk, self.descriptor, self.place * RECORD_BYTES, piece) != piece.nbytes:
                return None  # cut short under our hands
            self._take(piece)
            left -= piece.nbytes // RECORD_BYTES
        dropped = self.claims.dropped
        self.claims = self.claims.nothing_dropped()
        return dropped

    def append(self, kind: int, ranges: ByteRanges) -> None:
        """Put records of one kind at the end, and believe them."""
        data = encode_records(kind, ranges, self._key, self.place)
        pwrite_all(self._disk, self.descriptor, data, self.place * RECORD_BYTES)
        self.claims = self.claims.with_records(kind, ranges).nothing_dropped()
        self.place += len(data) // RECORD_BYTES

    def is_wordy(self) -> bool:
        """Whether most of it says nothing any more."""
        log_bytes = self.place * RECORD_BYTES
        return log_bytes >= _COMPACT_BYTES_MIN and log_bytes >= _COMPACT_FACTOR * self.claims.log_bytes

    def rewrite(self, path: str) -> Log:
        """Replace the file at `path` by the shortest log that says the same; the folder is not synced yet."""
        data = self.claims.log(self._key)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        descriptor = self._disk.open(path + ".new", flags)
        try:
            pwrite_all(self._disk, descriptor, data, 0)
            self._disk.fdatasync(descriptor)
            self._disk.rename(path + ".new", path)
        except BaseException:
            close_all(self._disk, [descriptor])
            raise
        new = Log(self._disk, descriptor, self._key)
        new._take(data)
        return new

    def _take(self, data: bytes | memoryview) -> None:
        self.claims = self.claims.after(data, self._key, self.place)
        self.place += len(data) // RECORD_BYTES
