"""The end of a packing: index, config and manifest are stored, and what the target lost meanwhile is stored again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tonne.clock import Deadline
from tonne.errors import CorruptBytes, LocalFailure, MissingBlob, TagMoved
from tonne.image.blob_copy import BlobCopier, Reading
from tonne.image.pack.assemble import BuiltIndex
from tonne.image.pack.base import BasePack
from tonne.image.pack.failure import blaming
from tonne.image.pack.flow import Flow
from tonne.image.pack.journal import SentPack
from tonne.image.pack.provide import Provider
from tonne.image.pack.remake import Remaker
from tonne.model import Blob, Digest
from tonne.source.seam import Document, Sink, Source
from tonne.wire.oci import MANIFEST_TYPE, PACK_TYPE, PAGES_TYPE, ROOT_TYPE, Descriptor, ImageManifest

LOST_MAX = 3  # rounds of storing again what the target says it has not


class BaseLost(Exception):
    """Packs of a base are gone where they should be: the content has to be packed without them."""

    def __init__(self, digests: list[Digest]) -> None:
        super().__init__("packs of a base are gone")
        self.digests = digests


@dataclass(frozen=True, slots=True)
class Small:
    """A blob that is held in memory."""

    media_type: str
    data: bytes

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(self.media_type, Digest.of(self.data), len(self.data))


def manifest_of(config: Descriptor, built: BuiltIndex, annotations: dict[str, str]) -> ImageManifest:
    """The manifest that lists an index and its packs."""
    return ImageManifest(
        config,
        Small(ROOT_TYPE, built.root).descriptor,
        Descriptor(PAGES_TYPE, built.pages.digest, built.pages.size_bytes),
        tuple(Descriptor(PACK_TYPE, pack.digest, pack.size_bytes) for pack in built.packs),
        annotations,
    )


class Publisher:
    """Stores the small blobs and the manifest.  One thread, once; after an error nothing is named."""

    def __init__(
        self,
        sink: Sink,
        reader: Source,
        copier: BlobCopier,
        flow: Flow,
        provider: Provider,
        remaker: Remaker,
        new: list[SentPack],
        bases: list[BasePack],
    ) -> None:
        """`reader` reads from the target, with retries; `copier` brings blobs there."""
        self._sink = sink
        self._reader = reader
        self._copier = copier
        self._flow = flow
        self._provider = provider
        self._remaker = remaker
        self._new = {pack.blob.digest: pack for pack in new}
        self._bases = {pack.pack.digest: pack for pack in bases}
        self._ask = True  # whether a blob is there, before it is stored; not once the target missed what it had

    @property
    def _deadline(self) -> Deadline:
        return self._flow.deadline

    def publish(self, tag: str, config: bytes, built: BuiltIndex, manifest: ImageManifest) -> Document:
        """Store all and read the manifest back by its digest.

        Raises `BaseLost` when packs of a base are gone and cannot be brought again.
        """
        data = manifest.encode()
        document = Document(data, MANIFEST_TYPE, Digest.of(data))
        store: dict[Digest, Callable[[], None]] = {
            manifest.config.digest: lambda: self._store_small(manifest.config.blob, config),
            manifest.root.digest: lambda: self._store_small(manifest.root.blob, built.root),
            manifest.pages.digest: lambda: self._store_file(built.pages, built.pages_path),
        }
        for each in store.values():
            each()
        for attempt in range(LOST_MAX + 1):
            try:
                self._sink.put_manifest(tag, document, self._deadline)
                break
            except MissingBlob as error:
                if attempt == LOST_MAX:
                    raise
                self._store_again(self._lost(error, manifest), store)
        self._confirm(tag, document)
        return document

    def _confirm(self, tag: str, document: Document) -> None:
        if self._reader.manifest(str(document.digest), self._deadline).data != document.data:
            raise CorruptBytes("the manifest that was stored cannot be read back", where=self._sink.origin)
        if self._reader.manifest(tag, self._deadline).digest != document.digest:
            raise TagMoved(
                "the tag names another image than was just stored",
                where=f"{self._sink.origin}:{tag}",
                todo=f"run the command again, or use the digest {document.digest}",
            )

    def _store_small(self, blob: Blob, data: bytes) -> None:
        def read(offset: int, out: memoryview) -> None:
            out[:] = memoryview(data)[offset : offset + len(out)]

        self._store(blob, read, "the index in memory")

    def _store_file(self, blob: Blob, path: Path) -> None:
        with blaming(path, "the index cannot be read"), open(path, "rb") as file:

            def read(offset: int, out: memoryview) -> None:
                with blaming(path, "the index cannot be read"):
                    file.seek(offset)
                    if file.readinto(out) != len(out):
                        raise LocalFailure("the index is shorter than it was written", where=str(path))

            self._store(blob, read, str(path))

    def _store(self, blob: Blob, read: Reading, where: str) -> None:
        if not (self._ask and self._copier.is_there(blob)):
            self._copier.send(blob, read, where)

    # --- what the target lost ---

    def _lost(self, error: MissingBlob, manifest: ImageManifest) -> list[Digest]:
        """What the error names, or what the target does not find; each once."""
        listed = {item.digest: item.size_bytes for item in manifest.blobs}
        named = [Digest.parse(text) for text in str(error.fields.get("digests", "")).split()]
        named = [digest for digest in named if digest in listed]
        if not named:
            named = [digest for digest, size in listed.items() if self._sink.has(digest, self._deadline) != size]
        if not named:
            raise error
        return list(dict.fromkeys(named))

    def _store_again(self, digests: list[Digest], store: dict[Digest, Callable[[], None]]) -> None:
        gone: list[Digest] = []
        self._ask = False
        for digest in digests:
            if digest in store:
                store[digest]()
            elif digest in self._new:
                self._send_again(self._new[digest])
            elif not self._provider.bring_again(self._bases[digest]):
                gone.append(digest)
        if gone:
            raise BaseLost(gone)

    def _send_again(self, pack: SentPack) -> None:
        self._copier.send(pack.blob, in_order(lambda: self._pieces(pack)), "the folder that is packed")

    def _pieces(self, pack: SentPack) -> Iterator[memoryview]:
        for frame in self._remaker.stored(pack.lane, range(pack.start, pack.end)):
            yield memoryview(frame.data)
        with blaming(pack.path, "a note of a pack cannot be read"):
            footer = pack.path.read_bytes()
        yield memoryview(footer)


def in_order(pieces: Callable[[], Iterator[memoryview]]) -> Reading:
    """Reads of bytes that can only be made one after the other; what is asked for again is made again.

    `pieces` gives them from the start, at each call.  `LocalFailure` when they end too early.
    """
    making: Iterator[memoryview] = iter(())
    piece = memoryview(b"")
    at = -1

    def read(offset: int, out: memoryview) -> None:
        nonlocal making, piece, at
        if offset < at or at < 0:
            making, piece, at = pieces(), memoryview(b""), 0
        filled = 0
        while filled < len(out):
            if not len(piece):
                found = next(making, None)
                if found is None:
                    raise LocalFailure("a pack that is made again is shorter than before")
                piece = found
                continue
            if at < offset:
                step = min(len(piece), offset - at)
            else:
                step = min(len(piece), len(out) - filled)
                out[filled : filled + step] = piece[:step]
                filled += step
            at, piece = at + step, piece[step:]

    return read
