"""Packing a folder from begin to end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from tonne.clock import SYSTEM_CLOCK, Clock, Deadline
from tonne.codec.frames import encoder_name
from tonne.errors import (
    BadSettings,
    Corrupt,
    ForeignManifest,
    Missing,
    MissingBlob,
    MissingManifest,
    MissingRepository,
    SourceChanged,
    UnknownVersion,
    UsageError,
)
from tonne.image.blob_copy import BlobCopier, Way, cancel_all_noted, chunk_size
from tonne.image.opening import Image, open_image
from tonne.image.pack.assemble import IndexAssembler
from tonne.image.pack.base import Bases
from tonne.image.pack.flow import Flow
from tonne.image.pack.journal import Journal, SentPack
from tonne.image.pack.ledger import Ledger
from tonne.image.pack.limits import check_manifest, choose_pack_bytes
from tonne.image.pack.options import BaseSource, PackOptions, PackResult
from tonne.image.pack.provide import Provider
from tonne.image.pack.publish import BaseLost, Publisher, Small, manifest_of
from tonne.image.pack.remake import InputChanged
from tonne.image.pack.scan import scan_folder
from tonne.image.pack.stages import Pass, slots_for, thread_count
from tonne.image.pack.table import Numbering
from tonne.image.pack.tree import ScannedTree
from tonne.model import LayoutReference, Reference
from tonne.progress import Progress, Silent
from tonne.settings import Settings
from tonne.source.seam import Repository, SinkFacts, Source
from tonne.wire.oci import CONFIG_TYPE, Config

JOURNAL_VERSION = 2
RESERVED_ANNOTATIONS = "io.tonne."
STARTS_MAX = 5  # of one run: after the journal turned out not to fit, or a base's packs were gone
WARNINGS_MAX = 1000  # kept for the result; all are told


def pack_folder(
    source: str | bytes | os.PathLike[str],
    reference: Reference,
    repository: Repository,
    reader: Source,
    options: PackOptions,
    settings: Settings,
    *,
    bases: Sequence[BaseSource] | None = None,
    folder: Path | None = None,
    resumable: bool = True,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> PackResult:
    """Pack a folder into the image that `reference` names.

    Args:
        source: the folder.
        reference: with a tag (``latest`` when it has none); a digest is a `UsageError`.
        repository: what `reference` opens to; written to.
        reader: reads from it, with retries.
        bases: images to look for content in; None: the one that the tag names now, if any; empty: none.
        folder: where journals of interrupted packings are kept; None: beside the cache's other contents.
        resumable: False where `folder` will be gone: then a failure cancels what it leaves at the target.

    Raises, besides what the seams raise: `SourceChanged`, `SymlinkOutside`, `Locked`, `TooLarge`, `Interrupted`.
    After an error or a crash nothing is named; the same call goes on from what was sent.
    """
    if reference.digest is not None:
        raise UsageError("an image cannot be packed to a digest", where=str(reference), todo="name a tag")
    for key, value in options.annotations.items():
        if any("\ud800" <= char <= "\udfff" for char in key + value):
            raise BadSettings("an annotation is not UTF-8", where=os.fsencode(key).decode("utf-8", "backslashreplace"))
        if not key or key.startswith(RESERVED_ANNOTATIONS):
            raise BadSettings("an annotation cannot have this name", where=key, why=f"{RESERVED_ANNOTATIONS} is taken")
    work = _Packing(os.fsencode(source), reference, repository, reader, options, settings, clock, progress or Silent())
    folder = folder or settings.cache.folder.expanduser() / "pack"
    for left in reversed(range(STARTS_MAX)):
        journal = Journal(folder, work.key, clock)
        try:
            return work.run(journal, bases)
        except BaseLost as lost:
            # The journal knows which; what was sent stays as far as it fits.
            if not left:
                raise MissingBlob(
                    "packs of a base are gone",
                    where=reference.origin,
                    why=" ".join(str(digest) for digest in lost.digests),
                    todo="pack with --no-base, or against another image",
                ) from None
        except InputChanged as changed:
            cancel_all_noted(repository, journal.uploads)
            journal.forget_from(changed.n)
            if not left:
                where = os.fsdecode(os.fsencode(source))
                raise SourceChanged("the folder changes while it is packed", where=where) from None
        except BaseException:
            if not resumable:
                cancel_all_noted(repository, journal.uploads)
            raise
        finally:
            if work.ended:
                journal.close()
    raise AssertionError("unreachable")


class _Packing:
    def __init__(
        self,
        source: bytes,
        reference: Reference,
        repository: Repository,
        reader: Source,
        options: PackOptions,
        settings: Settings,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._source = source
        self._reference = reference
        self._repository = repository
        self._reader = reader
        self._options = options
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._warnings: list[str] = []
        self._began_s = clock.now_s()
        self._sent_bytes = 0  # by all starts
        self._resumed: bool | None = None  # whether the first start found a journal that fits
        self.ended = True

    @property
    def _target(self) -> str:
        reference = self._reference
        return os.path.realpath(reference.path) if isinstance(reference, LayoutReference) else reference.origin

    @property
    def key(self) -> str:
        """Names the journal: the folder that is packed, and the repository it goes to."""
        text = os.path.realpath(self._source) + b"\0" + os.fsencode(self._target)
        return blake3(text).hexdigest()[:32]

    def _warn(self, line: str) -> None:
        self._progress.say(f"warning: {line}")
        if len(self._warnings) < WARNINGS_MAX:
            self._warnings.append(line)

    def run(self, journal: Journal, bases: Sequence[BaseSource] | None) -> PackResult:
        self._warnings.clear()
        deadline_s = self._settings.read.deadline_s
        facts = self._repository.facts(Deadline.after(deadline_s, self._clock))
        self._repository.check_rights(Deadline.after(deadline_s, self._clock))
        flow = Flow(slots_for(thread_count(self._settings.pack.threads), chunk_size(facts)), self._clock)
        self._progress.begin("scanning")
        tree = scan_folder(self._source, self._options, journal.scratch, self._own_folders(), self._warn, flow.check)
        closing: list[Callable[[], None]] = [tree.close]
        try:
            return self._packed(journal, flow, facts, tree, bases, closing)
        finally:
            self._sent_bytes += flow.sent_bytes
            # A thread that hangs in a call could write to whatever gets the number of a closed descriptor.
            if self.ended:
                for close in closing:
                    close()

    def _own_folders(self) -> set[tuple[int, int]]:
        """Where we write: not to be packed."""
        paths = [self._settings.cache.folder.expanduser()]
        if isinstance(self._reference, LayoutReference):
            paths.append(Path(self._reference.path))
        found = set()
        for path in paths:
            try:
                state = path.stat()
            except OSError:
                continue
            found.add((state.st_dev, state.st_ino))
        return found

    def _packed(
        self,
        journal: Journal,
        flow: Flow,
        facts: SinkFacts,
        tree: ScannedTree,
        asked: Sequence[BaseSource] | None,
        closing: list[Callable[[], None]],
    ) -> PackResult:
        options = self._options
        pack_bytes = choose_pack_bytes(tree.content_bytes, options.pack_bytes, facts)
        plan = {
            "version": JOURNAL_VERSION,
            "encoder": encoder_name(options.level),
            "options": options.shaping(pack_bytes),
            "annotations": dict(options.annotations),
            "tree": tree.fingerprint().hex(),
            "target": f"{self._target} {self._reference.name}",
            "asked": None if asked is None else [str(base.reference) for base in asked],
        }
        sources, images = self._open_bases(journal, flow, plan, asked)
        base_packs = sum(len(image.manifest.packs) for image in images)
        annotations = sum(len(key) + len(value) + 8 for key, value in options.annotations.items())
        check_manifest(tree.content_bytes, pack_bytes, base_packs, annotations, facts)
        sent = self._still_there(journal, flow)
        copier = BlobCopier(
            self._repository,
            facts,
            flow.deadline,
            journal.uploads,
            check=flow.check,
            count=lambda way, size_bytes: flow.count_sent(size_bytes) if way is Way.SENT else None,
        )
        provider = Provider(sources, self._reference, copier, facts, flow, journal, self._warn)
        ledger = Ledger(journal.scratch)
        bases = Bases(images, journal.scratch, provider.usable)
        closing += [ledger.close, bases.close]
        if images:
            self._progress.begin("reading the base's index")
            bases.load(flow.deadline, flow.check)
        self._progress.begin("packing", tree.content_bytes)
        work = Pass(
            tree,
            ledger,
            bases,
            self._repository,
            facts,
            flow,
            journal,
            sent,
            pack_bytes,
            options.level,
            thread_count(self._settings.pack.threads),
            self._progress.advance,
        )
        try:
            new = work.run()
        finally:
            self.ended = work.ended
        used = bases.used_packs()
        far = provider.far(used)
        if far:
            self._progress.begin("bringing packs of the base", sum(pack.blob.size_bytes for pack in far))
            provider.bring(far, self._progress.advance)
        self._progress.begin("writing the index")
        numbering = Numbering(used, new)
        built = IndexAssembler(tree, ledger, bases, numbering, options, flow.deadline, flow.check).build(
            journal.scratch / "pages"
        )
        new_stored = sum(pack.used_bytes for pack in built.packs[len(used) :])
        config = Config(
            encoder=encoder_name(options.level),
            options=options.shaping(pack_bytes),
            bases=tuple(image.digest for image in images),
            content_bytes=tree.content_bytes,
            files=tree.files,
            entries=len(tree),
            new_frames=len(ledger.contents),
            new_content_bytes=work.new_content_bytes,
            new_stored_bytes=new_stored,
        )
        encoded = config.encode()
        manifest = manifest_of(Small(CONFIG_TYPE, encoded).descriptor, built, dict(options.annotations))
        unchanged = asked is None and bool(images) and self._is_same(images[0], config, manifest.encode(), built, flow)
        if unchanged:
            digest = images[0].digest
        else:
            publisher = Publisher(self._repository, self._reader, copier, flow, provider, work.remaker, new, used)
            digest = publisher.publish(self._reference.name, encoded, built, manifest).digest
        # What nothing was for in the end, as where another pack was wanted before the interruption.
        cancel_all_noted(self._repository, journal.uploads)
        journal.remove()
        return PackResult(
            reference=str(self._reference),
            digest=digest,
            content_bytes=tree.content_bytes,
            stored_bytes=sum(pack.used_bytes for pack in built.packs),
            files=tree.files,
            entries=len(tree),
            new_frames=config.new_frames,
            new_content_bytes=config.new_content_bytes,
            new_stored_bytes=new_stored,
            sent_bytes=self._sent_bytes + flow.sent_bytes,
            packs_new=len(new),
            packs_reused=len(used),
            bases=config.bases,
            unchanged=unchanged,
            resumed=bool(self._resumed),
            seconds=self._clock.now_s() - self._began_s,
            warnings=tuple(self._warnings),
        )

    def _is_same(self, base: Image, config: Config, manifest: bytes, built: Any, flow: Flow) -> bool:
        """Whether the tag's image is what was packed, but for how it came to be."""
        if config.new_frames or base.config(flow.deadline).options != config.options:
            return False
        annotations = dict(self._options.annotations)
        return manifest_of(base.manifest.config, built, annotations).encode() == base.document.data

    # --- bases and journal ---

    def _open_bases(
        self,
        journal: Journal,
        flow: Flow,
        plan: dict[str, Any],
        asked: Sequence[BaseSource] | None,
    ) -> tuple[list[BaseSource], list[Image]]:
        """The bases, pinned: by the journal if it is of this very packing, else as they are now."""
        sources = [BaseSource(self._reference, self._reader)] if asked is None else list(asked)
        pinned = self._pinned(journal, flow, plan, sources)
        if self._resumed is None:
            self._resumed = pinned is not None
        if pinned is not None:
            return pinned
        cancel_all_noted(self._repository, journal.uploads)
        sources, images = self._open_now(sources, asked is None, flow)
        journal.begin({**plan, "bases": [str(image.digest) for image in images]})
        return sources, images

    def _pinned(
        self, journal: Journal, flow: Flow, plan: dict[str, Any], sources: list[BaseSource]
    ) -> tuple[list[BaseSource], list[Image]] | None:
        """What the journal of an interrupted run says, if it is of this very packing."""
        previous = journal.read()
        if previous is None or {**previous, "bases": None} != {**plan, "bases": None}:
            return None
        digests = previous.get("bases")
        if not isinstance(digests, list) or len(digests) not in (0, len(sources)):
            return None
        kept = sources[: len(digests)]
        try:
            return kept, [
                self._open(base.source, str(digest), flow) for base, digest in zip(kept, digests, strict=True)
            ]
        except (Missing, Corrupt):
            return None  # the base is gone: so is what was packed against it

    def _open_now(self, sources: list[BaseSource], by_itself: bool, flow: Flow) -> tuple[list[BaseSource], list[Image]]:
        if not by_itself:
            return sources, [self._open(base.source, base.reference.name, flow) for base in sources]
        try:
            return sources, [self._open(self._reader, self._reference.name, flow)]
        except (MissingManifest, MissingRepository):
            return [], []
        except (ForeignManifest, UnknownVersion, Corrupt, Missing) as error:
            self._warn(f"what the tag names now is not used as a base: {error}")
            return [], []

    def _open(self, source: Source, name: str, flow: Flow) -> Image:
        return open_image(source, name, self._settings, flow.deadline)

    def _still_there(self, journal: Journal, flow: Flow) -> list[SentPack]:
        """Packs of an earlier run that the target has; the others are forgotten, and will be sent again."""
        found = []
        for pack in journal.sent():
            flow.check()
            if self._repository.has(pack.blob.digest, flow.deadline) == pack.blob.size_bytes:
                found.append(pack)
            else:
                journal.forget_pack(pack)
        return found
