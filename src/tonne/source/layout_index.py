"""A layout's index.json: which manifests it has, and their names.  Pure.

Sources: OCI image-spec image-layout.md ("index.json") and annotations.md (`org.opencontainers.image.ref.name`).
"""

from __future__ import annotations

import json
from typing import Any

from tonne.errors import CorruptDocument, MissingManifest, Unsupported
from tonne.model import Digest
from tonne.model.reference import DEFAULT_TAG
from tonne.source.references import parse_object
from tonne.source.seam import Document
from tonne.wire.oci import INDEX_TYPE

REF_NAME = "org.opencontainers.image.ref.name"
_NAMES_SHOWN = 8


class LayoutIndex:
    """The parsed file.  Fields and entries that others wrote stay as they are, in their order.  For one thread."""

    def __init__(self, document: dict[str, Any], origin: str) -> None:
        self._document = document
        self._origin = origin
        manifests = document.setdefault("manifests", [])
        if not isinstance(manifests, list):
            raise CorruptDocument("a layout's index.json is not an index", where=origin, why="manifests is no list")
        self._manifests: list[Any] = manifests

    @classmethod
    def empty(cls, origin: str) -> LayoutIndex:
        return cls({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}, origin)

    @classmethod
    def parse(cls, data: bytes, origin: str) -> LayoutIndex:
        return cls(parse_object(data, f"{origin}: index.json"), origin)

    def encode(self) -> bytes:
        return json.dumps(self._document, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def document(self) -> dict[str, Any]:
        """For those who look for references in it; not to be changed."""
        return self._document

    def names(self) -> list[str]:
        """All names, sorted, each once."""
        return sorted({name for entry in self._entries() if (name := _name(entry)) is not None})

    def digests(self) -> list[Digest]:
        """All manifests, each once."""
        return list(dict.fromkeys(digest for entry in self._entries() if (digest := _digest(entry)) is not None))

    def find(self, name: str, *, any_name: bool = False) -> Digest:
        """The manifest with that name.

        `any_name`: the user gave none; then a layout's only manifest is meant, whatever its name, if there is no
        ``latest``.  That is how other tools read `oci:FOLDER`.  Raises `MissingManifest`.
        """
        found = {digest for entry in self._entries() if _name(entry) == name and (digest := _digest(entry)) is not None}
        choice = ""
        if not found and any_name and name == DEFAULT_TAG:
            found = set(self.digests())
            choice = self._shown()
        if len(found) == 1:
            return found.pop()
        if found:
            choice = choice or ", ".join(f"@{digest}" for digest in sorted(found)[:_NAMES_SHOWN])
            what = f"{len(found)} manifests could be meant"
            raise Unsupported(what, where=f"{self._origin}:{name}", todo=f"name one: {choice}")
        why = f"it has {self._shown()}" if self.names() else ""
        raise MissingManifest("the layout has no such tag", where=f"{self._origin}:{name}", why=why)

    def media_type(self, digest: Digest) -> str:
        """What the entry says of a manifest; empty when it says nothing or there is no entry."""
        kinds = (entry.get("mediaType") for entry in self._entries() if _digest(entry) == digest)
        return next((kind for kind in kinds if isinstance(kind, str)), "")

    def put(self, name: str, document: Document, artifact_type: str) -> None:
        """List a manifest under a tag, or without one when `name` is a digest.

        A manifest that had the tag stays listed without it: it may be in use by its digest.
        """
        tag = None if ":" in name else name
        for other in self._entries():
            if tag is not None and _name(other) == tag and _digest(other) != document.digest:
                self._unname(other)
        ours = [other for other in self._entries() if _digest(other) == document.digest]
        if ours and (tag is None or any(_name(other) == tag for other in ours)):
            return
        entry: dict[str, Any]
        for entry in ours:
            if _name(entry) is None:
                break
        else:
            entry = {
                "mediaType": document.media_type,
                "digest": str(document.digest),
                "size": len(document.data),
            }
            if artifact_type:
                entry["artifactType"] = artifact_type
            self._manifests.append(entry)
        if tag is not None:
            annotations = entry.get("annotations")
            entry["annotations"] = {**(annotations if isinstance(annotations, dict) else {}), REF_NAME: tag}

    def remove(self, digest: Digest) -> bool:
        """Take a manifest out under all its names; False when it was not listed."""
        kept = [item for item in self._manifests if not isinstance(item, dict) or _digest(item) != digest]
        changed = len(kept) != len(self._manifests)
        self._manifests[:] = kept
        return changed

    def _unname(self, entry: dict[str, Any]) -> None:
        """Without its tag; gone when it is listed elsewhere as well."""
        digest = _digest(entry)
        if sum(_digest(other) == digest for other in self._entries()) > 1:
            self._manifests[:] = [item for item in self._manifests if item is not entry]
            return
        del entry["annotations"][REF_NAME]
        if not entry["annotations"]:
            del entry["annotations"]

    def _entries(self) -> list[dict[str, Any]]:
        return [item for item in self._manifests if isinstance(item, dict)]

    def _shown(self) -> str:
        names = self.names()
        return ", ".join(names[:_NAMES_SHOWN]) + (
            f" and {len(names) - _NAMES_SHOWN} more" if names[_NAMES_SHOWN:] else ""
        )


def _name(entry: dict[str, Any]) -> str | None:
    annotations = entry.get("annotations")
    name = annotations.get(REF_NAME) if isinstance(annotations, dict) else None
    return name if isinstance(name, str) else None


def _digest(entry: dict[str, Any]) -> Digest | None:
    """None for an entry that is broken: it is kept, but nothing can be read through it."""
    try:
        return Digest.parse(str(entry.get("digest")))
    except CorruptDocument:
        return None
