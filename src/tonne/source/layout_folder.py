"""The folder of an OCI image layout: its marker, its index.json and its blobs as files.

Source: OCI image-spec image-layout.md.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
from collections.abc import Iterator

from tonne.clock import Clock, Deadline
from tonne.durable import (
    DocumentDisk,
    local_errors,
    open_regular,
    pwrite_all,
    read_bounded,
    sync_folder,
    write_document,
)
from tonne.errors import CorruptDocument, LocalFailure, MissingBlob, MissingRepository, TargetExists, Unsupported
from tonne.model import Blob, Digest
from tonne.source.layout_files import locked, make_folders, reading_errors
from tonne.source.layout_index import LayoutIndex
from tonne.source.layout_upload import FOLDER, UploadFolder
from tonne.source.references import parse_object
from tonne.source.seam import Document
from tonne.wire.oci import DOCUMENT_BYTES_MAX

VERSION = "1.0.0"
MARKER = "oci-layout"
INDEX = "index.json"
HASH_BYTES = 4 * 1024 * 1024  # read at once
COPY_BYTES = 64 * 1024 * 1024  # of one system call, so that the deadline is looked at in between
_MARKER_BYTES_MAX = 64 * 1024  # it holds one short field
_HARMLESS = {FOLDER, "lost+found"}  # what a folder may hold and still become a layout

# No second name can be given to the file, but its bytes may perhaps be shared or copied.
_NO_LINK = (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)
_NO_COPY = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
_NOT_THERE = (FileNotFoundError, NotADirectoryError)


def blob_path(layout: str, digest: Digest) -> str:
    """Where a layout keeps a blob."""
    return os.path.join(layout, "blobs", digest.algorithm, digest.hex)


class LayoutFolder:
    """The files of one layout.

    Any thread and any number of processes may call.  index.json is read and replaced under the lock (`locked`), which
    is one on the file `oci-layout`; blobs are made in the uploads' folder and renamed.  So readers need no lock, and
    after an error or a crash index.json is the old or the new one, and each blob is whole or not there.
    """

    def __init__(self, path: str, origin: str, clock: Clock, disk: DocumentDisk) -> None:
        self.path = path
        self.origin = origin
        self.disk = disk
        self.uploads = UploadFolder(path, origin, clock, disk)
        self._clock = clock
        self._marker = os.path.join(path, MARKER)
        self._index = os.path.join(path, INDEX)

    def blob(self, digest: Digest) -> str:
        return blob_path(self.path, digest)

    @contextlib.contextmanager
    def blob_errors(self, digest: Digest) -> Iterator[None]:
        """Within it, a file that is not there is a missing blob, or a missing layout."""
        with reading_errors("a blob cannot be read", self.origin):
            try:
                yield
            except _NOT_THERE as error:
                self.need()
                raise MissingBlob("no such blob", where=f"{self.origin}@{digest}") from error

    def need(self) -> None:
        """Raise unless this is a layout that we can read."""
        try:
            with reading_errors("a layout cannot be read", self.origin):
                data = read_bounded(self._marker, _MARKER_BYTES_MAX)
        except LocalFailure as error:
            if not isinstance(error.__cause__, _NOT_THERE):
                raise
            raise self._not_there() from error
        if data is None:
            raise CorruptDocument(f"{MARKER} is too large", where=self.origin)
        version = parse_object(data, f"{self.origin}: {MARKER}").get("imageLayoutVersion")
        if not isinstance(version, str) or version.partition(".")[0] != VERSION.partition(".")[0]:
            raise Unsupported(
                "the layout has a version that tonne does not know",
                where=self.origin,
                why=f"{MARKER} says {str(version)[:40]!r}, not {VERSION}",
                todo="copy it to a layout of that version, or upgrade tonne",
            )

    def make(self, deadline: Deadline) -> None:
        """Make the layout if there is none; `TargetExists` when the folder is something else."""
        try:
            self.need()
        except MissingRepository:
            with local_errors("a layout cannot be made", self.origin):
                self._make()
        if not os.path.exists(self._index):
            with self.locked(deadline):
                if not os.path.exists(self._index):
                    self.replace_index(LayoutIndex.empty(self.origin))

    def locked(self, deadline: Deadline) -> contextlib.AbstractContextManager[None]:
        """Hold the layout's lock."""
        return locked(self._marker, deadline, self._clock)

    def index(self) -> LayoutIndex:
        """index.json as it is; to change it, read it with the lock held."""
        with reading_errors("a layout's index.json cannot be read", self.origin):
            try:
                data = read_bounded(self._index, DOCUMENT_BYTES_MAX)
            except FileNotFoundError:
                # Another process is making the layout at this moment.
                return LayoutIndex.empty(self.origin)
        if data is None:
            raise CorruptDocument("a layout's index.json is too large", where=self.origin)
        return LayoutIndex.parse(data, self.origin)

    def replace_index(self, index: LayoutIndex) -> None:
        """Called with the lock."""
        write_document(self._index, index.encode(), self.disk)
        # With the lock held, any that are there were left by processes that were killed.
        for left in glob.glob(f"{glob.escape(self._index)}.*.part"):
            with contextlib.suppress(OSError):
                os.unlink(left)

    def store(self, document: Document) -> None:
        """Store a manifest's bytes, durably."""
        with local_errors("a manifest cannot be stored", self.origin), self._written(document.data) as path:
            self.commit(path, document.digest)

    def commit(self, path: str, digest: Digest) -> None:
        """Move a synced file to its place as a blob, durably; one that is there is replaced, and so healed.

        May raise OSError.
        """
        folder = os.path.dirname(self.blob(digest))
        make_folders(self.disk, folder)
        self.disk.rename(path, self.blob(digest))
        sync_folder(self.disk, folder)

    def remove(self, digests: set[Digest]) -> None:
        """Remove blobs; being gone is no error."""
        with local_errors("a blob cannot be removed", self.origin):
            for digest in digests:
                with contextlib.suppress(FileNotFoundError):
                    self.disk.unlink(self.blob(digest))
            for folder in {os.path.dirname(self.blob(digest)) for digest in digests}:
                if os.path.isdir(folder):
                    sync_folder(self.disk, folder)

    def adopt(self, blob: Blob, theirs: str, deadline: Deadline) -> bool:
        """Have another layout's file as a blob of this one, without moving bytes through this process.

        False when it is not there, is not what its name says, lies on another file system, or the kernel cannot do it.
        A registry checks what it commits; a folder's content nobody may have checked since, so it is hashed first.
        """
        with local_errors("a blob cannot be linked", self.origin):
            try:
                info = os.stat(theirs)
            except OSError:
                return False
            if not stat.S_ISREG(info.st_mode) or info.st_size != blob.size_bytes:
                return False
            if info.st_dev != os.stat(self.path).st_dev:
                return False
            if not self._is_right(theirs, blob, deadline):
                return False
            return self._link(theirs, blob) or self._copy(theirs, blob, deadline)

    def _not_there(self) -> MissingRepository:
        todo = "check the folder's name"
        if not os.path.lexists(self.path):
            return MissingRepository("no such folder", where=self.origin, todo=todo)
        if not os.path.isdir(self.path):
            return MissingRepository("not a folder", where=self.origin, todo="unpack it first if it is an archive")
        why = f"it has no file {MARKER}"
        return MissingRepository("the folder is no OCI layout", where=self.origin, why=why, todo=todo)

    def _make(self) -> None:
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise TargetExists("a file is where the layout would be", where=self.origin, todo="choose a folder")
        make_folders(self.disk, self.path)
        others = sorted(set(os.listdir(self.path)) - _HARMLESS)
        # Two processes may do this at once: then the other's marker is there by now.
        if others and not os.path.exists(self._marker):
            why = f"it has {others[0]}"
            raise TargetExists("the folder holds other things and is no OCI layout", where=self.origin, why=why)
        with self._written(f'{{"imageLayoutVersion":"{VERSION}"}}'.encode()) as path:
            self._place_marker(path)
            sync_folder(self.disk, self.path)

    @contextlib.contextmanager
    def _written(self, data: bytes) -> Iterator[str]:
        """The path of a synced file with that content, which is gone afterwards unless it was moved.

        May raise OSError.
        """
        session, descriptor = self.uploads.create()
        try:
            pwrite_all(self.disk, descriptor, data, 0)
            self.disk.fsync(descriptor)
            yield self.uploads.file(session)
        finally:
            self.uploads.drop(session)
            os.close(descriptor)

    def _place_marker(self, path: str) -> None:
        try:
            # A link, not a rename: a marker that is there already may be locked, and has to stay.
            os.link(path, self._marker)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self.disk.rename(path, self._marker)

    def _is_right(self, theirs: str, blob: Blob, deadline: Deadline) -> bool:
        hasher = blob.digest.hasher()
        buffer = memoryview(bytearray(HASH_BYTES))
        try:
            with open(open_regular(theirs), "rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    deadline.check("no time left to check a blob", self.origin)
                    hasher.update(buffer[:count])
        except OSError:
            return False
        return hasher.hexdigest() == blob.digest.hex

    def _link(self, theirs: str, blob: Blob) -> bool:
        session, descriptor = self.uploads.create()
        linked = self.uploads.file(session)
        try:
            os.unlink(linked)
            os.link(theirs, linked)
            with open(open_regular(linked), "rb") as file:
                # Whoever wrote it may not have.
                self.disk.fsync(file.fileno())
            # A rename, so that a blob that is there is never missing in between.
            self.commit(linked, blob.digest)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        finally:
            # Renaming a link over another link of the same file leaves both.
            self.uploads.drop(session)
            os.close(descriptor)
        return True

    def _copy(self, theirs: str, blob: Blob, deadline: Deadline) -> bool:
        session, descriptor = self.uploads.create()
        source = -1
        try:
            source = open_regular(theirs)
            done = 0
            while done < blob.size_bytes:
                deadline.check("no time left to copy a blob", self.origin)
                count = os.copy_file_range(source, descriptor, min(COPY_BYTES, blob.size_bytes - done), done, done)
                if not count:
                    return False
                done += count
            self.disk.fsync(descriptor)
            self.commit(self.uploads.file(session), blob.digest)
            return True
        except OSError as error:
            if error.errno in _NO_COPY:
                return False
            raise
        finally:
            self.uploads.drop(session)
            os.close(descriptor)
            if source >= 0:
                os.close(source)
