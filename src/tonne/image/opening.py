"""From a reference to an open image: manifest, root and index, each verified by what came before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tonne.clock import Deadline
from tonne.errors import CorruptIndex, TonneError
from tonne.image.fetch import Fetcher, Keeper
from tonne.image.index import Index
from tonne.model import Digest
from tonne.settings import Settings
from tonne.source.seam import Document, Source
from tonne.wire.oci import DOCUMENT_BYTES_MAX, MANIFEST_TYPE, Config, ImageManifest, parse_config, parse_manifest
from tonne.wire.root import ROOT_BYTES_MAX, parse_root


@dataclass(frozen=True, slots=True)
class Image:
    """An open image, pinned to a manifest's digest.  Costs two small reads; the rest is read when it is asked for."""

    document: Document
    manifest: ImageManifest
    index: Index
    fetcher: Fetcher

    @property
    def digest(self) -> Digest:
        return self.document.digest

    def config(self, deadline: Deadline) -> Config:
        """The config; read only by those who report."""
        return parse_config(self.fetcher.whole(self.manifest.config.blob, deadline, DOCUMENT_BYTES_MAX), "config")


def open_image(
    source: Source,
    name: str,
    settings: Settings,
    deadline: Deadline,
    store: Keeper | None = None,
    on_event: Callable[[TonneError], None] | None = None,
) -> Image:
    """Open the image that `name` (a tag, or a digest as text) names at `source`.

    A digest whose manifest is in the store is opened without the source.  An index of at most
    `settings.read.whole_index_bytes` is fetched whole.
    """
    document = find_manifest(source, name, deadline, store)
    manifest = parse_manifest(document.data, document.media_type, source.origin)
    fetcher = Fetcher(source, store, settings.network.request_bytes, on_event)
    root = parse_root(fetcher.whole(manifest.root.blob, deadline, ROOT_BYTES_MAX))
    listed = [(pack.digest, pack.size_bytes) for pack in root.packs]
    if listed != [(layer.digest, layer.size_bytes) for layer in manifest.packs]:
        raise CorruptIndex("manifest and index list different packs", where=source.origin)
    index = Index(root, manifest.pages.blob, fetcher, settings.read.page_cache_bytes)
    if root.pages_bytes <= settings.read.whole_index_bytes:
        index.load_all(deadline)
    return Image(document, manifest, index, fetcher)


def find_manifest(source: Source, name: str, deadline: Deadline, store: Keeper | None) -> Document:
    """A manifest, from the store when `name` is a digest and it is there, else from the source and then kept."""
    if store is not None and ":" in name:
        digest = Digest.parse(name)
        kept = store.document(digest)
        if kept is not None and digest.matches(kept):
            return Document(kept, MANIFEST_TYPE, digest)
    document = source.manifest(name, deadline)
    if store is not None:
        store.keep_document(document.digest, document.data)
    return document
