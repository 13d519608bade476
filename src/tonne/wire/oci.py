"""The OCI documents of an image: manifest and config (docs/format.md, "Manifest").

Sources: OCI image-spec manifest.md and descriptor.md, v1.1.  Unknown fields are kept when a manifest is passed on: it
is always passed on as the bytes that came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tonne.errors import CorruptDocument, ForeignManifest, UnknownVersion
from tonne.model import Blob, Digest

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST_TYPE = "application/vnd.docker.distribution.manifest.list.v2+json"
ARTIFACT_TYPE = "application/vnd.tonne.image.v1"
CONFIG_TYPE = "application/vnd.tonne.config.v1+json"
ROOT_TYPE = "application/vnd.tonne.index.root.v1"
PAGES_TYPE = "application/vnd.tonne.index.pages.v1"
PACK_TYPE = "application/vnd.tonne.pack.v1"
FEATURES_KEY = "io.tonne.features.incompatible"

FORMAT_VERSION = 1
FEATURES_KNOWN = 0
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024  # the manifest size that the distribution spec says registries should take

# What else may stand under a reference, told by the start of a media type: what it is, and what handles it.
_FOREIGN = (
    ("application/vnd.cncf.model.", "a CNCF ModelPack artifact", "modctl"),
    ("application/vnd.cnai.model.", "a ModelPack artifact of an old version", "modctl"),
    ("application/vnd.kitops.", "a KitOps ModelKit", "kit"),
    ("application/vnd.docker.ai.", "a Docker model", "docker model"),
    ("application/vnd.ollama.", "an Ollama model", "ollama"),
    ("application/vnd.cncf.helm.", "a Helm chart", "helm"),
    ("application/vnd.oci.image.config.", "a container image", "a container runtime, or skopeo to copy it"),
    ("application/vnd.docker.container.image.", "a container image", "a container runtime, or skopeo to copy it"),
    ("application/vnd.dev.cosign.", "a cosign signature", "cosign"),
    ("application/vnd.oci.empty.", "an OCI artifact", "oras"),
)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An OCI descriptor; `size_bytes` is exact and enforced."""

    media_type: str
    digest: Digest
    size_bytes: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def blob(self) -> Blob:
        return Blob(self.digest, self.size_bytes)

    def document(self) -> dict[str, Any]:
        body: dict[str, Any] = {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size_bytes}
        if self.annotations:
            body["annotations"] = dict(sorted(self.annotations.items()))
        return body


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """A tonne image's manifest.  `packs` are in the order of the root's pack table."""

    config: Descriptor
    root: Descriptor
    pages: Descriptor
    packs: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Every blob that the manifest names, config first."""
        return (self.config, self.root, self.pages, *self.packs)

    def encode(self) -> bytes:
        """The bytes to store: sorted keys, no spaces, so that equal images have equal digests."""
        annotations = {FEATURES_KEY: "0x0", **self.annotations}
        return encode_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "artifactType": ARTIFACT_TYPE,
                "config": self.config.document(),
                "layers": [item.document() for item in (self.root, self.pages, *self.packs)],
                "annotations": dict(sorted(annotations.items())),
            }
        )


def encode_json(document: Any) -> bytes:
    """JSON with one possible form."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse_json(data: bytes, what: str) -> Any:
    """JSON of bounded size, without duplicate keys or NaN; `CorruptDocument` otherwise."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise CorruptDocument("a document is too large", where=what, size_bytes=len(data))
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptDocument("not valid JSON", where=what, why=str(error)[:200]) from None


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def describe_manifest(data: bytes, media_type: str) -> tuple[str, str]:
    """What a manifest that is not ours is, and what handles it, as two phrases."""
    try:
        document = parse_json(data, "manifest")
    except CorruptDocument:
        document = None
    if not isinstance(document, dict):
        return "no manifest", "nothing that tonne knows of"
    kind = str(document.get("mediaType") or media_type)
    if kind in (INDEX_TYPE, DOCKER_LIST_TYPE) or "manifests" in document:
        return "an index of several images", "a container runtime; name one of its manifests by digest"
    if document.get("schemaVersion") == 1:
        return "an image of Docker's schema 1", "an old docker; push it again with a newer one"
    config = document.get("config")
    types = [
        str(document.get("artifactType") or ""),
        str(config.get("mediaType") or "") if isinstance(config, dict) else "",
    ]
    layers = document.get("layers")
    if isinstance(layers, list):
        types += [str(layer.get("mediaType") or "") for layer in layers[:4] if isinstance(layer, dict)]
    for start, what, handler in _FOREIGN:
        if any(name.startswith(start) for name in types):
            return what, handler
    return f"an artifact of type {(types[0] or types[1] or kind)[:120]!r}", "oras"


def parse_manifest(data: bytes, media_type: str, where: str) -> ImageManifest:
    """A tonne image's manifest.

    Raises `ForeignManifest` (and says what it is) for other kinds, `UnknownVersion` for features from the future,
    `CorruptDocument` for what claims to be ours and is not.
    """
    document = parse_json(data, where)
    ours = isinstance(document, dict) and (
        document.get("artifactType") == ARTIFACT_TYPE or _media_type(document.get("config")) == CONFIG_TYPE
    )
    if not ours:
        what, handler = describe_manifest(data, media_type)
        raise ForeignManifest(
            "not a tonne image", where=where, why=f"it is {what}", todo=f"use {handler}, or pack it with tonne"
        )
    if document.get("schemaVersion") != 2:
        raise CorruptDocument("the manifest has an unknown schema version", where=where)
    annotations = document.get("annotations") or {}
    if not isinstance(annotations, dict) or not all(isinstance(value, str) for value in annotations.values()):
        raise CorruptDocument("the manifest's annotations are no strings", where=where)
    _check_features(annotations.get(FEATURES_KEY, "0x0"), where)
    layers = document.get("layers")
    if not isinstance(layers, list) or len(layers) < 2:
        raise CorruptDocument("the manifest lists no index", where=where)
    descriptors = [_descriptor(layer, where) for layer in layers]
    expected = [ROOT_TYPE, PAGES_TYPE] + [PACK_TYPE] * (len(layers) - 2)
    for descriptor, media in zip(descriptors, expected, strict=True):
        if descriptor.media_type != media:
            raise CorruptDocument("the manifest has a layer out of place", where=where, why=descriptor.media_type)
    return ImageManifest(
        _descriptor(document.get("config"), where), descriptors[0], descriptors[1], tuple(descriptors[2:]), annotations
    )


def _media_type(item: Any) -> str:
    return str(item.get("mediaType")) if isinstance(item, dict) else ""


def _check_features(text: str, where: str) -> None:
    try:
        bits = int(text, 16)
    except ValueError:
        raise CorruptDocument("the manifest's feature bits are no number", where=where, why=text[:40]) from None
    if bits & ~FEATURES_KNOWN:
        raise UnknownVersion(
            "the image uses features that this tonne does not know", where=where, why=f"feature bits {bits:#x}"
        )


def _descriptor(item: Any, where: str) -> Descriptor:
    if not isinstance(item, dict):
        raise CorruptDocument("the manifest lacks a descriptor", where=where)
    size = item.get("size")
    media_type, digest = item.get("mediaType"), item.get("digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 63:
        raise CorruptDocument("a descriptor has no valid size", where=where)
    if not isinstance(media_type, str) or not isinstance(digest, str):
        raise CorruptDocument("a descriptor lacks its type or digest", where=where)
    annotations = item.get("annotations") or {}
    if not isinstance(annotations, dict):
        raise CorruptDocument("a descriptor's annotations are no object", where=where)
    return Descriptor(media_type, Digest.parse(digest), size, annotations)


@dataclass(frozen=True, slots=True)
class Config:
    """What the image's config says: how it came to be.  All lengths in bytes.

    `options` are those that shape the result; `bases` the manifests that it was packed against; `new_*` what was stored
    beyond them.
    """

    encoder: str
    options: Mapping[str, Any]
    bases: tuple[Digest, ...]
    content_bytes: int
    files: int
    entries: int
    new_frames: int
    new_content_bytes: int
    new_stored_bytes: int

    def encode(self) -> bytes:
        return encode_json(
            {
                "formatVersion": FORMAT_VERSION,
                "encoder": self.encoder,
                "options": dict(self.options),
                "bases": [str(digest) for digest in self.bases],
                "content": {"bytes": self.content_bytes, "files": self.files, "entries": self.entries},
                "new": {
                    "frames": self.new_frames,
                    "contentBytes": self.new_content_bytes,
                    "storedBytes": self.new_stored_bytes,
                },
            }
        )


def parse_config(data: bytes, where: str) -> Config:
    """The config; unknown fields are ignored, a newer format version is refused."""
    document = parse_json(data, where)
    try:
        version = document["formatVersion"]
        if version != FORMAT_VERSION:
            raise UnknownVersion("the image has a newer format", where=where, why=f"version {version}")
        content, new = document["content"], document["new"]
        numbers = [
            content["bytes"],
            content["files"],
            content["entries"],
            new["frames"],
            new["contentBytes"],
            new["storedBytes"],
        ]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise CorruptDocument("the image's config has a count that is no number", where=where)
        options = document["options"]
        if not isinstance(options, dict):
            raise CorruptDocument("the image's config has no options", where=where)
        bases = tuple(Digest.parse(str(text)) for text in document["bases"])
        return Config(str(document["encoder"]), options, bases, *numbers)
    except (KeyError, TypeError) as error:
        raise CorruptDocument("the image's config lacks a field", where=where, why=str(error)) from None
