"""Copy: a manifest and all that it names, from one repository to another, with every digest kept.

A blob that is there is left, one that the registry can link is linked, the rest is streamed in chunks.  Any manifest of
one image is copied, ours or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tonne.errors import (
    ForeignManifest,
    Interrupted,
    MissingBlob,
    MissingManifest,
    ProtocolError,
    TonneError,
    TooLarge,
    UsageError,
)
from tonne.image.blob_copy import BLOBS_AT_ONCE, BlobCopier, Way, cancel_all_noted
from tonne.image.copy_journal import CopyJournal
from tonne.image.workers import Halt, all_of
from tonne.model import Blob, Digest
from tonne.progress import Progress
from tonne.source.references import listed_blobs
from tonne.source.seam import Document, Repository, SinkFacts, Source
from tonne.wire.oci import DOCKER_LIST_TYPE, INDEX_TYPE, parse_json


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
            cancel_all_noted(target, journal.uploads)
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
        self._halt = halt
        self._progress = progress
        self._mount_from = mount_from
        self._on_event = on_event
        self._lock = threading.Lock()
        self._sums = dict.fromkeys(Way, 0)
        notes = journal.uploads if journal is not None else None
        self._copier = BlobCopier(
            target, facts, halt.deadline, notes, check=self._check, count=self._count, on_event=on_event
        )

    def report(self, digest: Digest, blobs: list[Blob]) -> CopyReport:
        total = sum(blob.size_bytes for blob in blobs)
        ways = (Way.PRESENT, Way.MOUNTED, Way.SENT, Way.RESUMED)
        return CopyReport(digest, len(blobs), total, *(self._sums[way] for way in ways))

    def _check(self) -> None:
        if self._halt.stopped:
            raise Interrupted("stopped")

    def _count(self, way: Way, size_bytes: int) -> None:
        with self._lock:
            self._sums[way] += size_bytes

    def blob(self, blob: Blob) -> None:
        """Bring one blob to the target, by the cheapest way there is."""
        if self._copier.is_there(blob, self._mount_from):
            self._progress.advance(blob.size_bytes)
        else:
            self._copier.copy(blob, self._source, self._progress.advance)

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
                if not self._copier.mounted(blob, self._mount_from):
                    self._copier.copy(blob, self._source)
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
