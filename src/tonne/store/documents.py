"""Documents of the store: small blobs and manifests as a whole, one file each; its mtime is the last use."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict

from tonne.clock import Clock
from tonne.durable import write_document
from tonne.model import Digest
from tonne.store.disk import Disk
from tonne.store.files import name_of, paths_in, read_all

DOCUMENT_BYTES_MAX = 64 * 1024 * 1024  # what is read as one piece elsewhere
PART_OLD_S = 3600.0  # a document is written in moments: by then its writer is dead
_TOUCH_EVERY_S = 60.0  # how exact the last use is while frames are read
_USED_MAX = 1000  # documents of which a process says that it uses them; 20 ms to touch


class Documents:
    """Reads and writes them.

    A process reads an image's documents once and its frames for as long as it lives, so while it goes on reading, what
    it has used before is in use.

    Any thread may call; `_lock` guards what is noted of use and is not held during calls of the disk.  Raises `OSError`
    and `LocalError`.  After a crash a document may be torn, which its digest shows.
    """

    def __init__(self, disk: Disk, folder: str, clock: Clock) -> None:
        self._disk = disk
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._used: OrderedDict[str, None] = OrderedDict()
        self._touched_s = clock.now_s()

    def path(self, digest: Digest) -> str:
        return os.path.join(self._folder, name_of(digest))

    def read(self, digest: Digest) -> bytes | None:
        """A document that was kept, verified; None when it is not there."""
        path = self.path(digest)
        data = read_file(self._disk, path, DOCUMENT_BYTES_MAX)
        if data is None:
            return None
        if digest.matches(data):
            self._use(path)
            return data
        with contextlib.suppress(OSError):
            self._disk.unlink(path)
        return None

    def keep(self, digest: Digest, data: bytes) -> None:
        """Keep one.  It is not synced, since a torn one is only a missing one."""
        path = self.path(digest)
        self._disk.makedirs(self._folder)
        write_document(path, data, self._disk, durable=False)
        self._use(path)

    def still_used(self) -> None:
        """Frames are being read: what this process has used before is in use too."""
        if self._clock.now_s() - self._touched_s < _TOUCH_EVERY_S:
            return
        with self._lock:
            self._touched_s = self._clock.now_s()
            used = list(self._used)
        for path in used:
            self._touch(path)

    def _use(self, path: str) -> None:
        with self._lock:
            self._used[path] = None
            self._used.move_to_end(path)
            if len(self._used) > _USED_MAX:
                self._used.popitem(last=False)
        self._touch(path)

    def _touch(self, path: str) -> None:
        with contextlib.suppress(OSError):  # evicted, or not ours to change: eviction then chooses less well
            self._disk.touch(path, self._clock.wall_s())


def read_file(disk: Disk, path: str, limit_bytes: int) -> bytes | None:
    """A file as a whole; None when there is none, or a larger one."""
    try:
        descriptor = disk.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        out = bytearray(min(disk.stat_open(descriptor).st_size, limit_bytes + 1))
        count = read_all(disk, descriptor, 0, memoryview(out))
        return bytes(out[:count]) if count <= limit_bytes else None
    finally:
        disk.close(descriptor)


def remove_parts(disk: Disk, folder: str, clock: Clock) -> None:
    """Remove the temporary files that killed processes left in a folder.  Raises `OSError`."""
    for path in paths_in(disk, folder):
        if path.endswith(".part"):
            with contextlib.suppress(FileNotFoundError):
                if abs(clock.wall_s() - disk.stat(path).st_mtime) > PART_OLD_S:
                    disk.unlink(path)
