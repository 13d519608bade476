"""Reading a file that must not change meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from tonne.errors import SourceChanged
from tonne.image.pack.failure import local_failure
from tonne.image.pack.tree import ScannedTree, ScanRow
from tonne.model.frame import FRAME_BYTES

AHEAD_BYTES = 4 * FRAME_BYTES  # asked of the kernel before it is read; its own read-ahead is 128 KiB


class OpenFile:
    """One file of the source, open for one thread.  `close` checks once more that it is as it was scanned."""

    def __init__(self, tree: ScannedTree, number: int, row: ScanRow) -> None:
        self._tree = tree
        self._number = number
        self._row = row
        self._fd = tree.open_file(number, row)

    def fill(self, offset: int, out: memoryview) -> None:
        """Read exactly `out`; `SourceChanged` when the file ends before."""
        try:
            while len(out):
                done = os.preadv(self._fd, [out], offset)
                if not done:
                    where = self._tree.shown(self._number)
                    raise SourceChanged("a file became shorter while it was packed", where=where)
                offset += done
                out = out[done:]
        except OSError as error:
            raise local_failure(error, self._tree.shown(self._number), "a file cannot be read") from error

    def ahead(self, offset: int) -> None:
        """Tell the kernel what comes next."""
        try:
            os.posix_fadvise(self._fd, offset, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        except OSError:
            pass  # only a hint, which some file systems do not take

    def cells(self) -> Iterator[tuple[int, int, bool]]:
        """The file in frames from its start: (offset, length, hole).

        Neighbouring frames in which the file system stores nothing come as one hole.  A frame with any data is none,
        for what is zeros in it packs to nothing.
        """
        size = self._row.size
        sparse = self._tree.state(self._number, self._fd).st_blocks * 512 < size
        at = 0
        data_at, data_end = (-1, -1) if sparse else (0, size)
        while at < size:
            end = min(at + FRAME_BYTES, size)
            if data_end <= at:
                data_at, data_end = self._next_data(at, size)
            if data_at >= end:
                end = size if data_at >= size else data_at - data_at % FRAME_BYTES
                yield at, end - at, True
            else:
                yield at, end - at, False
            at = end

    def _next_data(self, at: int, size: int) -> tuple[int, int]:
        """Where the next stored bytes begin and end, from `at`; (size, size) when there are none."""
        try:
            start = os.lseek(self._fd, at, os.SEEK_DATA)
            return start, min(os.lseek(self._fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            # ENXIO: nothing but a hole is left.  Others: a file system without the call stores everything.
            return (size, size) if error.errno == errno.ENXIO else (at, size)

    def close(self) -> None:
        """Check and close; `SourceChanged` when the file changed since the scan."""
        try:
            self._tree.check(self._number, self._row, self._fd)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without a check, after a failure.  Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
