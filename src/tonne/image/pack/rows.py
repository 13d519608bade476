"""Tables and strings that grow with the input, kept in scratch files so that memory does not.

Scratch files hold no content of the packed files, need no durability, and go with the folder that they are in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tonne.image.pack.failure import blaming, local_failure
from tonne.wire.record import Records

BUFFER_BYTES = 1 << 20  # written at once; large enough that a row costs no system call
WINDOW_BYTES = 16 * 1024  # read at once for single records: hardly slower than one, and neighbours are free
BLOCK_ROWS = 8192  # read at once by those who go through a table


class Scratch:
    """A file of bytes that only grows; what was appended can be read, and read-modify-written, at once.

    Any thread may call; `_lock` guards buffer and length.  An error leaves the file as far as it was written, and the
    object unusable.  Nothing survives a crash: the next run begins with an empty one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with blaming(path, "a scratch file cannot be created"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._flushed = 0
        self._window, self._window_at = b"", 0  # what was read last, for the neighbour that is read next

    def __len__(self) -> int:
        """Bytes appended so far."""
        return self._flushed + len(self._buffer)

    def append(self, data: bytes | memoryview) -> int:
        """Add bytes at the end; returns the offset at which they begin."""
        with self._lock:
            offset = len(self)
            self._buffer += data
            if len(self._buffer) >= BUFFER_BYTES:
                self._flush()
            return offset

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes; reading beyond the end is a defect of the caller."""
        with self._lock:
            if offset >= self._flushed and offset + length <= len(self):
                start = offset - self._flushed
                return bytes(self._buffer[start : start + length])
            start = offset - self._window_at
            if start >= 0 and start + length <= len(self._window):
                return self._window[start : start + length]
            self._flush()
            data = self._pread(offset, max(length, min(WINDOW_BYTES, self._flushed - offset)))
            if len(data) < length:
                raise ValueError(f"{self._path.name} ends before {offset + length}")
            if len(data) <= WINDOW_BYTES:
                self._window, self._window_at = data, offset
            return data[:length]

    def _pread(self, offset: int, length: int) -> bytes:
        pieces = []
        try:
            while length > 0 and (data := os.pread(self._fd, length, offset)):
                pieces.append(data)
                offset, length = offset + len(data), length - len(data)
        except OSError as error:
            raise local_failure(error, self._path, "a scratch file cannot be read") from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Overwrite bytes; may lie behind the end, and then what is between reads as zeros."""
        with self._lock:
            if offset >= self._flushed and offset + len(data) <= len(self):
                start = offset - self._flushed
                self._buffer[start : start + len(data)] = data
                return
            self._flush()
            self._pwrite(offset, data)
            self._flushed = max(self._flushed, offset + len(data))

    def _flush(self) -> None:
        if self._buffer:
            self._pwrite(self._flushed, self._buffer)
            self._flushed += len(self._buffer)
            self._buffer = bytearray()

    def _pwrite(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        if offset < self._window_at + len(self._window) and self._window_at < offset + len(data):
            self._window = b""
        rest = memoryview(data)
        with blaming(self._path, "a scratch file cannot be written"):
            while rest:
                done = os.pwrite(self._fd, rest, offset)
                offset += done
                rest = rest[done:]

    def close(self) -> None:
        """Give back the descriptor; idempotent.  The file goes with its folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Rows:
    """A table of fixed-size records in a scratch file.  Any thread may call, as for `Scratch`."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._scratch = Scratch(path)

    def __len__(self) -> int:
        return len(self._scratch) // self.dtype.itemsize

    def append(self, record: bytes) -> int:
        """Add one record as packed bytes; returns its place."""
        return self._scratch.append(record) // self.dtype.itemsize

    def extend(self, table: Records) -> int:
        """Add records; returns the place of the first."""
        return self._scratch.append(table.tobytes()) // self.dtype.itemsize

    def read(self, start: int, count: int) -> Records:
        """A copy of `count` records from `start`, writable."""
        size = self.dtype.itemsize
        data = bytearray(self._scratch.read(start * size, count * size)) if count else bytearray()
        return np.frombuffer(data, self.dtype)

    def write(self, start: int, table: Records) -> None:
        """Overwrite records from `start`."""
        self._scratch.write(start * self.dtype.itemsize, table.tobytes())

    def raw(self, place: int) -> bytes:
        """The bytes of one record."""
        return self._scratch.read(place * self.dtype.itemsize, self.dtype.itemsize)

    def put_raw(self, place: int, record: bytes, offset: int = 0) -> None:
        """Overwrite bytes of one record from `offset` within it."""
        self._scratch.write(place * self.dtype.itemsize + offset, record)

    def blocks(self, count: int = BLOCK_ROWS) -> Iterator[tuple[int, Records]]:
        """All records in pieces of at most `count`, each with the place of its first."""
        for start in range(0, len(self), count):
            yield start, self.read(start, min(count, len(self) - start))

    def close(self) -> None:
        self._scratch.close()
