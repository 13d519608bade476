"""index.json: names and digests as a model says, and nothing lost of what others wrote."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.errors import CorruptDocument, MissingManifest, Unsupported
from tonne.model import Digest
from tonne.source.layout_index import REF_NAME, LayoutIndex
from tonne.source.seam import Document
from tonne.wire.oci import MANIFEST_TYPE

DOCUMENTS = [Document(data, MANIFEST_TYPE, Digest.of(data)) for data in (b"one", b"two", b"three")]
BY_DIGEST = {document.digest: document for document in DOCUMENTS}
TAGS = ["a", "b", "latest"]

# An index of another tool, with fields that we do not know and entries that we cannot use.
FOREIGN: dict[str, Any] = {
    "schemaVersion": 2,
    "x-other": {"deep": [1, None, "text"]},
    "manifests": [
        {"mediaType": "application/x", "digest": "sha256:broken", "size": -1, "annotations": {REF_NAME: "broken"}},
        "not even an object",
        {
            "mediaType": MANIFEST_TYPE,
            "digest": str(Digest.of(b"foreign")),
            "size": 7,
            "platform": {"os": "linux", "architecture": "arm64"},
            "annotations": {REF_NAME: "theirs", "com.example": "kept"},
        },
        {"mediaType": MANIFEST_TYPE, "digest": str(Digest.of(b"odd")), "size": 3, "annotations": "no object"},
    ],
    "annotations": {"com.example": "kept"},
}

_steps = st.one_of(
    st.tuples(st.just("tag"), st.sampled_from(TAGS), st.sampled_from(DOCUMENTS)),
    st.tuples(st.just("digest"), st.just(""), st.sampled_from(DOCUMENTS)),
    st.tuples(st.just("remove"), st.just(""), st.sampled_from(DOCUMENTS)),
)


@given(st.lists(_steps, max_size=12))
def test_names_and_digests_are_as_the_model_says(steps: list[tuple[str, str, Document]]) -> None:
    index = LayoutIndex.parse(json.dumps(FOREIGN).encode(), "oci:test")
    named: dict[str, Digest] = {}
    listed: set[Digest] = set()
    for kind, tag, document in steps:
        digest = document.digest
        if kind == "remove":
            assert index.remove(digest) == (digest in listed)
            listed.discard(digest)
            named = {name: held for name, held in named.items() if held != digest}
        else:
            index.put(tag if kind == "tag" else str(digest), document, "")
            listed.add(digest)
            if kind == "tag":
                named[tag] = digest
        index = LayoutIndex.parse(index.encode(), "oci:test")
    assert index.names() == sorted([*named, "broken", "theirs"])
    assert set(index.digests()) == {*listed, Digest.of(b"foreign"), Digest.of(b"odd")}
    for name in TAGS:
        if name in named:
            assert index.find(name) == named[name]
            assert index.media_type(named[name]) == MANIFEST_TYPE
        else:
            with pytest.raises(MissingManifest):
                index.find(name)
    ours = [
        entry
        for entry in index.document["manifests"]
        if isinstance(entry, dict) and str(entry.get("digest")) in set(map(str, BY_DIGEST))
    ]
    # One entry a name, and one for a manifest without.
    unnamed = listed - set(named.values())
    assert len(ours) == len(named) + len(unnamed)
    assert all("annotations" not in entry or entry["annotations"] for entry in ours)
    kept = copy.deepcopy(index.document)
    kept["manifests"] = [entry for entry in kept["manifests"] if entry not in ours]
    assert kept == FOREIGN


def test_an_entry_of_ours_keeps_what_another_tool_added() -> None:
    index = LayoutIndex.empty("oci:test")
    index.put("v1", DOCUMENTS[0], "application/vnd.example")
    document = json.loads(index.encode())
    document["manifests"][0]["annotations"]["com.example"] = "added"
    index = LayoutIndex.parse(json.dumps(document).encode(), "oci:test")
    index.put("v1", DOCUMENTS[1], "")
    index.put("v2", DOCUMENTS[0], "")
    assert index.document["manifests"] == [
        {
            "mediaType": MANIFEST_TYPE,
            "digest": str(DOCUMENTS[0].digest),
            "size": 3,
            "artifactType": "application/vnd.example",
            "annotations": {"com.example": "added", REF_NAME: "v2"},
        },
        {
            "mediaType": MANIFEST_TYPE,
            "digest": str(DOCUMENTS[1].digest),
            "size": 3,
            "annotations": {REF_NAME: "v1"},
        },
    ]


def _index(*named: tuple[str | None, Document]) -> LayoutIndex:
    """As other tools write it: entries in any order, with a name or without."""
    entries: list[dict[str, object]] = [
        {
            "mediaType": document.media_type,
            "digest": str(document.digest),
            "size": len(document.data),
            **({} if name is None else {"annotations": {REF_NAME: name}}),
        }
        for name, document in named
    ]
    return LayoutIndex.parse(json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), "oci:test")


def test_the_only_manifest_is_meant_when_no_name_was_given() -> None:
    for name in (None, "v1"):
        index = _index((name, DOCUMENTS[0]))
        assert index.find("latest", any_name=True) == DOCUMENTS[0].digest
        with pytest.raises(MissingManifest):
            index.find("latest")
        with pytest.raises(MissingManifest):
            index.find("v9", any_name=True)


def test_latest_goes_before_the_only_one() -> None:
    index = _index(("v1", DOCUMENTS[0]), ("latest", DOCUMENTS[1]))
    assert index.find("latest", any_name=True) == DOCUMENTS[1].digest


def test_several_that_could_be_meant_are_listed() -> None:
    with pytest.raises(Unsupported) as caught:
        _index(("v1", DOCUMENTS[0]), ("v2", DOCUMENTS[1])).find("latest", any_name=True)
    assert "v1, v2" in caught.value.line
    with pytest.raises(Unsupported) as caught:
        _index(("v1", DOCUMENTS[0]), ("v1", DOCUMENTS[1])).find("v1")
    assert f"@{DOCUMENTS[0].digest}" in caught.value.line
    assert _index(("v1", DOCUMENTS[0]), ("v1", DOCUMENTS[0])).find("v1") == DOCUMENTS[0].digest


def test_what_is_there_is_said_when_a_name_is_not() -> None:
    with pytest.raises(MissingManifest) as caught:
        _index(*((f"v{number:02}", DOCUMENTS[0]) for number in range(10))).find("v99")
    assert "v00, v01, v02, v03, v04, v05, v06, v07 and 2 more" in str(caught.value)
    with pytest.raises(MissingManifest):
        LayoutIndex.empty("oci:test").find("latest", any_name=True)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"manifests": {}}', b"\xff", b'{"a":1,"a":2}', b'{"x":NaN}'])
def test_what_is_no_index(data: bytes) -> None:
    with pytest.raises(CorruptDocument):
        LayoutIndex.parse(data, "oci:test")
