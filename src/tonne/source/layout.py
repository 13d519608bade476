"""An OCI image layout: a folder that is a repository.

Source: OCI image-spec image-layout.md.  The layouts of skopeo, oras and crane are read as they are; whatever others
wrote into index.json stays.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator

from tonne.clock import SYSTEM_CLOCK, Clock, Deadline
from tonne.durable import DocumentDisk, OsDocumentDisk, need_regular, open_regular, read_bounded
from tonne.errors import CorruptBytes, CorruptDocument, MissingBlob, MissingManifest, MissingRepository, ShortBody
from tonne.model import Blob, Digest, LayoutReference
from tonne.source.layout_collect import only_through
from tonne.source.layout_folder import LayoutFolder, blob_path
from tonne.source.layout_upload import LayoutUpload
from tonne.source.references import listed_blobs, manifest_media_type, parse_object
from tonne.source.seam import Check, Document, Priority, SinkFacts, Urgent, check_range, deliver
from tonne.wire.oci import DOCUMENT_BYTES_MAX

READ_BYTES = 16 * 1024 * 1024  # of one system call, so that the deadline is looked at in between


def open_layout(reference: LayoutReference, clock: Clock = SYSTEM_CLOCK) -> LayoutRepository:
    """The layout in a folder.  The folder is looked at when it is first used, and made by what writes."""
    return LayoutRepository(reference.path, clock, any_name=not reference.tag and reference.digest is None)


class LayoutRepository:
    """A `Repository` in a folder.

    Any thread and any number of processes may call; `LayoutFolder` says how they keep out of each other's way and what
    a crash leaves.  Unfinished uploads survive.  `_lock` guards `_uploads`, the uploads of this object by id.
    """

    def __init__(
        self, path: str, clock: Clock = SYSTEM_CLOCK, *, any_name: bool = False, disk: DocumentDisk | None = None
    ) -> None:
        """`any_name`: ``latest`` may mean the only manifest, whatever its name.  `disk`: what writes go through."""
        self.origin = f"oci:{path}"
        self._any_name = any_name
        self._folder = LayoutFolder(path, self.origin, clock, disk or OsDocumentDisk())
        self._lock = threading.Lock()
        self._uploads: weakref.WeakValueDictionary[str, LayoutUpload] = weakref.WeakValueDictionary()

    # --- Source

    def read(
        self,
        blob: Blob,
        offset: int,
        out: memoryview,
        deadline: Deadline,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> None:
        check_range(blob, offset, out)
        deadline.check("no time left to read", self.origin)
        with self._folder.blob_errors(blob.digest):
            descriptor = open_regular(self._folder.blob(blob.digest))
            try:
                self._fill(descriptor, blob, offset, out, deadline)
            finally:
                os.close(descriptor)
        deliver(out, check, self.origin)

    def size(self, digest: Digest, deadline: Deadline) -> int:
        deadline.check("no time left for a blob's length", self.origin)
        with self._folder.blob_errors(digest):
            found = os.stat(self._folder.blob(digest))
            need_regular(found, self._folder.blob(digest))
            return found.st_size

    def manifest(self, name: str, deadline: Deadline) -> Document:
        deadline.check("no time left for a manifest", self.origin)
        self._folder.need()
        index = self._folder.index()
        digest = Digest.parse(name) if ":" in name else index.find(name, any_name=self._any_name)
        try:
            with self._folder.blob_errors(digest):
                data = read_bounded(self._folder.blob(digest), DOCUMENT_BYTES_MAX)
        except MissingBlob as error:
            raise MissingManifest("no such manifest", where=f"{self.origin}@{digest}") from error
        if data is None:
            raise CorruptDocument("too large for a manifest", where=f"{self.origin}@{digest}")
        if not digest.matches(data):
            raise CorruptBytes("a manifest has the wrong digest", where=f"{self.origin}@{digest}", origin=self.origin)
        return Document(data, index.media_type(digest) or manifest_media_type(data, self.origin), digest)

    def close(self) -> None:
        """Let go of unfinished uploads; they stay on disk."""
        with self._lock:
            uploads = list(self._uploads.values())
            self._uploads.clear()
        for upload in uploads:
            upload.abandon()

    # --- Sink

    def facts(self, deadline: Deadline) -> SinkFacts:
        return SinkFacts(manifest_bytes_max=DOCUMENT_BYTES_MAX, keeps_cut_session=True)

    def check_rights(self, deadline: Deadline) -> None:
        self.start(deadline).cancel(deadline)

    def has(self, digest: Digest, deadline: Deadline) -> int | None:
        try:
            return self.size(digest, deadline)
        except (MissingBlob, MissingRepository):
            return None

    def mount(self, blob: Blob, from_repository: str, deadline: Deadline) -> bool:
        """`from_repository`: another layout's folder, with or without ``oci:``.  False when its blob is rotten, too."""
        self._folder.make(deadline)
        if self.has(blob.digest, deadline) == blob.size_bytes:
            return True
        theirs = blob_path(from_repository.removeprefix("oci:"), blob.digest)
        return self._folder.adopt(blob, theirs, deadline)

    def start(self, deadline: Deadline) -> LayoutUpload:
        deadline.check("no time left to start an upload", self.origin)
        self._folder.make(deadline)
        self._folder.uploads.sweep()
        session, descriptor = self._folder.uploads.create()
        return self._upload(session, descriptor, resumed=False)

    def resume(self, token: str, deadline: Deadline) -> LayoutUpload:
        deadline.check("no time left to resume an upload", self.origin)
        with self._lock:
            earlier = self._uploads.pop(token, None)
        if earlier is not None:
            # Who holds it still finds it lost.
            earlier.abandon()
        return self._upload(token, self._folder.uploads.open(token), resumed=True)

    def put(
        self,
        blob: Blob,
        chunks: Callable[[], Iterator[memoryview]],
        deadline: Deadline,
        begun: Callable[[str], None] | None = None,
    ) -> None:
        upload = self.start(deadline)
        try:
            if begun is not None:
                begun(upload.token)
            for chunk in chunks():
                upload.append(chunk, deadline)
            upload.finish(blob.digest, deadline)
        finally:
            upload.cancel(deadline)

    def put_manifest(self, name: str, document: Document, deadline: Deadline) -> None:
        if not document.digest.matches(document.data) or (":" in name and name != str(document.digest)):
            raise CorruptBytes("the manifest has another digest", where=self.origin, digest=str(document.digest))
        listed = listed_blobs(document.data, self.origin)
        artifact_type = parse_object(document.data, self.origin).get("artifactType")
        deadline.check("no time left to store a manifest", self.origin)
        self._folder.make(deadline)
        with self._folder.locked(deadline):
            gone = [str(blob.digest) for blob in listed if self.has(blob.digest, deadline) != blob.size_bytes]
            if gone:
                what = "the manifest lists blobs that are not there"
                raise MissingBlob(what, where=self.origin, digests=" ".join(gone))
            # Within the lock, or a deletion could take the manifest away before it is listed.
            self._folder.store(document)
            index = self._folder.index()
            index.put(name, document, artifact_type if isinstance(artifact_type, str) else "")
            self._folder.replace_index(index)

    # --- Catalog

    def tags(self, deadline: Deadline) -> Iterator[str]:
        deadline.check("no time left to list tags", self.origin)
        self._folder.need()
        return iter(self._folder.index().names())

    def delete(self, digest: Digest, tag: str, deadline: Deadline) -> None:
        """A layout has no collector: blobs that only this manifest named go too, unless an upload is unfinished, since
        it may count on them, or another manifest cannot be read, since it may name them."""
        deadline.check("no time left to delete", self.origin)
        self._folder.need()
        with self._folder.locked(deadline):
            index = self._folder.index()
            if not index.remove(digest):
                raise MissingManifest("no such manifest", where=f"{self.origin}@{digest}")
            orphans = set() if self._folder.uploads.alive() else only_through(digest, index, self._folder)
            self._folder.replace_index(index)
            self._folder.remove(orphans)

    def _fill(self, descriptor: int, blob: Blob, offset: int, out: memoryview, deadline: Deadline) -> None:
        done = 0
        while done < out.nbytes:
            count = os.preadv(descriptor, [out[done : done + READ_BYTES]], offset + done)
            if not count:
                where = f"{self.origin}@{blob.digest}"
                raise ShortBody(
                    "a blob's file is too short",
                    where=where,
                    why=f"it ends at {offset + done} bytes of {blob.size_bytes}",
                    origin=self.origin,
                )
            done += count
            if done < out.nbytes:
                deadline.check("no time left to read", self.origin)

    def _upload(self, session: str, descriptor: int, *, resumed: bool) -> LayoutUpload:
        upload = LayoutUpload(self._folder.uploads, session, descriptor, self._folder.commit, resumed=resumed)
        with self._lock:
            self._uploads[session] = upload
        return upload
