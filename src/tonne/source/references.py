"""Which blobs a manifest of any kind names, for those who keep the blobs.

Sources: OCI image-spec manifest.md and image-index.md; docker's schema 2 has the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tonne.errors import CorruptDocument
from tonne.model import Blob, Digest
from tonne.wire.oci import INDEX_TYPE, MANIFEST_TYPE, parse_json

LISTS = ("layers", "blobs", "manifests")
_DEPTH_MAX = 64  # of JSON that is searched for digests; manifests need four


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object of bounded size; `CorruptDocument` when it is anything else."""
    document = parse_json(data, where)
    if not isinstance(document, dict):
        raise CorruptDocument("not a JSON object", where=where)
    return document


def listed_blobs(data: bytes, where: str) -> list[Blob]:
    """Everything that must be there before the manifest `data` may be stored: config, layers, manifests of an index.

    Layers that live elsewhere (with `urls`, as base layers of Windows images have them) are left out, and so is the
    `subject`, which may come later.
    """
    document = parse_object(data, where)
    items: list[Any] = [document["config"]] if "config" in document else []
    for name in LISTS:
        found = document.get(name)
        if found is not None and not isinstance(found, list):
            raise CorruptDocument("not a manifest", where=where, why=f"{name} is no list")
        items.extend(found or [])
    blobs = []
    for item in items:
        size = item.get("size") if isinstance(item, dict) else None
        if not isinstance(size, int) or size < 0:
            raise CorruptDocument("not a manifest", where=where, why="it lists something that is no descriptor")
        if not item.get("urls"):
            blobs.append(Blob(Digest.parse(str(item.get("digest"))), size))
    return blobs


def digests_within(value: Any, depth: int = 0) -> Iterator[Digest]:
    """Every digest in a JSON value, wherever it stands: more than `listed_blobs`, for those who must not remove."""
    if depth > _DEPTH_MAX:
        raise CorruptDocument("JSON is nested too deep")
    if isinstance(value, dict):
        for item in value.values():
            yield from digests_within(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from digests_within(item, depth + 1)
    elif isinstance(value, str) and value.startswith(("sha256:", "sha512:")):
        try:
            yield Digest.parse(value)
        except CorruptDocument:
            return


def manifest_media_type(data: bytes, where: str) -> str:
    """The media type of a manifest about which only its bytes are known."""
    document = parse_object(data, where)
    if isinstance(kind := document.get("mediaType"), str):
        return kind
    return INDEX_TYPE if "manifests" in document else MANIFEST_TYPE
