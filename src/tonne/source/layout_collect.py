"""Which blobs of a layout nobody needs once a manifest is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tonne.durable import read_bounded
from tonne.errors import Corrupt, CorruptDocument, LocalError, MissingBlob
from tonne.model import Digest
from tonne.source.layout_folder import LayoutFolder
from tonne.source.layout_index import LayoutIndex
from tonne.source.references import LISTS, digests_within, listed_blobs, parse_object
from tonne.wire.oci import DOCKER_LIST_TYPE, DOCKER_MANIFEST_TYPE, DOCUMENT_BYTES_MAX, INDEX_TYPE, MANIFEST_TYPE

_MANIFEST_TYPES = (MANIFEST_TYPE, INDEX_TYPE, DOCKER_MANIFEST_TYPE, DOCKER_LIST_TYPE)


def only_through(deleted: Digest, index: LayoutIndex, folder: LayoutFolder) -> set[Digest]:
    """The blobs, the manifest itself included, that only `deleted` names; `index` does not list it any more.

    Everything that looks like a digest in another manifest or in index.json counts as named.  When a manifest cannot be
    read, nobody knows what it names: then no blob is left over.
    """
    try:
        ours = _listed(deleted, folder)
        kept = _named(index, folder) if ours else set()
    except (Corrupt, LocalError):
        return set()
    return ours - kept


def _listed(deleted: Digest, folder: LayoutFolder) -> set[Digest]:
    """The manifest and what it lists, through the manifests of an index too."""
    found: set[Digest] = set()
    pending, read = [deleted], set[Digest]()
    while pending:
        digest = pending.pop()
        document = None if digest in read else _document(digest, folder)
        read.add(digest)
        if document is not None:
            data, parsed = document
            found.add(digest)
            found.update(blob.digest for blob in listed_blobs(data, str(digest)))
            pending.extend(_manifests_in(parsed, subject=False))
    return found


def _named(index: LayoutIndex, folder: LayoutFolder) -> set[Digest]:
    """Every digest that is named by index.json, by a manifest that it lists, by one that this lists, and so on."""
    found = set(digests_within(index.document))
    pending, read = [*index.digests(), *_manifests_in(index.document)], set[Digest]()
    while pending:
        digest = pending.pop()
        document = None if digest in read else _document(digest, folder)
        read.add(digest)
        if document is not None:
            found.update(digests_within(document[1]))
            pending.extend(_manifests_in(document[1]))
    return found


def _manifests_in(document: dict[str, Any], *, subject: bool = True) -> Iterator[Digest]:
    """The manifests that an index lists, or a manifest among its layers, and its subject."""
    items = [document["subject"]] if subject and "subject" in document else []
    for name in LISTS:
        listed = document.get(name)
        items += [
            item
            for item in (listed if isinstance(listed, list) else [])
            if isinstance(item, dict) and (name == "manifests" or item.get("mediaType") in _MANIFEST_TYPES)
        ]
    for item in items:
        yield Digest.parse(str(item.get("digest") if isinstance(item, dict) else item))


def _document(digest: Digest, folder: LayoutFolder) -> tuple[bytes, dict[str, Any]] | None:
    """A manifest; None when it is not there, as those of other platforms often are not."""
    try:
        with folder.blob_errors(digest):
            data = read_bounded(folder.blob(digest), DOCUMENT_BYTES_MAX)
    except MissingBlob:
        return None
    if data is None or not digest.matches(data):
        raise CorruptDocument("not a manifest", where=f"{folder.origin}@{digest}")
    return data, parse_object(data, f"{folder.origin}@{digest}")
