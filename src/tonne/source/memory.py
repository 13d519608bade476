"""A repository in memory, with knobs: what tests use where a real registry would only cost time."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tonne.clock import Deadline
from tonne.errors import CorruptBytes, MissingBlob, MissingManifest, MissingRepository, SessionLost, TonneError
from tonne.model import Blob, Digest
from tonne.source.references import listed_blobs
from tonne.source.seam import Check, Document, Priority, SinkFacts, Urgent, check_range, deliver


@dataclass(frozen=True, slots=True)
class Asked:
    """One call that was made.  `kind` is the method's name, upload methods included; `subject` a digest or a name."""

    kind: str
    subject: str = ""
    offset: int = 0
    length: int = 0
    priority: Priority = Priority.DEMAND


@dataclass(slots=True)
class _Fault:
    kind: str
    error: TonneError
    skip: int
    times: int | None


class MemoryRepository:
    """A `Repository` that holds everything in dictionaries.

    Any thread may call; the dictionaries are guarded by one lock, which is never held while a hook or a check runs.
    Nothing survives the process.  Knobs: `fail` (the n-th call of a kind raises), `flip` (reads give a wrong bit),
    `lose_sessions`, `on_call` (runs at the start of each call, outside the lock: to wait, to advance a clock),
    `siblings` (repositories of the same registry, by name, for `mount`), and `asked`, which records every call.
    """

    def __init__(self, origin: str = "memory/test", facts: SinkFacts | None = None) -> None:
        self.origin = origin
        self.blobs: dict[Digest, bytes] = {}
        self.manifests: dict[Digest, Document] = {}
        self.named: dict[str, Digest] = {}
        self.siblings: dict[str, MemoryRepository] = {}
        self.asked: list[Asked] = []
        self.on_call: Callable[[Asked], None] | None = None
        self.closed = False
        self._facts = facts or SinkFacts()
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []
        self._flips: dict[Digest, tuple[int, int]] = {}
        self._sessions: dict[str, bytearray] = {}
        self._numbers = itertools.count(1)

    # --- knobs

    def add(self, data: bytes) -> Blob:
        """Hold a blob."""
        blob = Blob(Digest.of(data), len(data))
        with self._lock:
            self.blobs[blob.digest] = data
        return blob

    def fail(self, kind: str, error: TonneError, *, skip: int = 0, times: int | None = 1) -> None:
        """The calls of `kind` after the next `skip` raise copies of `error`, `times` of them; None: from then on."""
        with self._lock:
            self._faults.append(_Fault(kind, error, skip, times))

    def heal(self) -> None:
        """Take back all faults and flips."""
        with self._lock:
            self._faults.clear()
            self._flips.clear()

    def flip(self, digest: Digest, offset: int, times: int = 1) -> None:
        """The next `times` reads of that byte give it with its lowest bit changed."""
        with self._lock:
            self._flips[digest] = (offset, times)

    def lose_sessions(self) -> None:
        """Forget all uploads in progress."""
        with self._lock:
            self._sessions.clear()

    @property
    def sessions(self) -> int:
        """How many uploads are in progress."""
        with self._lock:
            return len(self._sessions)

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
        self._enter(Asked("read", str(blob.digest), offset, out.nbytes, priority.now), deadline)
        with self._lock:
            data = self._blob(blob.digest)
            out[:] = data[offset : offset + out.nbytes]
            place, times = self._flips.get(blob.digest, (-1, 0))
            if times and offset <= place < offset + out.nbytes:
                out[place - offset] ^= 1
                self._flips[blob.digest] = (place, times - 1)
        deliver(out, check, self.origin)

    def size(self, digest: Digest, deadline: Deadline) -> int:
        self._enter(Asked("size", str(digest)), deadline)
        with self._lock:
            return len(self._blob(digest))

    def manifest(self, name: str, deadline: Deadline) -> Document:
        self._enter(Asked("manifest", name), deadline)
        with self._lock:
            digest = Digest.parse(name) if ":" in name else self.named.get(name)
            document = None if digest is None else self.manifests.get(digest)
        if document is None:
            raise MissingManifest("no such manifest", where=f"{self.origin}:{name}")
        return document

    def close(self) -> None:
        self.closed = True

    # --- Sink

    def facts(self, deadline: Deadline) -> SinkFacts:
        self._enter(Asked("facts"), deadline)
        return self._facts

    def check_rights(self, deadline: Deadline) -> None:
        self._enter(Asked("check_rights"), deadline)

    def has(self, digest: Digest, deadline: Deadline) -> int | None:
        self._enter(Asked("has", str(digest)), deadline)
        with self._lock:
            data = self.blobs.get(digest)
        return None if data is None else len(data)

    def mount(self, blob: Blob, from_repository: str, deadline: Deadline) -> bool:
        self._enter(Asked("mount", str(blob.digest)), deadline)
        sibling = self.siblings.get(from_repository)
        data = None if sibling is None else sibling.blobs.get(blob.digest)
        with self._lock:
            if data is not None:
                self.blobs[blob.digest] = data
            return blob.digest in self.blobs

    def start(self, deadline: Deadline) -> MemoryUpload:
        self._enter(Asked("start"), deadline)
        with self._lock:
            session = f"session-{next(self._numbers)}"
            self._sessions[session] = bytearray()
        return MemoryUpload(self, session)

    def resume(self, token: str, deadline: Deadline) -> MemoryUpload:
        self._enter(Asked("resume", token), deadline)
        session = token.partition("@")[0]
        with self._lock:
            if session not in self._sessions:
                raise SessionLost("no such upload", where=self.origin)
        return MemoryUpload(self, session)

    def put(
        self,
        blob: Blob,
        chunks: Callable[[], Iterator[memoryview]],
        deadline: Deadline,
        begun: Callable[[str], None] | None = None,
    ) -> None:
        self._enter(Asked("put", str(blob.digest), length=blob.size_bytes), deadline)
        data = b"".join(chunks())
        if len(data) != blob.size_bytes or not blob.digest.matches(data):
            raise CorruptBytes("the blob has another digest", where=self.origin, digest=str(blob.digest))
        with self._lock:
            self.blobs[blob.digest] = data

    def put_manifest(self, name: str, document: Document, deadline: Deadline) -> None:
        self._enter(Asked("put_manifest", name, length=len(document.data)), deadline)
        if not document.digest.matches(document.data) or (":" in name and name != str(document.digest)):
            raise CorruptBytes("the manifest has another digest", where=self.origin, digest=str(document.digest))
        with self._lock:
            gone = [
                str(blob.digest)
                for blob in listed_blobs(document.data, self.origin)
                if len(self.blobs.get(blob.digest, b"")) != blob.size_bytes and blob.digest not in self.manifests
            ]
            if gone:
                raise MissingBlob(
                    "the manifest lists blobs that are not there", where=self.origin, digests=" ".join(gone)
                )
            self.manifests[document.digest] = document
            if ":" not in name:
                self.named[name] = document.digest

    # --- Catalog

    def tags(self, deadline: Deadline) -> Iterator[str]:
        self._enter(Asked("tags"), deadline)
        with self._lock:
            if not self.manifests:
                raise MissingRepository("no such repository", where=self.origin)
            return iter(sorted(self.named))

    def delete(self, digest: Digest, tag: str, deadline: Deadline) -> None:
        self._enter(Asked("delete", str(digest)), deadline)
        with self._lock:
            if self.manifests.pop(digest, None) is None:
                raise MissingManifest("no such manifest", where=f"{self.origin}@{digest}")
            self.named = {name: held for name, held in self.named.items() if held != digest}

    # --- behind both classes

    def _enter(self, asked: Asked, deadline: Deadline) -> None:
        with self._lock:
            self.asked.append(asked)
        if self.on_call is not None:
            self.on_call(asked)
        deadline.check(f"no time left for {asked.kind}", self.origin)
        with self._lock:
            for fault in self._faults:
                if fault.kind != asked.kind:
                    continue
                if fault.skip:
                    fault.skip -= 1
                elif fault.times is None or fault.times > 0:
                    fault.times = None if fault.times is None else fault.times - 1
                    raise copy.copy(fault.error)

    def _blob(self, digest: Digest) -> bytes:
        data = self.blobs.get(digest)
        if data is None:
            raise MissingBlob("no such blob", where=f"{self.origin}@{digest}")
        return data

    def _session(self, session: str) -> bytearray:
        data = self._sessions.get(session)
        if data is None:
            raise SessionLost("the upload was forgotten", where=self.origin)
        return data

    # --- for `MemoryUpload`

    def extend_session(self, session: str, chunk: memoryview, deadline: Deadline) -> int:
        """Append; gives the session's length in bytes."""
        self._enter(Asked("append", session, self.session_bytes(session), chunk.nbytes), deadline)
        with self._lock:
            data = self._session(session)
            data.extend(chunk)
            return len(data)

    def commit_session(self, session: str, digest: Digest, deadline: Deadline) -> None:
        """Make a blob of it; the session ends in any case."""
        self._enter(Asked("finish", str(digest)), deadline)
        with self._lock:
            data = bytes(self._session(session))
            del self._sessions[session]
            if not digest.matches(data):
                raise CorruptBytes("the blob has another digest", where=self.origin, digest=str(digest))
            self.blobs[digest] = data

    def drop_session(self, session: str, deadline: Deadline) -> None:
        self._enter(Asked("cancel", session), deadline)
        with self._lock:
            self._sessions.pop(session, None)

    def session_bytes(self, session: str) -> int:
        """What a session holds; 0 when it is lost."""
        with self._lock:
            return len(self._sessions.get(session, b""))


class MemoryUpload:
    """An upload into a `MemoryRepository`.  For one thread.  A failed `append` leaves the session as it was."""

    def __init__(self, repository: MemoryRepository, session: str) -> None:
        self._repository = repository
        self._session = session
        self._calls = 0
        self._committed: Digest | None = None
        self.acknowledged_bytes = repository.session_bytes(session)

    @property
    def token(self) -> str:
        return f"{self._session}@{self._calls}"

    def append(self, chunk: memoryview, deadline: Deadline) -> None:
        self.acknowledged_bytes = self._repository.extend_session(self._session, chunk, deadline)
        self._calls += 1

    def finish(self, digest: Digest, deadline: Deadline) -> None:
        if self._committed == digest:
            return
        self._repository.commit_session(self._session, digest, deadline)
        self._committed = digest

    def cancel(self, deadline: Deadline) -> None:
        try:
            self._repository.drop_session(self._session, deadline)
        except TonneError:
            pass
