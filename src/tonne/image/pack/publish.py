"""The end of a packing: index, config and manifest are stored, and what the target lost meanwhile is stored again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tonne.clock import Deadline
from tonne.errors import CorruptBytes, LocalFailure, MissingBlob
from tonne.image.pack.assemble import BuiltIndex
from tonne.image.pack.base import BasePack
from tonne.image.pack.blobs import chunk_size, store_blob
from tonne.image.pack.failure import blaming
from tonne.image.pack.flow import Flow
from tonne.image.pack.journal import SentPack
from tonne.image.pack.provide import Provider
from tonne.image.pack.remake import Remaker
from tonne.model import Blob, Digest
from tonne.source.seam import Document, Sink, SinkFacts, Source
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
        facts: SinkFacts,
        flow: Flow,
        provider: Provider,
        remaker: Remaker,
        new: list[SentPack],
        bases: list[BasePack],
        begun: Callable[[str], None],
    ) -> None:
        """`reader` reads from the target, with retries.  `begun`: told of each upload session."""
        self._sink = sink
        self._reader = reader
        self._facts = facts
        self._flow = flow
        self._begun = begun
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
            raise LocalFailure(
                "the tag names another image than was just stored",
                where=f"{self._sink.origin}:{tag}",
                why="something else moved it at the same moment",
                todo=f"run the command again, or use the digest {document.digest}",
            )

    def _store_small(self, blob: Blob, data: bytes) -> None:
        size = chunk_size(self._facts)

        def chunks() -> Iterator[memoryview]:
            for start in range(0, len(data), size):
                yield memoryview(data)[start : start + size]

        store_blob(self._sink, self._facts, blob, chunks, self._deadline, self._flow.count_sent, self._begun, self._ask)

    def _store_file(self, blob: Blob, path: Path) -> None:
        size = chunk_size(self._facts)

        def chunks() -> Iterator[memoryview]:
            with blaming(path, "the index cannot be read"), open(path, "rb") as file:
                while data := file.read(size):
                    yield memoryview(data)

        store_blob(self._sink, self._facts, blob, chunks, self._deadline, self._flow.count_sent, self._begun, self._ask)

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
        size = chunk_size(self._facts)

        def chunks() -> Iterator[memoryview]:
            chunk = memoryview(bytearray(size))
            filled = 0
            for piece in self._pieces(pack):
                while len(piece):
                    step = min(len(piece), size - filled)
                    chunk[filled : filled + step] = piece[:step]
                    filled, piece = filled + step, piece[step:]
                    if filled == size:
                        yield chunk
                        chunk, filled = memoryview(bytearray(size)), 0
            if filled:
                yield chunk[:filled]

        store_blob(self._sink, self._facts, pack.blob, chunks, self._deadline, self._flow.count_sent, ask=False)

    def _pieces(self, pack: SentPack) -> Iterator[memoryview]:
        for frame in self._remaker.stored(pack.lane, range(pack.start, pack.end)):
            yield memoryview(frame.data)
        with blaming(pack.path, "a note of a pack cannot be read"):
            footer = pack.path.read_bytes()
        yield memoryview(footer)
