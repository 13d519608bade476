"""The interfaces between those who want bytes and those who have them.

A source is identified by its `origin` (host and repository, or folder), which is what errors blame and which never
holds a secret.  Everything here is safe to call from several threads at once.

Errors: `Missing` (it is not there), `Corrupt` (wrong bytes; thrown away), `Unavailable` (may work later), `Refused`
(will not work), each of tonne.errors.  A raised error says in `where` which origin it came from.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tonne.clock import Deadline
from tonne.errors import TonneError
from tonne.model import Blob, Digest

CANCEL_S = 5.0  # for telling a sink of a session that is given up, whatever ended the work: its deadline may be over

Check = Callable[[memoryview], None]
"""Called with the filled buffer before a read returns; raises `Corrupt` when the bytes are not what they must be.

It runs inside the source so that retry and failover treat wrong bytes as they treat no bytes."""


def check_range(blob: Blob, offset: int, out: memoryview) -> None:
    """`ValueError` when the range does not lie within the blob: the first thing that a source's `read` does."""
    if offset < 0 or offset + out.nbytes > blob.size_bytes:
        raise ValueError(f"{out.nbytes} bytes at {offset} are not within the {blob.size_bytes} bytes of {blob.digest}")


def deliver(out: memoryview, check: Check | None, origin: str) -> None:
    """Run the caller's check on bytes that `origin` gave: the last thing that a source's `read` does.

    What the check raises goes on as the same object; a `TonneError` then names the origin in `where` and in the field
    `origin`, unless a source further down has put its own there.
    """
    if check is None:
        return
    try:
        check(out)
    except TonneError as error:
        if "origin" not in error.fields:
            error.fields["origin"] = origin
            error.where = f"{origin}: {error.where}" if error.where else origin
        raise


class Urgent(Protocol):
    """How urgent a read is: a `Priority`, or a `RisingPriority` where others may come to wait for the same read."""

    @property
    def now(self) -> Priority: ...

    def watched(self, told: Callable[[], None]) -> AbstractContextManager[None]:
        """Have `told` called whenever `now` has become more urgent, until the end of the block."""


class Priority(enum.IntEnum):
    """Who waits: a blocked reader, read-ahead for one, or nobody."""

    DEMAND = 0
    AHEAD = 1
    BACKGROUND = 2

    @property
    def now(self) -> Priority:
        return self

    def watched(self, told: Callable[[], None]) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


