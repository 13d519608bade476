"""Digests, references and the small values."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.errors import BadReference, CorruptDocument
from tonne.model import (
    Blob,
    Digest,
    Entry,
    Extent,
    Frame,
    Kind,
    LayoutReference,
    Reference,
    RegistryReference,
    blake3_of,
    parse_reference,
)
from tonne.model.frame import STRIPE_BYTES

HEX = "0123456789abcdef" * 4


@given(st.binary(max_size=100))
def test_a_digest_of_bytes(data: bytes) -> None:
    digest = Digest.of(data)
    assert str(digest) == "sha256:" + hashlib.sha256(data).hexdigest()
    assert Digest.parse(str(digest)) == digest
    assert digest.matches(data)
    assert not digest.matches(data + b"x")
    hasher = digest.hasher()
    hasher.update(data)
    assert hasher.hexdigest() == digest.hex
    assert Blob(digest, len(data)).size_bytes == len(data)


def test_sha512() -> None:
    digest = Digest.parse("sha512:" + hashlib.sha512(b"x").hexdigest())
    assert digest.matches(b"x")


@pytest.mark.parametrize(
    "text",
    ["", "sha256", "sha256:", "sha256:" + HEX[:-1], "sha256:" + HEX + "0", "sha256:" + HEX.upper(), "md5:" + HEX[:32],
     "sha512:" + HEX, "sha256:" + HEX[:-1] + "g", "sha256:" + HEX[:-1] + "\n", ":" + HEX, "SHA256:" + HEX],
)  # fmt: skip
def test_no_other_digest_can_be_made(text: str) -> None:
    with pytest.raises(CorruptDocument):
        Digest.parse(text)


@given(st.text(max_size=90))
def test_what_parses_is_written_the_same(text: str) -> None:
    try:
        assert str(Digest.parse(text)) == text
    except CorruptDocument:
        pass


def test_blake3() -> None:
    assert blake3_of(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


# --- references ---

GOOD: list[tuple[str, Reference]] = [
    ("example.com/ml/bert:v1", RegistryReference("example.com", "ml/bert", "v1")),
    ("example.com:5000/a", RegistryReference("example.com:5000", "a")),
    ("localhost/a:x", RegistryReference("localhost", "a", "x")),
    ("127.0.0.1:80/a", RegistryReference("127.0.0.1:80", "a")),
    ("[::1]:5000/a:v", RegistryReference("[::1]:5000", "a", "v")),
    (f"example.com/a@sha256:{HEX}", RegistryReference("example.com", "a", "", Digest("sha256", HEX))),
    (f"example.com/a:v@sha256:{HEX}", RegistryReference("example.com", "a", "v", Digest("sha256", HEX))),
    ("example.com/a__b/c-d.e:V_1.2-x", RegistryReference("example.com", "a__b/c-d.e", "V_1.2-x")),
    ("oci:images:v1", LayoutReference("images", "v1")),
    ("oci:./a/b", LayoutReference("./a/b")),
    ("oci:/a:b/c", LayoutReference("/a:b/c")),
    ("oci:/a:b/c:v", LayoutReference("/a:b/c", "v")),
    (f"oci:x:v@sha256:{HEX}", LayoutReference("x", "v", Digest("sha256", HEX))),
]


@pytest.mark.parametrize(("text", "reference"), GOOD)
def test_references(text: str, reference: Reference) -> None:
    assert parse_reference(text) == reference
    assert str(reference) == text
    assert reference.name == str(reference.digest or reference.tag or "latest")
    pinned = reference.pinned(Digest.of(b""))
    assert parse_reference(str(pinned)) == pinned
    assert pinned.name == str(Digest.of(b""))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("x" * 9000, "too long"),
        ("example.com/a\n", "control"),
        ("https://example.com/a", "leave out https://"),
        ("bert", "docker.io/library/bert"),
        ("ml/bert:v1", "docker.io/ml/bert:v1"),
        ("example.com/UPPER", "lower case"),
        ("example.com/a:", "tag"),
        ("example.com/a:b c", "tag"),
        ("example.com/a:" + "x" * 129, "tag"),
        ("example.com/", "repository"),
        ("example.com/a//b", "repository"),
        ("example.com/../b", "repository"),
        ("example.com/" + "a" * 256, "repository"),
        ("example.com:0/a", "host"),
        ("example.com:65536/a", "host"),
        ("-bad.com/a", "host"),
        ("[:::1]:5000/a", "host"),
        ("[1.2.3.4]/a", "host"),
        ("example.com/a@sha256:xyz", "digest"),
        ("example.com/a@", "digest"),
        ("oci:", "folder"),
        ("oci:x:bad tag", "tag"),
        ("oci:x@nothing", "digest"),
    ],
)
def test_references_that_must_fail(text: str, said: str) -> None:
    with pytest.raises(BadReference) as raised:
        parse_reference(text)
    assert said in raised.value.line


@pytest.mark.parametrize(
    "text",
    [
        "me:geheim@example.com/a:v1",
        "me:geheim@example.com/a@sha256:xyz",
        "https://me:geheim@example.com/a",
        "http://geheim@example.com/a",
        "https://me:ge/heim@example.com/a",
        "me:geheim@example.com",
        "me:ge@geheim@example.com",
        "me:geheim/geheim@example.com:v1 x",
        "me:geheim@example.com/a\n",
        "me:geheim@example.com/" + "x" * 9000,
    ],
)
def test_a_password_in_a_reference_is_not_quoted(text: str) -> None:
    with pytest.raises(BadReference) as raised:
        parse_reference(text)
    assert "geheim" not in raised.value.line + str(raised.value.document())


@given(st.text(max_size=60) | st.from_regex(r"[a-z.:/@]{1,40}", fullmatch=True))
def test_any_text_is_a_reference_or_an_error(text: str) -> None:
    try:
        reference = parse_reference(text)
    except BadReference:
        return
    assert parse_reference(str(reference)) == reference


def test_origins() -> None:
    assert RegistryReference("h:1", "a/b", "t").origin == "h:1/a/b"
    assert LayoutReference("p", "t").origin == "oci:p"


# --- entries, extents, frames ---


def test_entries() -> None:
    entry = Entry(2, 1, 2, b"x", Kind.FILE, 0o4755, 0, 0, 0, 5)
    assert (entry.mode, entry.is_file, entry.is_dir) == (0o104755, True, False)
    assert Entry(1, 0, 1, b"", Kind.DIRECTORY, 0o755, 0, 0, 0, 0).is_dir


def test_extents_and_frames() -> None:
    assert Extent(5, 7, None).end == 12
    frame = Frame(0, 0, STRIPE_BYTES + 5, 10, 20, 0, bytes(32))
    assert frame.end == STRIPE_BYTES + 15
