"""Manifests and configs: ours survive, others are told what they are, hostile ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.image.sketch import make
from tonne.errors import CorruptDocument, ForeignManifest, TonneError, UnknownVersion
from tonne.model import Digest
from tonne.wire.oci import (
    ARTIFACT_TYPE,
    CONFIG_TYPE,
    DOCKER_LIST_TYPE,
    DOCUMENT_BYTES_MAX,
    FEATURES_KEY,
    INDEX_TYPE,
    MANIFEST_TYPE,
    PACK_TYPE,
    PAGES_TYPE,
    ROOT_TYPE,
    Config,
    Descriptor,
    ImageManifest,
    describe_manifest,
    encode_json,
    parse_config,
    parse_json,
    parse_manifest,
)

MADE = make("file a text:x")
GOOD = json.loads(MADE.document.data)
digests = st.binary(max_size=8).map(Digest.of)
sizes = st.integers(0, (1 << 63) - 1)
texts = st.dictionaries(st.text(max_size=20).filter(lambda key: key != FEATURES_KEY), st.text(max_size=20), max_size=3)


@given(digests, digests, st.lists(st.tuples(digests, sizes), max_size=5), sizes, texts)
def test_manifests_survive(
    one: Digest, two: Digest, packs: list[tuple[Digest, int]], size: int, annotations: dict[str, str]
) -> None:
    manifest = ImageManifest(
        Descriptor(CONFIG_TYPE, one, size),
        Descriptor(ROOT_TYPE, two, size, annotations),
        Descriptor(PAGES_TYPE, one, 0),
        tuple(Descriptor(PACK_TYPE, digest, length) for digest, length in packs),
        annotations,
    )
    data = manifest.encode()
    again = parse_manifest(data, MANIFEST_TYPE, "here")
    assert (again.config, again.root, again.pages, again.packs) == (
        manifest.config,
        manifest.root,
        manifest.pages,
        manifest.packs,
    )
    assert again.annotations == {FEATURES_KEY: "0x0", **annotations}
    assert again.encode() == data
    assert json.loads(data)["mediaType"] == MANIFEST_TYPE
    assert [item.blob.size_bytes for item in again.blobs[:3]] == [size, size, 0]


def spoilt(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(MADE.document.data)
    change(document)
    return encode_json(document)


def _set(*path: str | int, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        where: Any = document
        for name in path[:-1]:
            where = where[name]
        where[path[-1]] = value

    return change


HOSTILE: dict[str, tuple[bytes, type[TonneError]]] = {
    "no json": (b"<html>", CorruptDocument),
    "not utf-8": (b'{"a":"\xff"}', CorruptDocument),
    "a key twice": (b'{"schemaVersion":2,"schemaVersion":2}', CorruptDocument),
    "NaN": (b'{"schemaVersion":NaN}', CorruptDocument),
    "deep": (b"[" * 100_000, CorruptDocument),
    "too large": (b" " * (DOCUMENT_BYTES_MAX + 1), CorruptDocument),
    "a list": (b"[]", ForeignManifest),
    "schema": (spoilt(_set("schemaVersion", value=3)), CorruptDocument),
    "features": (spoilt(_set("annotations", FEATURES_KEY, value="0x1")), UnknownVersion),
    "features that are none": (spoilt(_set("annotations", FEATURES_KEY, value="many")), CorruptDocument),
    "annotations": (spoilt(_set("annotations", value=[1])), CorruptDocument),
    "annotation": (spoilt(_set("annotations", "x", value=1)), CorruptDocument),
    "no layers": (spoilt(_set("layers", value=None)), CorruptDocument),
    "one layer": (spoilt(lambda d: d["layers"].__delitem__(slice(1, None))), CorruptDocument),
    "order": (spoilt(lambda d: d["layers"].reverse()), CorruptDocument),
    "layer is a number": (spoilt(_set("layers", 0, value=1)), CorruptDocument),
    "size is text": (spoilt(_set("layers", 0, "size", value="1")), CorruptDocument),
    "size is true": (spoilt(_set("layers", 0, "size", value=True)), CorruptDocument),
    "size is negative": (spoilt(_set("layers", 0, "size", value=-1)), CorruptDocument),
    "size is huge": (spoilt(_set("layers", 0, "size", value=1 << 63)), CorruptDocument),
    "digest": (spoilt(_set("layers", 0, "digest", value="sha256:ABC")), CorruptDocument),
    "digest of another kind": (spoilt(_set("layers", 0, "digest", value="md5:abc")), CorruptDocument),
    "no digest": (spoilt(_set("layers", 0, "digest", value=None)), CorruptDocument),
    "no type": (spoilt(_set("layers", 0, "mediaType", value=None)), CorruptDocument),
    "layer annotations": (spoilt(_set("layers", 0, "annotations", value=[1])), CorruptDocument),
    "config is text": (spoilt(_set("config", value="x")), CorruptDocument),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_manifests_that_must_fail(what: str) -> None:
    data, error = HOSTILE[what]
    with pytest.raises(error):
        parse_manifest(data, MANIFEST_TYPE, "here")


def test_either_type_makes_it_ours() -> None:
    """Registries older than OCI 1.1 drop artifactType."""
    assert parse_manifest(spoilt(lambda d: d.pop("artifactType")), MANIFEST_TYPE, "here").packs
    assert parse_manifest(spoilt(_set("config", "mediaType", value="x/y")), MANIFEST_TYPE, "here").packs
    assert GOOD["artifactType"] == ARTIFACT_TYPE


def test_unknown_fields_are_ignored() -> None:
    assert parse_manifest(spoilt(_set("subject", value={"x": 1})), MANIFEST_TYPE, "here").packs


@pytest.mark.parametrize(
    ("document", "what", "handler"),
    [
        ({"config": {"mediaType": "application/vnd.oci.image.config.v1+json"}}, "container image", "skopeo"),
        ({"artifactType": "application/vnd.cncf.model.manifest.v1+json"}, "ModelPack", "modctl"),
        ({"config": {"mediaType": "application/vnd.cncf.helm.config.v1+json"}}, "Helm", "helm"),
        ({"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}, "Ollama", "ollama"),
        ({"mediaType": INDEX_TYPE, "manifests": []}, "index", "digest"),
        ({"mediaType": DOCKER_LIST_TYPE}, "index", "digest"),
        ({"manifests": []}, "index", "digest"),
        ({"schemaVersion": 1}, "schema 1", "docker"),
        ({"artifactType": "application/vnd.example"}, "application/vnd.example", "oras"),
        ({}, "artifact", "oras"),
    ],
)
def test_others_are_told_what_they_are(document: dict[str, Any], what: str, handler: str) -> None:
    data = json.dumps(document).encode()
    with pytest.raises(ForeignManifest) as raised:
        parse_manifest(data, MANIFEST_TYPE, "here")
    assert what in raised.value.why
    assert handler in raised.value.next


def test_what_is_no_manifest() -> None:
    assert describe_manifest(b"x", "text/html")[0] == "no manifest"
    assert describe_manifest(b"[]", "text/html")[0] == "no manifest"


CONFIG = Config("e", {"level": 3}, (Digest.of(b""),), 5, 4, 3, 2, 1, 0)


@given(st.lists(sizes, min_size=6, max_size=6), st.lists(digests, max_size=3), texts, st.text(max_size=20))
def test_configs_survive(numbers: list[int], bases: list[Digest], options: dict[str, str], encoder: str) -> None:
    config = Config(encoder, options, tuple(bases), *numbers)
    assert parse_config(config.encode(), "here") == config


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_set("formatVersion", value=2), UnknownVersion),
        (lambda d: d.pop("formatVersion"), CorruptDocument),
        (lambda d: d.pop("content"), CorruptDocument),
        (_set("content", value=3), CorruptDocument),
        (_set("new", "frames", value=-1), CorruptDocument),
        (_set("new", "frames", value="1"), CorruptDocument),
        (_set("options", value=[]), CorruptDocument),
        (_set("bases", value=["x"]), CorruptDocument),
        (_set("bases", value=3), CorruptDocument),
    ],
)
def test_configs_that_must_fail(change: Callable[[dict[str, Any]], object], error: type[TonneError]) -> None:
    document = json.loads(CONFIG.encode())
    change(document)
    with pytest.raises(error):
        parse_config(encode_json(document), "here")
    with pytest.raises(CorruptDocument):
        parse_config(b"[]", "here")


def test_unknown_fields_of_a_config_are_ignored() -> None:
    document = json.loads(CONFIG.encode())
    document["later"] = {"x": 1}
    assert parse_config(encode_json(document), "here") == CONFIG


def test_json_has_one_form() -> None:
    assert encode_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()
    assert parse_json(b'{"a": [1, 2.5, null]}', "x") == {"a": [1, 2.5, None]}