class RisingPriority:
    """The priority of a read that others join: it becomes that of the most urgent of them.

    Any thread may call.  `told` of `watched` is called without the lock, by the thread that lets it rise.
    """

    def __init__(self, first: Priority) -> None:
        self._lock = threading.Lock()
        self._now = first
        self._watchers: list[Callable[[], None]] = []

    @property
    def now(self) -> Priority:
        return self._now

    def rise(self, priority: Priority) -> None:
        """Be as urgent as that, if it is not already."""
        with self._lock:
            if priority >= self._now:
                return
            self._now = priority
            watchers = list(self._watchers)
        for told in watchers:
            told()

    @contextlib.contextmanager
    def watched(self, told: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            self._watchers.append(told)
        try:
            yield
        finally:
            with self._lock:
                self._watchers.remove(told)

    @contextlib.contextmanager
    def following(self, other: Urgent) -> Iterator[None]:
        """Rise with another one, from what it is now on."""
        with other.watched(lambda: self.rise(other.now)):
            self.rise(other.now)  # it may have risen before it was watched
            yield


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest as it is stored: the exact bytes, their media type and their digest."""

    data: bytes
    media_type: str
    digest: Digest


class Source(Protocol):
    """What every source can do."""

    @property
    def origin(self) -> str:
        """Whom errors blame."""

    def read(
        self,
        blob: Blob,
        offset: int,
        out: memoryview,
        deadline: Deadline,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> None:
        """Fill all of `out` with the blob's bytes from `offset`, run `check` on it, return.

        The range must lie within the blob (``ValueError`` otherwise).  After an error `out` holds rubbish.
        """

    def size(self, digest: Digest, deadline: Deadline) -> int:
        """The blob's length in bytes; `MissingBlob` when it is not there."""

    def manifest(self, name: str, deadline: Deadline) -> Document:
        """The manifest that a tag or a digest (as text) names, verified against the digest where one is known."""

    def close(self) -> None:
        """Give back connections; calls afterwards are errors.  Idempotent."""


class Upload(Protocol):
    """One blob on its way into a sink.  Used by one thread at a time."""

    @property
    def token(self) -> str:
        """What `Sink.resume` needs to go on in another process.  Changes with every call; may hold a signed URL, so it
        goes into journals readable by the owner alone and never into messages."""

    @property
    def acknowledged_bytes(self) -> int:
        """How many bytes the sink has confirmed.  A resumed upload goes on from here."""

    def append(self, chunk: memoryview, deadline: Deadline) -> None:
        """Send the next bytes.  After it returns, `acknowledged_bytes` has grown by all of them.

        Raises `SessionLost` when the sink forgot the session; the blob then has to start over.
        """

    def finish(self, digest: Digest, deadline: Deadline) -> None:
        """Commit what was appended under `digest`; raises `Corrupt` when the sink computes another.  Idempotent."""

    def cancel(self, deadline: Deadline) -> None:
        """Tell the sink to forget it.  Failures are ignored."""


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """What is known of a sink's limits.  Sizes in bytes; None where no limit is known."""

    chunked: bool = True  # False: one PUT a blob, length and digest known before the first byte
    chunk_bytes: int = 16 * 1024 * 1024  # what an `append` should carry
    chunk_bytes_min: int = 0  # OCI-Chunk-Min-Length; holds for all but the last
    chunk_bytes_max: int | None = None
    blob_bytes_max: int | None = None
    manifest_bytes_max: int | None = 4 * 1024 * 1024
    keeps_cut_session: bool = False  # a PATCH cut in the middle leaves the session usable


class Sink(Protocol):
    """The ability to store."""

    @property
    def origin(self) -> str: ...

    def facts(self, deadline: Deadline) -> SinkFacts:
        """The limits; asks the other side at most once."""

    def check_rights(self, deadline: Deadline) -> None:
        """Raise `Refused` when we may not store here, before gigabytes move."""

    def has(self, digest: Digest, deadline: Deadline) -> int | None:
        """The length of a blob that is there, else None."""

    def mount(self, blob: Blob, from_repository: str, deadline: Deadline) -> bool:
        """Have the blob linked from a repository of the same registry; False when it would have to be sent."""

    def start(self, deadline: Deadline) -> Upload:
        """Begin a blob."""

    def resume(self, token: str, deadline: Deadline) -> Upload:
        """Go on with an upload of an earlier process; `SessionLost` when it is gone.  Asks what is acknowledged."""

    def put(
        self,
        blob: Blob,
        chunks: Callable[[], Iterator[memoryview]],
        deadline: Deadline,
        begun: Callable[[str], None] | None = None,
    ) -> None:
        """Store a blob of known digest and length in one request; `chunks` is called anew for each attempt.

        `begun` is told the token of the session before it gets bytes, where there is one: whoever is killed in between
        may `resume` and cancel it, or go on with it.
        """

    def put_manifest(self, name: str, document: Document, deadline: Deadline) -> None:
        """Store a manifest under a tag or digest.  `MissingBlob` with the field `digests` (space-separated) when blobs
        are gone (MANIFEST_BLOB_UNKNOWN).  A time-out is looked up by digest before it is an error."""


class Catalog(Protocol):
    """The ability to list and remove."""

    def tags(self, deadline: Deadline) -> Iterator[str]:
        """All tags, sorted; `MissingRepository` when there is no such repository."""

    def delete(self, digest: Digest, tag: str, deadline: Deadline) -> None:
        """Remove a manifest (and its tags); blobs are the registry's to collect.  `Unsupported` where it is off."""


class Repository(Source, Sink, Catalog, Protocol):
    """All of it in one object: what a reference opens to."""
