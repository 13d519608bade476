"""What an unfinished file of an earlier pull holds: by its records, or checked against the image."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tonne.clock import Deadline
from tonne.durable import local_errors
from tonne.image.index import Index
from tonne.image.pull_state import PullState, covered
from tonne.model import Entry, Extent, blake3_of
from tonne.wire.root import Part


@dataclass(slots=True)
class Found:
    """The bytes of one unfinished file that may be kept.  Asked by one thread."""

    entry: Entry
    durable: list[tuple[int, int]]
    index: Index
    deadline: Deadline
    descriptor: int

    def close(self) -> None:
        os.close(self.descriptor)

    def has(self, extent: Extent) -> bool:
        """Whether the extent's bytes are there and right: recorded after a sync, or equal to what the image says.

        An extent that is neither recorded, nor a whole frame, nor a whole file cannot be checked, and is made again.
        """
        if covered(self.durable, extent.file_offset, extent.end):
            return True
        if extent.frame is None:
            return False
        if extent.length == self.entry.size_bytes:
            return self._digest(extent) == self.entry.digest
        if extent.frame_offset or not self.index.has_part(Part.CONTENTS) or self._is_hole(extent):
            return False
        frame = self.index.frames([extent.frame], self.deadline)[0]
        if frame.raw_bytes != extent.length:
            return False
        return self._digest(extent) == self.index.content_digest(extent.frame, self.deadline)

    def _is_hole(self, extent: Extent) -> bool:
        try:
            return os.lseek(self.descriptor, extent.file_offset, os.SEEK_DATA) >= extent.end
        except OSError:
            return True  # ENXIO: no data from there on

    def _digest(self, extent: Extent) -> bytes:
        data = memoryview(bytearray(extent.length))
        got = os.preadv(self.descriptor, [data], extent.file_offset)
        return blake3_of(data[:got])


def found_before(entry: Entry, state: PullState, index: Index, deadline: Deadline) -> Found | None:
    """What is there of a file; None (and it is to be made anew) when the unfinished file is not as we leave them."""
    name = b"%d" % entry.inode
    with local_errors("an unfinished file cannot be read", f"inode {entry.inode}"):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=state.files)
        if os.fstat(descriptor).st_size != entry.size_bytes:
            os.close(descriptor)
            os.unlink(name, dir_fd=state.files)
            return None
    return Found(entry, state.durable.get(entry.inode, []), index, deadline, descriptor)
