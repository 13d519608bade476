"""How much room the store takes, and what goes first: the stripes and documents that were not used for longest."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from tonne.clock import Clock
from tonne.model import Digest
from tonne.store.disk import Disk
from tonne.store.documents import remove_parts
from tonne.store.files import digest_of, name_of, paths_in, stripes_with_data
from tonne.store.held import HeldBlob
from tonne.store.ranges import ByteRanges

GRACE_MS = 5000  # what was used so lately is in use still
# Not even room to say what is dropped; a file system without holes.
_CANNOT_PUNCH = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.ENOSYS})
_FUTURE_MS = 60_000  # a last use that lies further ahead than clocks differ means nothing


@dataclass(frozen=True, slots=True)
class Usage:
    """What the store takes of the disk, in bytes as the file system counts them, holes left out."""

    frames_bytes: int = 0
    documents_bytes: int = 0
    records_bytes: int = 0
    blobs: int = 0

    @property
    def total_bytes(self) -> int:
        return self.frames_bytes + self.documents_bytes + self.records_bytes


def measure(disk: Disk, folder: str) -> Usage:
    """Ask the file system: 4 calls a blob, about 20 ms for the 1,200 of a 10 TB image.  Raises `OSError`."""
    documents = sum(_taken_bytes(disk, path) for path in paths_in(disk, os.path.join(folder, "documents")))
    frames = records = blobs = 0
    for blob in paths_in(disk, os.path.join(folder, "blobs")):
        blobs += 1
        frames += _taken_bytes(disk, os.path.join(blob, "data"))
        records += _taken_bytes(disk, os.path.join(blob, "records")) + _taken_bytes(disk, os.path.join(blob, "used"))
    return Usage(frames, documents, records, blobs)


def _taken_bytes(disk: Disk, path: str) -> int:
    try:
        return disk.stat(path).st_blocks * 512
    except OSError:
        return 0  # gone meanwhile, or not ours


class Collector:
    """Evicts.

    Any thread may call.  One process at a time evicts (flock on FOLDER/lock); the others leave it to that one.  Raises
    `OSError` and `Locked`; what was evicted before the error stays evicted.
    """

    def __init__(
        self, disk: Disk, folder: str, pinned: Callable[[Digest], AbstractContextManager[HeldBlob]], clock: Clock
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._pinned = pinned
        self._clock = clock
        self._turn = threading.Lock()

    def evict(self, target_bytes: int) -> int:
        """Evict until the store takes at most `target_bytes`, or all the rest is in use; the bytes freed."""
        if not self._turn.acquire(blocking=False):
            return 0
        try:
            descriptor = self._disk.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            try:
                if not self._disk.lock(descriptor):
                    return 0
                return self._evict(target_bytes)
            finally:
                self._disk.close(descriptor)  # which unlocks
        finally:
            self._turn.release()

    def _evict(self, target_bytes: int) -> int:
        self.remove_parts()
        excess = measure(self._disk, self._folder).total_bytes - target_bytes
        freed = 0
        if excess <= 0:
            return 0
        candidates = self._candidates()
        while freed < excess and candidates:
            # Stripes may be less than full: then the loop goes round again.
            expected = 0
            chosen: dict[Digest, list[_Candidate]] = {}
            while expected < excess - freed and candidates:
                candidate = candidates.pop()
                expected += candidate.size_bytes
                if candidate.is_document:
                    freed += self._take_document(candidate)
                else:
                    chosen.setdefault(candidate.digest, []).append(candidate)
            for digest, stripes in chosen.items():
                freed += self._take(digest, stripes)
        return freed

    def remove_parts(self) -> None:
        """Remove the temporary files of documents that killed processes left."""
        for folder in (self._folder, os.path.join(self._folder, "documents")):
            remove_parts(self._disk, folder, self._clock)

    def _candidates(self) -> list[_Candidate]:
        """What may be evicted, the least recent last."""
        now_ms = int(self._clock.wall_s() * 1000)
        found: list[_Candidate] = []

        def consider(digest: Digest, used_ms: int, start: int, end: int, is_document: bool) -> None:
            if used_ms > now_ms + _FUTURE_MS:
                used_ms = 0
            if used_ms <= now_ms - GRACE_MS:
                found.append(_Candidate(used_ms, digest, start, end, is_document))

        for path in paths_in(self._disk, os.path.join(self._folder, "blobs")):
            digest = digest_of(os.path.basename(path))
            if digest is None:
                continue
            with contextlib.suppress(OSError):
                stripes = stripes_with_data(self._disk, path)
                for stripe in stripes or ():
                    consider(digest, stripe.used_ms, stripe.start, stripe.end, False)
                if stripes == []:  # no bytes, but records, which take room too
                    consider(digest, 0, 0, 0, False)
        for path in paths_in(self._disk, os.path.join(self._folder, "documents")):
            digest = digest_of(os.path.basename(path))
            with contextlib.suppress(OSError):
                if digest is not None:
                    status = self._disk.stat(path)
                    consider(digest, int(status.st_mtime * 1000), 0, status.st_blocks * 512, True)
        found.sort(key=lambda candidate: candidate.used_ms, reverse=True)
        return found

    def _take(self, digest: Digest, stripes: list[_Candidate]) -> int:
        ranges = ByteRanges(
            np.array([stripe.start for stripe in stripes], np.int64),
            np.array([stripe.end for stripe in stripes], np.int64),
        )
        with self._pinned(digest) as held:
            try:
                freed = held.punch(ranges) if len(ranges) else 0
            except OSError as error:
                if error.errno not in _CANNOT_PUNCH:
                    raise
                # To remove all of the blob needs no room and no holes.
                return held.forget()
            # Bytes without a record, and room that was reserved and not written, are of no use.
            return freed + held.forget(only_empty=True)

    def _take_document(self, document: _Candidate) -> int:
        try:
            self._disk.unlink(os.path.join(self._folder, "documents", name_of(document.digest)))
        except FileNotFoundError:
            return 0
        return document.size_bytes


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What may be evicted: a stripe of a blob, with its place there, or a document."""

    used_ms: int
    digest: Digest
    start: int
    end: int
    is_document: bool

    @property
    def size_bytes(self) -> int:
        """The most that it takes."""
        return self.end - self.start
