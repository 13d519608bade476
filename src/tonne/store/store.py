"""The store: what a node keeps of blobs and documents, shared by all processes that open the same folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Self

from tonne.clock import SYSTEM_CLOCK, Clock
from tonne.durable import write_document
from tonne.errors import TonneError, UnknownVersion
from tonne.model import Blob, Digest
from tonne.settings import CacheSettings
from tonne.store.collection import Collector, Usage, measure
from tonne.store.disk import Disk, OsDisk
from tonne.store.documents import Documents, read_file
from tonne.store.opened import OpenedBlobs
from tonne.store.room import Room
from tonne.store.stored import StoreAccess, StoredBlob
from tonne.store.syncer import Syncer
from tonne.store.trouble import Troubles

VERSION: Final = 1
_VERSION_WORDS = b"tonne store "


class Store:
    """A node's disk.

    Any thread may call, and any number of processes may have the same folder open.  Trouble with the disk is not raised
    but told to `on_event` (by any thread), once; what cannot be read counts as not there, what cannot be written is not
    kept.  Not to be used after a fork in the child.

    After a crash of a process, all that was written is still there; after one of the machine, all that was synced.
    """

    def __init__(
        self, settings: CacheSettings, disk: Disk, clock: Clock, on_event: Callable[[TonneError], None] | None
    ) -> None:
        """Use `open`."""
        self.folder = os.path.expanduser(settings.folder)
        self._disk = disk
        self._is_closed = False
        self._sync_bytes = settings.sync_bytes
        self._room = Room(settings.size_bytes)
        self._troubles = Troubles(clock, on_event or (lambda error: None), self._disk_is_full)
        boot_id = ""
        with self._troubles.quiet("the cache cannot tell this start of the machine from others", ""):
            boot_id = disk.boot_id()
        # Without a boot id no process trusts what another wrote before it was synced.
        boot_id = boot_id or f"{os.getpid()} {clock.wall_s()}"
        self._opened = OpenedBlobs(disk, os.path.join(self.folder, "blobs"), boot_id, clock, self._found_unsynced)
        self._documents = Documents(disk, os.path.join(self.folder, "documents"), clock)
        self._collector = Collector(disk, self.folder, self._opened.pinned, clock)
        self._syncer = Syncer(self._sync_one, self._tidy, settings.sync_s)
        self._access = StoreAccess(
            self._opened.pinned,
            self._troubles,
            self._may_write,
            self._wrote,
            self._sync_one,
            self._documents.still_used,
        )

    @classmethod
    def open(
        cls,
        settings: CacheSettings,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_event: Callable[[TonneError], None] | None = None,
    ) -> Self:
        """Open the folder, made if it is not there.  Raises `UnknownVersion`, and nothing else.

        `on_event` None: nobody wants to know of trouble.  In a folder that cannot be used, nothing is kept.
        """
        store = cls(settings, disk or OsDisk(), clock, on_event)
        with store._troubles.quiet("the cache cannot be opened", store.folder, writing=True):
            store._check_version()
        return store

    def _check_version(self) -> None:
        path = os.path.join(self.folder, "version")
        found = read_file(self._disk, path, 4096) or b""
        number = found.removeprefix(_VERSION_WORDS).strip()
        if found.startswith(_VERSION_WORDS) and number.isdigit():
            if int(number) != VERSION:
                raise UnknownVersion(
                    "the cache was written by another version of tonne",
                    where=self.folder,
                    why=f"it has version {int(number)}, this tonne knows {VERSION}",
                    todo="upgrade tonne, or choose another folder with --cache or TONNE_CACHE",
                )
            self._collector.remove_parts()
            return
        for name in ("blobs", "documents"):
            self._disk.makedirs(os.path.join(self.folder, name))
        write_document(path, b"%s%d\n" % (_VERSION_WORDS, VERSION), self._disk)

    # --- what readers use ---------------------------------------------------------------------------------------------

    def blob(self, blob: Blob) -> StoredBlob:
        """What is kept of one blob.  Costs nothing; no file is opened yet."""
        return StoredBlob(self._access, blob)

    def document(self, digest: Digest) -> bytes | None:
        """A document that was kept, verified; None when it is not there."""
        with self._troubles.quiet("a cached document cannot be read", self._documents.path(digest)):
            return self._documents.read(digest)
        return None

    def keep_document(self, digest: Digest, data: bytes) -> None:
        """Keep a small immutable document.  It is not synced, since a torn one is only a missing one."""
        if not digest.matches(data):
            raise ValueError(f"the document does not have the digest {digest}")
        if not self._may_write(len(data)):
            return
        try:
            with self._troubles.quiet("a document cannot be cached", self._documents.path(digest), writing=True):
                self._documents.keep(digest, data)
        finally:
            self._room.written(len(data))

    # --- care ---------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Bring to the disk what this process wrote."""
        for digest in self._syncer.take_dirty():
            self._sync_one(digest)

    def usage(self) -> Usage:
        """What the store takes of the disk; asks the file system for each blob."""
        with self._troubles.quiet("the cache cannot be measured", self.folder):
            return measure(self._disk, self.folder)
        return Usage()

    def evict(self, target_bytes: int) -> int:
        """Evict the least recently used stripes and documents until the store takes at most so much; the bytes freed.

        What was used within the last seconds stays.
        """
        with self._troubles.quiet("the cache cannot be trimmed", self.folder):
            return self._collector.evict(target_bytes)
        return 0

    def close(self) -> None:
        """Sync, end the thread, close the files.  Idempotent; no calls afterwards."""
        self._is_closed = True
        self._syncer.close()
        self.sync()
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _may_write(self, size_bytes: int) -> bool:
        if self._is_closed or self._troubles.is_paused() or self._opened.is_full():
            return False
        if self._room.wants_measuring():
            self._measure()
        verdict = self._room.take(size_bytes)
        if verdict.wants_tidying:
            self._syncer.tidy_soon()
        return verdict.is_allowed

    def _wrote(self, digest: Digest, size_bytes: int, unsynced_bytes: int) -> None:
        self._room.written(size_bytes)
        if not unsynced_bytes:
            return
        self._syncer.wrote(digest, is_urgent=unsynced_bytes >= self._sync_bytes or self._opened.is_crowded())

    def _found_unsynced(self, digest: Digest) -> None:
        self._syncer.wrote(digest, is_urgent=self._opened.is_crowded())

    def _sync_one(self, digest: Digest) -> None:
        with (
            self._troubles.quiet("the cache cannot be synced", str(digest), writing=True),
            self._opened.pinned(digest) as held,
        ):
            held.sync()
            held.compact()
        self._opened.close_idle()

    def _disk_is_full(self) -> None:
        self._room.disk_is_full()
        self._syncer.tidy_soon()

    def _measure(self) -> int:
        before = self._room.begin_measuring()
        used_bytes = self.usage().total_bytes
        self._room.measured(used_bytes, before)
        return used_bytes

    def _tidy(self) -> bool:
        """Measure, and evict if that says so; whether it is worth while to ask again at once."""
        target_bytes = self._room.target(self._measure())
        if target_bytes is None:
            return True
        freed_bytes = self.evict(target_bytes)
        if freed_bytes:
            self._troubles.resume()
            self._measure()
        return freed_bytes > 0
