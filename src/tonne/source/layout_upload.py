"""Blobs on their way into a layout.

They lie in a folder of ours inside the layout, so that a rename makes them visible, each with a record of how many of
its bytes are on the disk for good.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import weakref
from collections.abc import Callable

from tonne.clock import Clock, Deadline
from tonne.durable import DocumentDisk, local_errors, pwrite_all
from tonne.errors import CorruptBytes, Locked, SessionLost, TonneError
from tonne.model import Digest
from tonne.model.digest import Hasher
from tonne.source.layout_files import make_folders, reading_errors

FOLDER = ".tonne-uploads"
STALE_S = 24 * 3600.0  # an interrupted pack or copy of terabytes is continued within a day, or never
_ID = re.compile(r"[0-9a-f]{32}\Z")
_RECORD = ".length"
_RECORD_DIGITS = 20  # one write of 20 bytes at the start of a sector is whole or not there
_HASH_BYTES = 4 * 1024 * 1024
_TRIES = 16  # of making a file in a folder that others remove when it is empty


class UploadFolder:
    """The unfinished blobs of one layout.

    Any thread and process may call.  A file is locked by whoever writes it, for as long as its descriptor is open, so
    the locks of a dead process are gone.  After a crash the files stay, to be continued or, after a day, swept.
    Methods raise errors of tonne.errors, but `drop`, `sweep` and `prune` never do.
    """

    def __init__(self, layout: str, origin: str, clock: Clock, disk: DocumentDisk) -> None:
        self.path = os.path.join(layout, FOLDER)
        self.origin = origin
        self.disk = disk
        self._clock = clock

    def create(self) -> tuple[str, int]:
        """A new file: its id and its descriptor, locked."""
        session = secrets.token_hex(16)
        with local_errors("no upload can be started", self.origin):
            descriptor = self._create(self.file(session), _TRIES)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return session, descriptor

    def _create(self, path: str, tries: int) -> int:
        make_folders(self.disk, self.path)
        try:
            return self.disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:
            # Another process has removed the folder as it found it empty.
            if tries == 1:
                raise
            return self._create(path, tries - 1)

    def open(self, session: str) -> int:
        """The descriptor of an unfinished file, locked; `SessionLost` when it is gone, `Locked` when it is in use."""
        if not _ID.match(session):
            raise SessionLost("not an upload of this layout", where=self.origin)
        try:
            descriptor = os.open(self.file(session), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SessionLost("the upload is not there any more", where=self.origin) from None
        except OSError:
            with local_errors("an upload cannot be continued", self.origin):
                raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise Locked("another process continues this upload", where=self.origin) from None
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            raise SessionLost("the upload is not there any more", where=self.origin)
        return descriptor

    def file(self, session: str) -> str:
        return os.path.join(self.path, session)

    def record(self, session: str) -> str:
        return os.path.join(self.path, session + _RECORD)

    def drop(self, session: str) -> None:
        """Remove an unfinished file, or what is left of one."""
        for path in (self.file(session), self.record(session)):
            with contextlib.suppress(OSError):
                os.unlink(path)
        self.prune()

    def prune(self) -> None:
        """Remove the folder if it is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def sweep(self) -> None:
        """Remove what nobody has written to for a day and nobody holds."""
        before_s = self._clock.wall_s() - STALE_S
        for name in self._names():
            session = name.removesuffix(_RECORD)
            with contextlib.suppress(OSError, TonneError):
                info = os.lstat(os.path.join(self.path, name))
                if not stat.S_ISREG(info.st_mode) or info.st_mtime >= before_s:
                    continue
                if name != session:
                    # A record goes with its file; alone, it is what a crash left.
                    if not os.path.lexists(self.file(session)):
                        self.drop(session)
                    continue
                descriptor = self.open(session)
                try:
                    self.drop(session)
                finally:
                    os.close(descriptor)

    def alive(self) -> bool:
        """Whether anything is unfinished that is not to be swept."""
        self.sweep()
        return any(_ID.match(name) for name in self._names())

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except OSError:
            return []


