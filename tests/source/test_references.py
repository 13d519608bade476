"""What a manifest names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.errors import CorruptDocument
from tonne.model import Blob, Digest
from tonne.source.references import digests_within, listed_blobs, manifest_media_type
from tonne.wire.oci import INDEX_TYPE, MANIFEST_TYPE

A, B, C = (Digest.of(name.encode()) for name in "abc")


def _descriptor(digest: Digest, size: int = 1, **more: object) -> dict[str, object]:
    return {"mediaType": "application/x", "digest": str(digest), "size": size, **more}


def _listed(**document: object) -> list[Blob]:
    return listed_blobs(json.dumps(document).encode(), "a place")


def test_config_and_layers_are_listed_and_the_subject_is_not() -> None:
    found = _listed(config=_descriptor(A, 2), layers=[_descriptor(B, 0)], subject=_descriptor(C))
    assert found == [Blob(A, 2), Blob(B, 0)]


def test_an_index_lists_manifests() -> None:
    assert _listed(manifests=[_descriptor(A), _descriptor(B)]) == [Blob(A, 1), Blob(B, 1)]


def test_layers_that_live_elsewhere_are_left_out() -> None:
    layers = [_descriptor(A, urls=["https://example.com/layer"]), _descriptor(B, urls=[])]
    assert _listed(config=_descriptor(C), layers=layers) == [Blob(C, 1), Blob(B, 1)]


@pytest.mark.parametrize(
    "document",
    [
        {"layers": {}},
        {"layers": ["text"]},
        {"config": None},
        {"config": {"digest": str(A)}},
        {"config": {"digest": str(A), "size": "1"}},
        {"config": {"digest": str(A), "size": -1}},
        {"config": {"digest": "sha256:short", "size": 1}},
        {"config": {"size": 1}},
    ],
)
def test_what_is_no_manifest(document: dict[str, object]) -> None:
    with pytest.raises(CorruptDocument):
        _listed(**document)


_json = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(), st.sampled_from(["sha256:x", "sha256:", str(A)[:-1]])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=10,
)


@given(_json, st.sets(st.sampled_from([A, B, C])))
def test_digests_are_found_wherever_they_stand(value: object, digests: set[Digest]) -> None:
    holding: object = value
    for digest in digests:
        holding = {"somewhere": [holding, {"digest": str(digest)}]}
    assert set(digests_within(holding)) == digests


def test_nesting_without_end() -> None:
    value: object = str(A)
    for _ in range(200):
        value = [value]
    with pytest.raises(CorruptDocument):
        list(digests_within(value))


def test_the_media_type_of_bare_bytes() -> None:
    assert manifest_media_type(b'{"mediaType": "application/x"}', "here") == "application/x"
    assert manifest_media_type(b'{"manifests": []}', "here") == INDEX_TYPE
    assert manifest_media_type(b'{"layers": [], "mediaType": 5}', "here") == MANIFEST_TYPE
