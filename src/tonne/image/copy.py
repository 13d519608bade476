"""Copy: a manifest and all that it names, from one repository to another, with every digest kept.

A blob that is there is left, one that the registry can link is linked, the rest is streamed in chunks.  Any manifest of
one image is copied, ours or not.

An upload of an earlier run goes on where the sink acknowledged.  hashlib cannot save the state of a SHA-256, and
reading the acknowledged part again would cost what resuming saves; so a resumed blob is judged by the sink, which
commits under the digest or not at all, and one that it refuses is sent once more from the start, hashed on its way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tonne.clock import Deadline
from tonne.errors import (
    Corrupt,
    CorruptBytes,
    ForeignManifest,
    Interrupted,
    Missing,
    MissingBlob,
    MissingManifest,
    ProtocolError,
    Refused,
    SessionLost,
    TonneError,
    TooLarge,
    UsageError,
)
from tonne.image.copy_journal import CopyJournal
from tonne.image.workers import Halt, all_of
from tonne.model import Blob, Digest
from tonne.progress import Progress
from tonne.source.references import listed_blobs
from tonne.source.seam import Document, Priority, Repository, SinkFacts, Source, Upload
from tonne.wire.oci import DOCKER_LIST_TYPE, INDEX_TYPE, parse_json

SESSIONS_MAX = 4  # of one blob: registries that lose a session whenever a connection breaks exist
READINGS_MAX = 2  # of a blob that comes with the wrong digest: the second time it is stored so
CANCEL_S = 5.0
BLOBS_AT_ONCE = 4  # uploads of one blob go strictly in order, so speed comes from several blobs


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy did; lengths in bytes.  `present`: was there; `mounted`: linked within the registry; `sent`: streamed
    by this run; `resumed`: acknowledged to an earlier one."""

    digest: Digest
    blobs: int
    total_bytes: int
    present_bytes: int
    mounted_bytes: int
    sent_bytes: int
    resumed_bytes: int


def copy(
    source: Source,
    name: str,
    target: Repository,
    target_name: str,
    progress: Progress,
    *,
    mount_from: str = "",
    journal_folder: Path | None = None,
    confirm: Source | None = None,
    on_event: Callable[[TonneError], None] = lambda error: None,
) -> CopyReport:
    """Copy the manifest that `name` (tag or digest) names at `source` to `target` under `target_name`.

    Args:
        mount_from: the source's repository, when both are in the same registry (or layouts on one disk).
        journal_folder: where upload sessions are remembered between runs; None: a new run begins again.
        confirm: reads the target, with retries, to see at the end that the manifest is there; None: `target` itself.

    Errors: those of reading and storing; `ForeignManifest` for an index of several manifests; `Locked`.  After any
    error, and after a crash, the same call goes on.
    """
    halt = Halt()
    document = source.manifest(name, halt.deadline)
    blobs = _blobs_of(document, source.origin)
    if ":" in target_name and target_name != str(document.digest):
        why = f"it has the digest {document.digest}"
        raise UsageError("the manifest cannot be stored under that digest", where=target_name, why=why)
    facts = target.facts(halt.deadline)
    _check_limits(document, blobs, facts, target.origin)
    target.check_rights(halt.deadline)
    journal = None
    if journal_folder is not None:
        journal = CopyJournal(journal_folder, document.digest, target.origin)
    try:
        run = _Copy(source, target, facts, halt, progress, mount_from, journal, on_event)
        progress.begin("copying", sum(blob.size_bytes for blob in blobs))
        all_of(blobs, run.blob, BLOBS_AT_ONCE, halt)
        run.manifest(target_name, document, blobs, confirm or target)
        if journal is not None:
            journal.remove()
        return run.report(document.digest, blobs)
    finally:
        if journal is not None:
            journal.close()


def _blobs_of(document: Document, where: str) -> list[Blob]:
    """Every blob once, in the manifest's order."""
    parsed = parse_json(document.data, where)
    is_list = document.media_type in (INDEX_TYPE, DOCKER_LIST_TYPE)
    if is_list or (isinstance(parsed, dict) and ("manifests" in parsed or parsed.get("schemaVersion") == 1)):
        raise ForeignManifest(
            "only the manifest of one image can be copied",
            where=where,
            why="it is an index of several" if parsed.get("schemaVersion") != 1 else "it is of Docker's schema 1",
            todo="use `skopeo copy --all`, or name one manifest of it by digest",
        )
    return list(dict.fromkeys(listed_blobs(document.data, where)))


