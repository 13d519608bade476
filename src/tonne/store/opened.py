"""The blobs that are open: as many as descriptors and memory allow, the most recently used."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from tonne.clock import Clock
from tonne.model import Digest
from tonne.store.disk import Disk
from tonne.store.files import name_of
from tonne.store.held import HeldBlob
from tonne.store.records import LogKey

OPEN_BLOBS_MAX = 128  # three descriptors each; a process has 1,024 where nobody raised the limit
DESCRIPTORS_A_BLOB = 3


class OpenedBlobs:
    """Gives each blob's `HeldBlob`, one for all threads, and closes those that are out of use.

    Any thread may call.  `_lock` guards the table and the pins; files are opened outside it, by the blob's first use.
    `on_unsynced` is told of a blob in which that use found bytes of a process that was killed before it synced them.
    """

    def __init__(
        self, disk: Disk, folder: str, boot_id: str, clock: Clock, on_unsynced: Callable[[Digest], None]
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._boot_id = boot_id
        self._clock = clock
        self._on_unsynced = on_unsynced
        # The other half is for connections and for whatever else the process has open.
        self._full = max(OPEN_BLOBS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 // DESCRIPTORS_A_BLOB)
        self._lock = threading.Lock()
        self._held: OrderedDict[Digest, HeldBlob] = OrderedDict()
        self._is_closed = False

    @contextlib.contextmanager
    def pinned(self, digest: Digest) -> Iterator[HeldBlob]:
        """A blob, which is not closed before the end of the block."""
        with self._lock:
            held = self._held.get(digest)
            is_new = held is None
            if held is None:
                folder = os.path.join(self._folder, name_of(digest))
                held = HeldBlob(self._disk, folder, LogKey.of(digest, self._boot_id), self._clock)
                self._held[digest] = held
            self._held.move_to_end(digest)
            held.pins += 1
            if is_new:  # pinned by now: all others may be busy, and this one is not to be closed in their place
                self._close_idle()
        try:
            yield held
        finally:
            if is_new and held.unsynced_bytes():
                self._on_unsynced(digest)  # before it can be closed; what this use wrote is in its user's care
            with self._lock:
                held.pins -= 1
                if not held.pins:
                    held.close_retired()
                    if self._is_closed:
                        self._held.pop(digest).close()

    def close_idle(self) -> None:
        """Close what is out of use, if more are open than should be: to be called when blobs were synced."""
        with self._lock:
            self._close_idle()

    def close(self) -> None:
        """Close all files, those in use as soon as they are not."""
        with self._lock:
            self._is_closed = True
            for digest in [digest for digest, held in self._held.items() if not held.pins]:
                self._held.pop(digest).close()

    def is_crowded(self) -> bool:
        """Whether more are open than should be, because they wait to be synced."""
        return len(self._held) > OPEN_BLOBS_MAX

    def is_full(self) -> bool:
        """Whether so many wait to be synced that descriptors may run out: nothing more may be written."""
        return len(self._held) > self._full

    def _close_idle(self) -> None:
        excess = len(self._held) - OPEN_BLOBS_MAX
        if excess <= 0:
            return
        for digest, held in list(self._held.items())[: 2 * excess + 8]:
            # What is being written stays open until it is synced.
            if not held.pins and not held.unsynced_bytes():
                self._held.pop(digest).close()
                excess -= 1
            if not excess:
                return