class LayoutUpload:
    """One blob on its way into a layout.  For one thread at a time.

    A failed `append` changes nothing that was acknowledged, and may be repeated.  After a crash, `UploadFolder.open`
    and the record give the file back at a length that was synced.  The descriptor is closed by `finish`, `cancel`,
    `abandon` or with the object.
    """

    def __init__(
        self,
        folder: UploadFolder,
        session: str,
        descriptor: int,
        commit: Callable[[str, Digest], None],
        *,
        resumed: bool,
    ) -> None:
        """Takes over the descriptor.  `commit` moves the file at a path to its place as a blob."""
        self._folder = folder
        self._session = session
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        self._commit = commit
        self._committed: Digest | None = None
        self._acknowledged_bytes = 0
        # The state of a hash cannot be kept on disk: what was continued is hashed from the file at the end.
        self._hasher: Hasher | None = None if resumed else hashlib.sha256()
        with local_errors("an upload's record cannot be used", folder.origin):
            self._record = folder.disk.open(folder.record(session), os.O_RDWR | os.O_CREAT)
            self._close_record = weakref.finalize(self, os.close, self._record)
            if resumed:
                self._acknowledged_bytes = self._recorded()
                os.ftruncate(descriptor, self._acknowledged_bytes)

    @property
    def token(self) -> str:
        return self._session

    @property
    def acknowledged_bytes(self) -> int:
        return self._acknowledged_bytes

    def append(self, chunk: memoryview, deadline: Deadline) -> None:
        self._need_open()
        deadline.check("no time left for a chunk", self._folder.origin)
        with local_errors("an upload cannot be written", self._folder.origin):
            pwrite_all(self._folder.disk, self._descriptor, chunk, self._acknowledged_bytes)
            self._folder.disk.fsync(self._descriptor)
            end = self._acknowledged_bytes + chunk.nbytes
            # After the data.  Not synced: after a power cut an older record only means sending more again.
            pwrite_all(self._folder.disk, self._record, f"{end:0{_RECORD_DIGITS}}".encode(), 0)
        if self._hasher is not None:
            self._hasher.update(chunk)
        self._acknowledged_bytes = end

    def finish(self, digest: Digest, deadline: Deadline) -> None:
        if self._committed is None:
            self._need_open()
            deadline.check("no time left to finish a blob", self._folder.origin)
            found = self._found(digest, deadline)
            if found != digest:
                self._drop()
                raise _mismatch(self._folder.origin, digest, found)
            with local_errors("a blob cannot be stored", self._folder.origin):
                os.ftruncate(self._descriptor, self._acknowledged_bytes)
                self._folder.disk.fsync(self._descriptor)
                self._commit(self._folder.file(self._session), digest)
            self._committed = digest
            self._drop()
        elif self._committed != digest:
            raise _mismatch(self._folder.origin, digest, self._committed)

    def cancel(self, deadline: Deadline) -> None:
        self._drop()

    def abandon(self) -> None:
        """Let go of the file, which stays to be continued."""
        self._close_record()
        self._close()

    def _drop(self) -> None:
        if self._close.alive:
            self._folder.drop(self._session)
            self.abandon()

    def _need_open(self) -> None:
        if not self._close.alive:
            raise SessionLost("the upload was ended or continued elsewhere", where=self._folder.origin)

    def _recorded(self) -> int:
        text = os.pread(self._record, _RECORD_DIGITS, 0)
        length = int(text) if len(text) == _RECORD_DIGITS and text.isdigit() else 0
        return min(length, os.fstat(self._descriptor).st_size)

    def _found(self, wanted: Digest, deadline: Deadline) -> Digest:
        if self._hasher is not None and wanted.algorithm == "sha256":
            return Digest("sha256", self._hasher.hexdigest())
        hasher = wanted.hasher()
        buffer = memoryview(bytearray(_HASH_BYTES))
        offset = 0
        with reading_errors("an upload cannot be read again", self._folder.origin):
            while offset < self._acknowledged_bytes:
                deadline.check("no time left to verify a blob", self._folder.origin)
                length = min(_HASH_BYTES, self._acknowledged_bytes - offset)
                count = os.preadv(self._descriptor, [buffer[:length]], offset)
                if not count:
                    break
                hasher.update(buffer[:count])
                offset += count
        return Digest(wanted.algorithm, hasher.hexdigest())


def _mismatch(origin: str, wanted: Digest, found: Digest) -> CorruptBytes:
    return CorruptBytes(
        "a blob has another digest than announced",
        where=origin,
        why=f"{found} came",
        digest=str(wanted),
        found=str(found),
    )