def _check_limits(document: Document, blobs: list[Blob], facts: SinkFacts, where: str) -> None:
    limit = facts.manifest_bytes_max
    if limit is not None and len(document.data) > limit:
        raise TooLarge(
            "the manifest is larger than the registry takes",
            where=where,
            size_bytes=len(document.data),
            limit_bytes=limit,
        )
    limit = facts.blob_bytes_max
    largest = max((blob.size_bytes for blob in blobs), default=0)
    if limit is not None and largest > limit:
        raise TooLarge("a blob is larger than the registry takes", where=where, size_bytes=largest, limit_bytes=limit)


class _Copy:
    """One copy.  `blob` is called by the workers, each for another blob; `_lock` guards the sums."""

    def __init__(
        self,
        source: Source,
        target: Repository,
        facts: SinkFacts,
        halt: Halt,
        progress: Progress,
        mount_from: str,
        journal: CopyJournal | None,
        on_event: Callable[[TonneError], None],
    ) -> None:
        self._source = source
        self._target = target
        self._facts = facts
        self._halt = halt
        self._progress = progress
        self._mount_from = mount_from
        self._journal = journal
        self._on_event = on_event
        self._lock = threading.Lock()
        self._sums = {"present": 0, "mounted": 0, "sent": 0, "resumed": 0}
        chunk = max(facts.chunk_bytes, facts.chunk_bytes_min, 1)
        self._chunk_bytes = min(chunk, facts.chunk_bytes_max) if facts.chunk_bytes_max is not None else chunk

    def report(self, digest: Digest, blobs: list[Blob]) -> CopyReport:
        sums = self._sums
        total = sum(blob.size_bytes for blob in blobs)
        return CopyReport(digest, len(blobs), total, sums["present"], sums["mounted"], sums["sent"], sums["resumed"])

    def _add(self, what: str, size_bytes: int) -> None:
        with self._lock:
            self._sums[what] += size_bytes

    def blob(self, blob: Blob) -> None:
        """Bring one blob to the target, by the cheapest way there is."""
        deadline = self._halt.deadline
        if self._target.has(blob.digest, deadline) == blob.size_bytes:
            self._forget(blob)
            self._add("present", blob.size_bytes)
        elif self._mount(blob):
            self._add("mounted", blob.size_bytes)
        elif self._facts.chunked:
            self._stream(blob)
            return
        else:
            self._put(blob)
        self._progress.advance(blob.size_bytes)

    def _mount(self, blob: Blob) -> bool:
        if not self._mount_from:
            return False
        try:
            return self._target.mount(blob, self._mount_from, self._halt.deadline)
        except (Refused, Missing):
            return False  # no right to read there through the target's session: then it is sent

    def _put(self, blob: Blob) -> None:
        wrong = False

        def chunks() -> Iterator[memoryview]:
            nonlocal wrong
            hasher = blob.digest.hasher()
            at = 0
            while at < blob.size_bytes:
                # A buffer of its own each time: the sink may still hold the one before.
                chunk = memoryview(bytearray(min(self._chunk_bytes, blob.size_bytes - at)))
                self._source.read(blob, at, chunk, self._halt.deadline, None, Priority.BACKGROUND)
                hasher.update(chunk)
                at += len(chunk)
                if at == blob.size_bytes and hasher.hexdigest() != blob.digest.hex:
                    wrong = True
                    raise _wrong(blob, self._source.origin)
                yield chunk

        for left in reversed(range(READINGS_MAX)):
            try:
                self._target.put(blob, chunks, self._halt.deadline)
                break
            except CorruptBytes as error:
                if not wrong or not left:
                    raise
                wrong = False
                self._on_event(error)
        self._add("sent", blob.size_bytes)

    def _stream(self, blob: Blob) -> None:
        """Send a blob in chunks, going on with an earlier run's upload if there is one.

        It starts over, a few times, when the session is lost, and when the sink says that it has other bytes than were
        sent: some registries acknowledge bodies that they drop.  It starts over once when wrong bytes were read: only
        the whole can be checked, so nobody has read a part of it again.
        """
        readings = 0
        told = _Told(self._progress)
        upload = self._resumed(blob)
        if upload is not None:
            self._add("resumed", upload.acknowledged_bytes)
        for left in reversed(range(SESSIONS_MAX)):
            if upload is None:
                upload = self._target.start(self._halt.deadline)
            try:
                failure: TonneError | None = self._send(blob, upload, told)
                if failure is None:
                    failure = self._finished(blob, upload)
                else:
                    readings += 1
            except SessionLost as error:
                failure = error
            except Corrupt:
                self._drop(blob, upload)
                raise
            except BaseException:
                if self._journal is None:  # nobody could go on with it
                    self._drop(blob, upload)
                raise
            if failure is None:
                return
            self._drop(blob, upload)
            if not left or readings == READINGS_MAX:
                raise failure
            self._on_event(failure)
            upload = None

    def _finished(self, blob: Blob, upload: Upload) -> Corrupt | None:
        """Commit; what the sink says when it has other bytes."""
        try:
            upload.finish(blob.digest, self._halt.deadline)
        except Corrupt as error:
            return error
        self._forget(blob)
        return None

    def _resumed(self, blob: Blob) -> Upload | None:
        token = self._journal.token(blob.digest) if self._journal is not None else None
        if token is None:
            return None
        try:
            upload = self._target.resume(token, self._halt.deadline)
        except (Missing, Refused, Corrupt) as error:
            self._on_event(error)
            self._forget(blob)
            return None
        if upload.acknowledged_bytes > blob.size_bytes:
            self._drop(blob, upload)
            return None
        return upload

    def _send(self, blob: Blob, upload: Upload, told: _Told) -> CorruptBytes | None:
        """Read and append all; what there is to say of bytes that turned out to be wrong before the last went out."""
        at = upload.acknowledged_bytes
        hasher = blob.digest.hasher() if at == 0 else None
        told.reached(at)
        buffer = bytearray(min(self._chunk_bytes, blob.size_bytes))
        self._keep(blob, upload)
        while at < blob.size_bytes:
            if self._halt.stopped:
                raise Interrupted("stopped")
            chunk = memoryview(buffer)[: min(len(buffer), blob.size_bytes - at)]
            self._source.read(blob, at, chunk, self._halt.deadline, None, Priority.BACKGROUND)
            if hasher is not None:
                hasher.update(chunk)
                if at + len(chunk) == blob.size_bytes and hasher.hexdigest() != blob.digest.hex:
                    return _wrong(blob, self._source.origin)
            upload.append(chunk, self._halt.deadline)
            self._keep(blob, upload)
            at += len(chunk)
            self._add("sent", len(chunk))
            told.reached(at)
        return None

    def _keep(self, blob: Blob, upload: Upload) -> None:
        if self._journal is not None:
            self._journal.keep(blob.digest, upload.token)

    def _forget(self, blob: Blob) -> None:
        if self._journal is not None:
            self._journal.forget(blob.digest)

    def _drop(self, blob: Blob, upload: Upload) -> None:
        upload.cancel(Deadline.after(CANCEL_S))  # after a stop too
        self._forget(blob)

    def manifest(self, name: str, document: Document, blobs: list[Blob], confirm: Source) -> None:
        """Store the manifest and read it back; blobs that the registry lost meanwhile are brought again once."""
        deadline = self._halt.deadline
        try:
            self._target.put_manifest(name, document, deadline)
        except MissingBlob as error:
            lost = set(str(error.fields.get("digests", "")).split())
            again = [blob for blob in blobs if str(blob.digest) in lost]
            if not again:
                again = [blob for blob in blobs if self._target.has(blob.digest, deadline) != blob.size_bytes]
            if not again:
                raise
            self._on_event(error)
            for blob in again:
                # Not asked with `has` first: the registry says that it has what it then misses.
                if not self._mount(blob):
                    (self._stream if self._facts.chunked else self._put)(blob)
            self._target.put_manifest(name, document, deadline)
        try:
            stored = confirm.manifest(name, deadline).digest
        except MissingManifest:
            stored = None
        if stored != document.digest:
            raise ProtocolError(
                "the registry does not give back the manifest that was stored",
                where=self._target.origin,
                why=f"{name} names {stored}, not {document.digest}",
            )


class _Told:
    """Tells progress of one blob, which never goes back though the blob may start over."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._at = 0

    def reached(self, at: int) -> None:
        if at > self._at:
            self._progress.advance(at - self._at)
            self._at = at


def _wrong(blob: Blob, origin: str) -> CorruptBytes:
    return CorruptBytes("a blob has the wrong digest", where=origin, why=str(blob.digest), digest=str(blob.digest))
