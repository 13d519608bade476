"""What readers see of one blob in the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tonne.durable import local_error
from tonne.errors import LocalError
from tonne.model import Blob, Digest
from tonne.store.held import HeldBlob
from tonne.store.ranges import NOTHING, ByteRanges
from tonne.store.trouble import Troubles


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """What a blob needs of its store."""

    pinned: Callable[[Digest], AbstractContextManager[HeldBlob]]
    troubles: Troubles
    may_write: Callable[[int], bool]
    wrote: Callable[[Digest, int, int], None]  # after `may_write`: the blob, the same size, how much waits to be synced
    sync: Callable[[Digest], None]
    used: Callable[[], None]  # something was read


class StoredBlob:
    """What is kept of one blob.

    Any thread may call, and other processes may change the same blob at the same time.  Trouble with the disk is
    reported to the store's `on_event` and otherwise looks like bytes that are not there.
    """

    __slots__ = ("_blob", "_store")

    def __init__(self, store: StoreAccess, blob: Blob) -> None:
        self._store = store
        self._blob = blob

    def read(self, offset: int, out: memoryview) -> bool:
        """Fill `out`, not verified; False when not all of the range is there, and then `out` holds rubbish."""
        self._check(offset, out.nbytes)
        where = str(self._blob.digest)
        try:
            with self._store.pinned(self._blob.digest) as held:
                if not held.read(offset, out):
                    return False
                held.touch(offset)
            self._store.used()
            return True
        except OSError as error:
            self._store.troubles.report(local_error(error, "cached bytes cannot be read", where), writing=False)
        except LocalError as error:
            self._store.troubles.report(error, writing=False)
        self.drop(offset, out.nbytes)  # else nobody would write them again
        return False

    def held_bytes(self) -> int:
        """How many bytes of the blob are there."""
        return self._held().size_bytes

    def write(self, offset: int, data: memoryview) -> None:
        """Keep bytes that the caller has verified.  Above the store's limit, and after trouble, nothing is kept.

        All of them are of frames that start in the same stripe, and are evicted with it.
        """
        self._check(offset, data.nbytes)
        store, digest = self._store, self._blob.digest
        if not data.nbytes or not store.may_write(data.nbytes):
            return
        unsynced_bytes = 0
        try:
            with (
                store.troubles.quiet("bytes cannot be cached", str(digest), writing=True),
                store.pinned(digest) as held,
            ):
                if held.write(offset, data):
                    unsynced_bytes = held.unsynced_bytes()
        finally:
            store.wrote(digest, data.nbytes, unsynced_bytes)

    def drop(self, offset: int, length: int) -> None:
        """Forget a range that turned out to be wrong, so that it is fetched and written again."""
        digest = self._blob.digest
        with (
            self._store.troubles.quiet("cached bytes cannot be dropped", str(digest)),
            self._store.pinned(digest) as held,
        ):
            held.drop(offset, length)

    def sync(self) -> None:
        """Bring to the disk what this process wrote of the blob; then it is there after a crash of the machine."""
        self._store.sync(self._blob.digest)

    def _held(self) -> ByteRanges:
        digest = self._blob.digest
        with self._store.troubles.quiet("the cache cannot be read", str(digest)), self._store.pinned(digest) as held:
            return held.held()
        return NOTHING

    def _check(self, offset: int, length: int) -> None:
        size_bytes = self._blob.size_bytes
        if offset < 0 or offset + length > size_bytes:
            raise ValueError(f"{length} bytes at {offset} are not within the {size_bytes} bytes of {self._blob.digest}")
