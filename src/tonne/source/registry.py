"""A repository of a registry as source, sink and catalog.

Source: OCI distribution-spec v1.1.  Reads (`read`, `size`, `manifest`) are tried once, since a wrapper retries them
and may ask somebody else; what stores and lists is tried by the network's policy here, since each step needs its own
way of finding out what an attempt has achieved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from tonne.clock import SYSTEM_CLOCK, Clock, Deadline
from tonne.errors import (
    CorruptBytes,
    CorruptDocument,
    Missing,
    MissingBlob,
    MissingManifest,
    ProtocolError,
    Refused,
    SessionLost,
    TonneError,
    TooLarge,
    Unavailable,
    Unsupported,
)
from tonne.model import Blob, Digest, RegistryReference
from tonne.settings import NetworkSettings
from tonne.source.quirks import facts_of
from tonne.source.registry_calls import RepositoryCalls, with_query
from tonne.source.registry_upload import RegistryUpload
from tonne.source.seam import CANCEL_S, Check, Document, Priority, SinkFacts, Urgent, check_range, deliver
from tonne.transport.bodies import MemoryBody, StreamBody
from tonne.transport.documents import parse_object
from tonne.transport.failures import Kind
from tonne.transport.fields import parse_next_link, split_origin
from tonne.transport.registry import Registry, Reply
from tonne.wire.oci import DOCKER_LIST_TYPE, DOCKER_MANIFEST_TYPE, INDEX_TYPE, MANIFEST_TYPE

ACCEPT = ", ".join((MANIFEST_TYPE, INDEX_TYPE, DOCKER_MANIFEST_TYPE, DOCKER_LIST_TYPE))
CHUNK_BYTES_MIN_MAX = 64 * 1024 * 1024  # chunks are held in memory; who wants longer ones gets one PUT a blob
TAG_PAGE = 1000  # tags asked for at once; registries may give fewer
TAGS_MAX = 1_000_000  # ends a list that never does; the busiest repositories have some 100,000
_VAGUE_TYPES = frozenset(("", "application/json", "text/plain", "application/octet-stream"))
_TAGS_BYTES_MAX = 16 * 1024 * 1024  # some registries send all tags at once, whatever was asked for: 100,000 of them


class RegistryRepository:
    """One repository.  Safe to call from any thread; the lock guards what was learned of the registry's limits.

    After an error everything may be called again.  Nothing survives a crash but what the registry has.
    """

    def __init__(self, reference: RegistryReference, registry: Registry, owned: bool = True) -> None:
        self._registry = registry
        self._owned = owned
        self._calls = RepositoryCalls(registry, reference.repository)
        self._where = reference.origin
        self._lock = threading.Lock()
        self._facts = facts_of(reference.host)
        self._asked = False

    @property
    def origin(self) -> str:
        return self._where

    def close(self) -> None:
        """Close the connections, unless the registry is shared."""
        if self._owned:
            self._registry.close()

    # --- Source -----------------------------------------------------------------------------------------------------

    def read(
        self,
        blob: Blob,
        offset: int,
        out: memoryview,
        deadline: Deadline,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> None:
        """See `Source.read`.  The bytes go from libcurl's buffer straight into `out`."""
        check_range(blob, offset, out)
        if out.nbytes:
            flat = out if out.format == "B" and out.ndim == 1 else out.cast("B")
            self._registry.read(self._calls.repository, blob, offset, flat, deadline)
        deliver(out, check, self._where)

    def size(self, digest: Digest, deadline: Deadline) -> int:
        size_bytes = self._calls.blob_size(digest, deadline, self._calls.pull)
        if size_bytes is None:
            raise MissingBlob("the registry does not hold the blob", where=self._where, digest=digest)
        return size_bytes

    def manifest(self, name: str, deadline: Deadline) -> Document:
        url, headers = f"{self._calls.path}/manifests/{name}", (("Accept", ACCEPT),)
        reply = self._calls.call(
            Kind.MANIFEST, "GET", url, (200,), f"cannot read the manifest {name}", deadline, headers=headers
        )
        if reply.head.media_type in ("text/html", "application/xhtml+xml"):
            raise ProtocolError("a web page came instead of a manifest: no registry answers here", where=self._where)
        wanted = Digest.parse(name) if ":" in name else None
        if wanted is not None and not wanted.matches(reply.body):
            raise CorruptBytes(
                "the manifest does not have the digest that was asked for", where=self._where, digest=wanted
            )
        digest = wanted or Digest.of(reply.body)
        said = reply.head.first("docker-content-digest")
        if said.startswith("sha256:") and said != str(Digest.of(reply.body)):
            raise CorruptBytes(
                "the manifest does not have the digest that the registry says", where=self._where, digest=said[:160]
            )
        return Document(reply.body, _manifest_type(reply, self._where), digest)

    # --- Sink -------------------------------------------------------------------------------------------------------

    def facts(self, deadline: Deadline) -> SinkFacts:
        with self._lock:
            if self._asked:
                return self._facts
        try:
            self.start(deadline).cancel(deadline)
        except Refused:
            pass  # `check_rights` is where that is reported
        with self._lock:
            self._asked = True
            return self._facts

    def check_rights(self, deadline: Deadline) -> None:
        """Begin an upload and cancel it: the one way that every registry answers."""
        self.start(deadline).cancel(deadline)

    def has(self, digest: Digest, deadline: Deadline) -> int | None:
        return self._calls.insist(deadline, lambda: self._calls.blob_size(digest, deadline, self._calls.push))

    def mount(self, blob: Blob, from_repository: str, deadline: Deadline) -> bool:
        url = with_query(
            with_query(f"{self._calls.path}/blobs/uploads/", "mount", str(blob.digest)), "from", from_repository
        )
        scopes = (*self._calls.push, f"repository:{from_repository}:pull")
        body = MemoryBody()
        try:
            reply = self._calls.insist(
                deadline,
                lambda: self._calls.call(
                    Kind.UPLOAD_START,
                    "POST",
                    url,
                    (201, 202),
                    "cannot mount a blob",
                    deadline,
                    body=body,
                    scopes=scopes,
                ),
            )
        except (Refused, Missing):
            return False  # no right to read there, nothing there, or no mounts at all: the blob has to be sent
        if reply.head.status == 201:
            return True
        self._upload(reply).cancel(deadline)
        return False

    def start(self, deadline: Deadline) -> RegistryUpload:
        url, body = f"{self._calls.path}/blobs/uploads/", MemoryBody()
        reply = self._calls.insist(
            deadline,
            lambda: self._calls.call(
                Kind.UPLOAD_START, "POST", url, (201, 202), "cannot begin an upload", deadline, body=body
            ),
        )
        return self._upload(reply)

    def resume(self, token: str, deadline: Deadline) -> RegistryUpload:
        upload = RegistryUpload.from_token(self._calls, token)
        self._calls.insist(deadline, lambda: upload.ask(deadline))
        return upload

    def put(
        self,
        blob: Blob,
        chunks: Callable[[], Iterator[memoryview]],
        deadline: Deadline,
        begun: Callable[[str], None] | None = None,
    ) -> None:
        tries = self._calls.backoff.tries(self._registry.clock, deadline)
        while True:
            upload = self.start(deadline)
            stored = False
            failure: TonneError | None = None
            try:
                if begun is not None:
                    begun(upload.token)
                self._put_once(blob, chunks, deadline, upload)
                stored = True
            except (Unavailable, SessionLost, CorruptBytes) as error:
                # Wrong bytes without a status are the caller's: what was to be sent is not what it should be.
                if isinstance(error, CorruptBytes) and "status" not in error.fields:
                    raise
                # Perhaps only the answer was lost.
                stored = error.retryable and self.has(blob.digest, deadline) == blob.size_bytes
                failure = error
            finally:
                if not stored:
                    upload.cancel(Deadline.after(CANCEL_S, self._registry.clock))
            if stored or failure is None:
                return
            tries.failed(failure)

    def put_manifest(self, name: str, document: Document, deadline: Deadline) -> None:
        limit_bytes = self._facts.manifest_bytes_max
        if limit_bytes is not None and len(document.data) > limit_bytes:
            raise TooLarge(
                "the manifest is larger than the registry takes",
                where=self._where,
                size_bytes=len(document.data),
                limit_bytes=limit_bytes,
            )
        damaged = False
        tries = self._calls.backoff.tries(self._registry.clock, deadline)
        while True:
            try:
                self._put_manifest_once(name, document, deadline)
                return
            except (Unavailable, CorruptBytes) as error:
                # Proxies give up after a minute on what storage does for each layer: it may be done all the same.
                if error.retryable and self._is_named(name, document, deadline):
                    return
                if isinstance(error, CorruptBytes):
                    if damaged:
                        raise  # not on the way, then: the registry changes what it stores
                    damaged = True
                tries.failed(error)

    # --- Catalog ----------------------------------------------------------------------------------------------------

    def tags(self, deadline: Deadline) -> Iterator[str]:
        found: set[str] = set()
        url: str | None = f"{self._calls.path}/tags/list?n={TAG_PAGE}"
        while url is not None:
            url = self._tag_page(url, found, deadline)
            if len(found) > TAGS_MAX:
                raise ProtocolError(f"the list of tags goes on after {TAGS_MAX}", where=self._where)
        return iter(sorted(found))

    def delete(self, digest: Digest, tag: str, deadline: Deadline) -> None:
        scopes = (f"repository:{self._calls.repository}:delete,pull",)
        url = f"{self._calls.path}/manifests/{digest}"
        attempted = False

        def remove() -> None:
            nonlocal attempted
            accept = (200, 202, 204, 404) if attempted else (200, 202, 204)
            attempted = True
            self._calls.call(
                Kind.MANIFEST, "DELETE", url, accept, f"cannot remove {tag or digest}", deadline, scopes=scopes
            )

        try:
            self._calls.insist(deadline, remove)
        except Unsupported as error:
            raise Unsupported(
                error.what,
                where=self._where,
                why=error.why,
                todo="turn deletion on in the registry (for distribution, storage.delete.enabled)",
                **error.fields,
            ) from None

    # --- parts ------------------------------------------------------------------------------------------------------

    def _upload(self, reply: Reply) -> RegistryUpload:
        smallest = reply.head.first("oci-chunk-min-length")
        with self._lock:
            self._asked = True
            if smallest.isascii() and smallest.isdigit() and len(smallest) < 16:
                least = int(smallest)
                if least > CHUNK_BYTES_MIN_MAX:
                    self._facts = replace(self._facts, chunked=False)
                else:
                    self._facts = replace(
                        self._facts, chunk_bytes_min=least, chunk_bytes=max(self._facts.chunk_bytes, least)
                    )
        location = self._calls.location(reply)
        if not location:
            raise ProtocolError("the registry names no place for an upload", where=self._where)
        return RegistryUpload(self._calls, location)

    def _put_once(
        self, blob: Blob, chunks: Callable[[], Iterator[memoryview]], deadline: Deadline, upload: RegistryUpload
    ) -> None:
        url = with_query(upload.location, "digest", str(blob.digest))
        body = StreamBody(blob.size_bytes, chunks)
        headers = (("Content-Type", "application/octet-stream"),)
        what = "cannot send a blob"
        reply = self._calls.call(Kind.UPLOAD, "PUT", url, (200, 201, 204), what, deadline, headers=headers, body=body)
        said = reply.head.first("docker-content-digest")
        if said and said != str(blob.digest) and said.startswith(blob.digest.algorithm):
            status = reply.head.status
            raise CorruptBytes(
                "the registry computed another digest", where=self._where, digest=said[:160], status=status
            )
        if not said and self.has(blob.digest, deadline) != blob.size_bytes:
            raise ProtocolError("the registry says that it stored a blob and does not have it", where=self._where)

    def _put_manifest_once(self, name: str, document: Document, deadline: Deadline) -> None:
        url, headers = f"{self._calls.path}/manifests/{name}", (("Content-Type", document.media_type),)
        body = MemoryBody(document.data)
        what = f"cannot store the manifest {name}"
        reply = self._calls.call(Kind.MANIFEST, "PUT", url, (200, 201, 202), what, deadline, headers=headers, body=body)
        said = reply.head.first("docker-content-digest")
        if said.startswith("sha256:") and said != str(Digest.of(document.data)):
            raise CorruptBytes("the registry stored other bytes than were sent", where=self._where, digest=said[:160])
        if not said and not self._is_named(name, document, deadline):
            raise ProtocolError("the registry says that it stored a manifest and does not have it", where=self._where)

    def _is_named(self, name: str, document: Document, deadline: Deadline) -> bool:
        """Whether `name` means this document now."""
        url, headers = f"{self._calls.path}/manifests/{name}", (("Accept", ACCEPT),)
        what = f"cannot look for the manifest {name}"
        try:
            reply = self._calls.call(
                Kind.MANIFEST, "HEAD", url, (200,), what, deadline, headers=headers, scopes=self._calls.push
            )
            said = reply.head.first("docker-content-digest")
            if said:
                return said == str(Digest.of(document.data)) or said == str(document.digest)
            return self.manifest(name, deadline).digest in (document.digest, Digest.of(document.data))
        except (MissingManifest, Unavailable, CorruptBytes):
            return False

    def _tag_page(self, url: str, found: set[str], deadline: Deadline) -> str | None:
        reply = self._calls.insist(
            deadline,
            lambda: self._calls.call(
                Kind.TAGS, "GET", url, (200,), "cannot list tags", deadline, limit_bytes=_TAGS_BYTES_MAX
            ),
        )
        try:
            document = parse_object(reply.body, self._where)
            tags = document.get("tags") or []
            if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
                raise CorruptDocument("not a list of tags", where=self._where)
        except CorruptDocument:
            raise ProtocolError("the list of tags cannot be read", where=self._where) from None
        grown = len(found)
        found.update(tags)
        try:
            following = parse_next_link(reply.head.all("link"), reply.url)
            if following is None or (len(found) == grown and tags):
                return None  # a page that brings nothing new leads in a circle
            if split_origin(following) != split_origin(self._registry.base):
                return _on_base(following, self._registry.base)
        except ValueError:
            raise ProtocolError("the list of tags goes on nowhere", where=self._where) from None
        return following


def open_registry(
    reference: RegistryReference,
    network: NetworkSettings,
    clock: Clock = SYSTEM_CLOCK,
    registry: Registry | None = None,
) -> RegistryRepository:
    """The repository that a reference names.

    `registry` is shared with other repositories of the same host, and not closed with this one.  Nothing is asked
    before the first call.
    """
    if registry is not None:
        return RegistryRepository(reference, registry, owned=False)
    return RegistryRepository(reference, Registry(reference.host, network.for_host(reference.host), clock))


def _manifest_type(reply: Reply, where: str) -> str:
    """The media type: the header's, or the document's own where the header says nothing."""
    media_type = reply.head.media_type
    if media_type not in _VAGUE_TYPES:
        return media_type
    own = parse_object(reply.body, where).get("mediaType")
    return own if isinstance(own, str) and own else MANIFEST_TYPE


def _on_base(url: str, base: str) -> str:
    """The path and query of `url` at `base`: registries behind proxies misname themselves, credentials stay here."""
    parts = urlsplit(url)
    return base + parts.path + (f"?{parts.query}" if parts.query else "")
