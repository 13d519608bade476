"""Layouts on a real file system: what is in the way, what lies there, other tools, and what goes when it is deleted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tonne.clock import SYSTEM_CLOCK, Deadline
from tonne.errors import (
    CorruptBytes,
    CorruptDocument,
    DeadlineExceeded,
    LocalFailure,
    MissingBlob,
    MissingManifest,
    MissingRepository,
    ShortBody,
    TargetExists,
    TonneError,
    Unsupported,
)
from tonne.model import Blob, Digest, LayoutReference
from tonne.source.layout import LayoutRepository, open_layout
from tonne.source.layout_files import locked
from tonne.source.seam import Document
from tonne.testing.conformance import (
    EMPTY_CONFIG,
    TAG,
    Content,
    load,
    manifest_of,
    read_all,
    send,
    soon,
)
from tonne.wire.oci import INDEX_TYPE, MANIFEST_TYPE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "layout"


@pytest.fixture
def layout(folder: Path) -> LayoutRepository:
    return LayoutRepository(str(folder))


def blob_file(folder: Path, digest: Digest) -> Path:
    return folder / "blobs" / digest.algorithm / digest.hex


def blobs_in(folder: Path) -> set[str]:
    return set(os.listdir(folder / "blobs" / "sha256"))


# --- what lies there


def test_it_is_an_image_layout_and_nothing_else(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    assert sorted(os.listdir(folder)) == ["blobs", "index.json", "oci-layout"]
    assert json.loads((folder / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    assert json.loads((folder / "index.json").read_bytes()) == {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [
            {
                "mediaType": MANIFEST_TYPE,
                "digest": str(content.document.digest),
                "size": len(content.document.data),
                "artifactType": "application/vnd.example.test",
                "annotations": {"org.opencontainers.image.ref.name": TAG},
            }
        ],
    }
    assert len(blobs_in(folder)) == 3
    for name in blobs_in(folder):
        assert hashlib.sha256((folder / "blobs" / "sha256" / name).read_bytes()).hexdigest() == name


def test_folders_above_it_are_made(tmp_path: Path) -> None:
    load(LayoutRepository(str(tmp_path / "a" / "b" / "c")))
    assert (tmp_path / "a" / "b" / "c" / "index.json").exists()


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = load(LayoutRepository("images"))
    assert read_all(LayoutRepository("./images"), content.blob) == content.data


def test_an_empty_folder_becomes_one(folder: Path, layout: LayoutRepository) -> None:
    (folder / "lost+found").mkdir(parents=True)
    content = load(layout)
    assert read_all(layout, content.blob) == content.data


def test_looking_makes_nothing(folder: Path, layout: LayoutRepository) -> None:
    with pytest.raises(MissingRepository):
        layout.manifest(TAG, soon())
    assert layout.has(Digest.of(b"x"), soon()) is None
    assert not folder.exists()


def test_rights_are_checked_without_a_trace_but_the_layout(folder: Path, layout: LayoutRepository) -> None:
    layout.check_rights(soon())
    assert sorted(os.listdir(folder)) == ["index.json", "oci-layout"]


def test_a_blob_of_another_algorithm(folder: Path, layout: LayoutRepository) -> None:
    digest = Digest("sha512", hashlib.sha512(b"some").hexdigest())
    upload = layout.start(soon())
    upload.append(memoryview(b"some"), soon())
    upload.finish(digest, soon())
    assert read_all(layout, Blob(digest, 4)) == b"some"
    assert blob_file(folder, digest).read_bytes() == b"some"


def test_five_gibibytes(folder: Path, layout: LayoutRepository) -> None:
    """Offsets beyond 32 bits; the file has holes, so it takes no room."""
    send(layout, b"anything")
    blob = Blob(Digest.of(b"stands for its digest"), 5 * 2**30 + 3)
    with blob_file(folder, blob.digest).open("wb") as file:
        os.pwrite(file.fileno(), b"far", 2**32 - 1)
        os.pwrite(file.fileno(), b"end", blob.size_bytes - 3)
    assert layout.size(blob.digest, soon()) == blob.size_bytes
    for offset, expected in [(2**32 - 2, b"\0far\0"), (blob.size_bytes - 3, b"end"), (blob.size_bytes - 4, b"\0end")]:
        out = bytearray(len(expected))
        layout.read(blob, offset, memoryview(out), soon())
        assert bytes(out) == expected
    with pytest.raises(ValueError, match="not within"):
        layout.read(blob, blob.size_bytes - 2, memoryview(bytearray(3)), soon())


# --- what is in the way


def _not_there(folder: Path) -> None:
    pass


def _a_file(folder: Path) -> None:
    folder.write_bytes(b"an archive, perhaps")


def _other_things(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_bytes(b"")


def _empty(folder: Path) -> None:
    folder.mkdir()


@pytest.mark.parametrize(
    ("make", "word"),
    [(_not_there, "no such folder"), (_a_file, "not a folder"), (_other_things, "no OCI layout"), (_empty, "no OCI")],
)
def test_reading_what_is_no_layout(
    folder: Path, layout: LayoutRepository, make: Callable[[Path], None], word: str
) -> None:
    make(folder)
    calls: list[Callable[[], object]] = [
        lambda: layout.manifest(TAG, soon()),
        lambda: layout.tags(soon()),
        lambda: layout.size(Digest.of(b"x"), soon()),
        lambda: layout.read(Blob(Digest.of(b"x"), 1), 0, memoryview(bytearray(1)), soon()),
        lambda: layout.delete(Digest.of(b"x"), "", soon()),
    ]
    for call in calls:
        with pytest.raises(MissingRepository, match=word) as caught:
            call()
        assert str(folder) in str(caught.value)


@pytest.mark.parametrize(("make", "word"), [(_a_file, "a file"), (_other_things, "thesis.tex")])
def test_nothing_is_written_to_what_is_no_layout(
    folder: Path, layout: LayoutRepository, make: Callable[[Path], None], word: str
) -> None:
    make(folder)
    for call in (layout.check_rights, layout.start):
        with pytest.raises(TargetExists, match=word):
            call(soon())
    assert folder.is_file() or os.listdir(folder) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("marker", "kind"),
    [
        (b'{"imageLayoutVersion": "2.0.0"}', Unsupported),
        (b'{"imageLayoutVersion": 1}', Unsupported),
        (b"{}", Unsupported),
        (b"", CorruptDocument),
        (b"[]", CorruptDocument),
        (b" " * 100_000, CorruptDocument),
    ],
)
def test_a_layout_of_another_version(folder: Path, marker: bytes, kind: type[TonneError]) -> None:
    content = load(LayoutRepository(str(folder)))
    (folder / "oci-layout").write_bytes(marker)
    layout = LayoutRepository(str(folder))
    for call in (lambda: layout.manifest(TAG, soon()), lambda: layout.start(soon())):
        with pytest.raises(kind):
            call()
    with pytest.raises(kind):
        layout.put_manifest("v2", content.document, soon())


def test_a_later_version_of_the_same_major(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    (folder / "oci-layout").write_bytes(b'{"imageLayoutVersion": "1.1.0", "more": true}')
    assert layout.manifest(TAG, soon()) == content.document


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"manifests": 1}', b" " * (5 << 20)])
def test_a_broken_index_is_an_error_and_stays(folder: Path, layout: LayoutRepository, data: bytes) -> None:
    content = load(layout)
    (folder / "index.json").write_bytes(data)
    with pytest.raises(CorruptDocument):
        layout.manifest(TAG, soon())
    with pytest.raises(CorruptDocument):
        layout.put_manifest("v2", content.document, soon())
    assert (folder / "index.json").read_bytes() == data


def test_a_file_that_cannot_be_read_says_so(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    blob_file(folder, content.blob.digest).unlink()
    blob_file(folder, content.blob.digest).mkdir()
    with pytest.raises(LocalFailure, match="directory"):
        read_all(layout, content.blob)


@pytest.mark.timeout(20)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """Opening a fifo waits until somebody writes into it."""

    def refused(ask: Callable[[LayoutRepository, Content], object], *names: str) -> None:
        folder = tmp_path / "-".join(names).replace("/", "-")
        layout = LayoutRepository(str(folder))
        content = load(layout)
        for name in names:
            path = folder / name.format(blob=content.blob.digest.hex, manifest=content.document.digest.hex)
            path.unlink()
            os.mkfifo(path)
        with pytest.raises(LocalFailure, match="regular"):
            ask(layout, content)

    refused(lambda layout, content: read_all(layout, content.blob), "blobs/sha256/{blob}")
    refused(lambda layout, content: layout.has(content.blob.digest, soon()), "blobs/sha256/{blob}")
    refused(lambda layout, content: layout.manifest(TAG, soon()), "blobs/sha256/{manifest}")
    refused(lambda layout, content: layout.manifest(TAG, soon()), "index.json")
    refused(lambda layout, content: list(layout.tags(soon())), "oci-layout")


def test_a_blob_that_was_cut_off(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    os.truncate(blob_file(folder, content.blob.digest), 1000)
    out = bytearray(10)
    layout.read(content.blob, 990, memoryview(out), soon())
    assert bytes(out) == content.data[990:1000]
    with pytest.raises(ShortBody) as caught:
        layout.read(content.blob, 995, memoryview(out), soon())
    assert caught.value.fields["origin"] == f"oci:{folder}"
    assert layout.has(content.blob.digest, soon()) == 1000
    # Storing it again heals it.
    assert send(layout, content.data) == content.blob
    assert read_all(layout, content.blob) == content.data


def test_a_manifest_that_was_changed(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    blob_file(folder, content.document.digest).write_bytes(content.document.data.replace(b"example", b"exampl3"))
    with pytest.raises(CorruptBytes):
        layout.manifest(TAG, soon())


def test_a_manifest_whose_file_is_gone(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    blob_file(folder, content.document.digest).unlink()
    with pytest.raises(MissingManifest):
        layout.manifest(TAG, soon())


@pytest.mark.parametrize("data", [b"no JSON", b"[]", b"\0" * (5 << 20)])
def test_a_blob_that_is_no_manifest(layout: LayoutRepository, data: bytes) -> None:
    blob = send(layout, data)
    with pytest.raises(CorruptDocument):
        layout.manifest(str(blob.digest), soon())


def test_a_manifest_with_a_blob_of_another_length(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    os.truncate(blob_file(folder, content.blob.digest), 5)
    with pytest.raises(MissingBlob) as caught:
        layout.put_manifest("v2", content.document, soon())
    assert caught.value.fields["digests"] == str(content.blob.digest)
    with pytest.raises(MissingManifest):
        layout.manifest("v2", soon())


def test_the_lock_is_waited_for_until_the_deadline(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    with locked(str(folder / "oci-layout"), soon(), SYSTEM_CLOCK):
        with pytest.raises(DeadlineExceeded, match="another process"):
            layout.put_manifest("v2", content.document, Deadline.after(0.05))
        # Readers do not wait.
        assert layout.manifest(TAG, soon()) == content.document
    layout.put_manifest("v2", content.document, soon())
    assert layout.manifest("v2", soon()) == content.document


# --- others' layouts


def test_the_only_manifest_needs_no_name(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    assert open_layout(LayoutReference(str(folder))).manifest("latest", soon()) == content.document
    for named in (LayoutReference(str(folder), "latest"), LayoutReference(str(folder), "", content.document.digest)):
        with pytest.raises(MissingManifest, match="it has v1"):
            open_layout(named).manifest("latest", soon())


def test_an_index_of_several_platforms_is_given_as_it_is(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    nested = _index_of(content.document)
    layout.put_manifest("multi", nested, soon())
    assert layout.manifest("multi", soon()) == nested
    assert nested.media_type == INDEX_TYPE


def test_skopeo_reads_ours_and_we_read_skopeos(tmp_path: Path, needs_program: Callable[[str], str]) -> None:
    skopeo = needs_program("skopeo")
    ours = LayoutRepository(str(tmp_path / "ours"))
    content = load(ours)
    raw = subprocess.run(
        [skopeo, "inspect", "--raw", f"oci:{tmp_path}/ours:{TAG}"], check=True, capture_output=True
    ).stdout
    assert raw == content.document.data
    copied = [skopeo, "--insecure-policy", "copy", f"oci:{tmp_path}/ours:{TAG}", f"oci:{tmp_path}/theirs"]
    subprocess.run([*copied[:-1], copied[-1] + ":v2"], check=True, capture_output=True)
    theirs = open_layout(LayoutReference(str(tmp_path / "theirs"), "v2"))
    assert theirs.manifest("v2", soon()).digest == content.document.digest
    assert read_all(theirs, content.blob) == content.data
    # And we add to it: both are there for skopeo afterwards.
    second = manifest_of([content.blob], send(theirs, EMPTY_CONFIG), note="second")
    theirs.put_manifest("v3", second, soon())
    for tag, document in (("v2", content.document), ("v3", second)):
        found = subprocess.run(
            [skopeo, "inspect", "--raw", f"oci:{tmp_path}/theirs:{tag}"], check=True, capture_output=True
        ).stdout
        assert found == document.data
    # Without a name, as skopeo itself writes it.
    subprocess.run([*copied[:-1], f"oci:{tmp_path}/unnamed"], check=True, capture_output=True)
    unnamed = open_layout(LayoutReference(str(tmp_path / "unnamed")))
    assert unnamed.manifest("latest", soon()).digest == content.document.digest


# --- linking


@pytest.mark.parametrize("prefix", ["", "oci:"])
def test_a_blob_of_another_layout_gets_a_second_name(tmp_path: Path, prefix: str) -> None:
    first, second = LayoutRepository(str(tmp_path / "first")), LayoutRepository(str(tmp_path / "second"))
    content = load(first)
    assert second.mount(content.blob, f"{prefix}{tmp_path}/first", soon())
    files = [blob_file(tmp_path / name, content.blob.digest) for name in ("first", "second")]
    assert files[0].samefile(files[1])
    shutil.rmtree(tmp_path / "first")
    assert read_all(second, content.blob) == content.data


def test_where_no_second_name_can_be_given_the_kernel_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = LayoutRepository(str(tmp_path / "first")), LayoutRepository(str(tmp_path / "second"))
    content = load(first)
    second.check_rights(soon())

    def refuse(*names: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert second.mount(content.blob, str(tmp_path / "first"), soon())
    files = [blob_file(tmp_path / name, content.blob.digest) for name in ("first", "second")]
    assert not files[0].samefile(files[1])
    assert files[1].read_bytes() == content.data
    assert not (tmp_path / "second" / ".tonne-uploads").exists()


def test_a_layout_is_made_where_files_have_one_name_only(
    folder: Path, layout: LayoutRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    content = load(layout)
    assert read_all(layout, content.blob) == content.data
    assert sorted(os.listdir(folder)) == ["blobs", "index.json", "oci-layout"]


def test_a_rotten_blob_is_not_taken_over(tmp_path: Path) -> None:
    first, second = LayoutRepository(str(tmp_path / "first")), LayoutRepository(str(tmp_path / "second"))
    content = load(first)
    rotten = blob_file(tmp_path / "first", content.blob.digest)
    data = bytearray(rotten.read_bytes())
    data[len(data) // 2] ^= 0x10
    rotten.write_bytes(data)
    assert not second.mount(content.blob, str(tmp_path / "first"), soon())
    assert second.has(content.blob.digest, soon()) is None
    assert not (tmp_path / "second" / ".tonne-uploads").exists()


def test_a_blob_on_another_file_system_is_not_linked(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system: /dev/shm is missing")
    elsewhere = memory / f"tonne-test-{os.getpid()}"
    try:
        content = load(LayoutRepository(str(elsewhere)))
        layout = LayoutRepository(str(tmp_path / "layout"))
        assert not layout.mount(content.blob, str(elsewhere), soon())
        assert layout.has(content.blob.digest, soon()) is None
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


def test_a_blob_that_is_cut_off_here_or_there(tmp_path: Path) -> None:
    first, second = LayoutRepository(str(tmp_path / "first")), LayoutRepository(str(tmp_path / "second"))
    content = load(first)
    send(second, content.data)
    os.truncate(blob_file(tmp_path / "second", content.blob.digest), 7)
    assert second.mount(content.blob, str(tmp_path / "first"), soon())
    assert read_all(second, content.blob) == content.data
    os.truncate(blob_file(tmp_path / "first", content.blob.digest), 7)
    third = LayoutRepository(str(tmp_path / "third"))
    assert not third.mount(content.blob, str(tmp_path / "first"), soon())


# --- deleting


def _index_of(*documents: Document) -> Document:
    data = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "manifests": [
                {"mediaType": document.media_type, "digest": str(document.digest), "size": len(document.data)}
                for document in documents
            ],
        }
    ).encode()
    return Document(data, INDEX_TYPE, Digest.of(data))


def _second(layout: LayoutRepository, content: Content, tag: str = "v2") -> tuple[Document, Blob]:
    """A manifest that shares the first one's blob and has one of its own."""
    own = send(layout, b"only in the second")
    document = manifest_of([content.blob, own], send(layout, EMPTY_CONFIG))
    layout.put_manifest(tag, document, soon())
    return document, own


def test_what_only_the_deleted_manifest_named_goes(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    before = blobs_in(folder)
    document, own = _second(layout, content)
    assert blobs_in(folder) == before | {document.digest.hex, own.digest.hex}
    layout.delete(document.digest, "v2", soon())
    assert blobs_in(folder) == before
    assert read_all(layout, content.blob) == content.data
    layout.delete(content.document.digest, TAG, soon())
    assert blobs_in(folder) == set()


def test_blobs_that_nobody_names_are_not_ours_to_remove(folder: Path, layout: LayoutRepository) -> None:
    loose = send(layout, b"packed, and its manifest is about to come")
    content = load(layout)
    layout.delete(content.document.digest, TAG, soon())
    assert blobs_in(folder) == {loose.digest.hex}


def test_nothing_goes_while_an_upload_is_unfinished(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    before = blobs_in(folder)
    upload = LayoutRepository(str(folder)).start(soon())
    layout.delete(content.document.digest, TAG, soon())
    assert blobs_in(folder) == before
    with pytest.raises(MissingManifest):
        layout.manifest(TAG, soon())
    upload.cancel(soon())


def test_nothing_goes_when_another_manifest_cannot_be_read(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    document, _ = _second(layout, content)
    before = blobs_in(folder)
    blob_file(folder, content.document.digest).write_bytes(b"damaged")
    layout.delete(document.digest, "v2", soon())
    assert blobs_in(folder) == before


def test_a_damaged_manifest_can_be_deleted(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    blob_file(folder, content.document.digest).write_bytes(b"damaged")
    layout.delete(content.document.digest, TAG, soon())
    assert list(layout.tags(soon())) == []


def test_what_a_field_that_we_do_not_know_names_stays(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    data = json.dumps({"schemaVersion": 2, "layers": [], "x-new": [{"d": str(content.blob.digest)}]}).encode()
    foreign = Document(data, MANIFEST_TYPE, Digest.of(data))
    layout.put_manifest("foreign", foreign, soon())
    layout.delete(content.document.digest, TAG, soon())
    assert blobs_in(folder) == {foreign.digest.hex, content.blob.digest.hex}


def test_an_index_keeps_and_takes_its_manifests_with_it(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    nested = _index_of(content.document)
    layout.put_manifest("multi", nested, soon())
    before = blobs_in(folder)
    # The manifest is not listed any more, but the index names it.
    layout.delete(content.document.digest, TAG, soon())
    assert blobs_in(folder) == before
    assert layout.manifest(str(content.document.digest), soon()) == content.document
    layout.delete(nested.digest, "multi", soon())
    assert blobs_in(folder) == set()


def test_an_index_whose_manifests_are_listed_too_leaves_them(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    before = blobs_in(folder)
    nested = _index_of(content.document)
    layout.put_manifest("multi", nested, soon())
    layout.delete(nested.digest, "multi", soon())
    assert blobs_in(folder) == before
    assert read_all(layout, content.blob) == content.data


def test_manifests_of_other_platforms_may_be_absent(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    document, own = _second(layout, content)
    absent = manifest_of([], Blob(Digest.of(EMPTY_CONFIG), 2), note="of another platform")
    nested = _index_of(content.document, absent)
    blob_file(folder, absent.digest).write_bytes(absent.data)
    layout.put_manifest("multi", nested, soon())
    blob_file(folder, absent.digest).unlink()
    layout.delete(document.digest, "v2", soon())
    assert own.digest.hex not in blobs_in(folder)
    assert content.blob.digest.hex in blobs_in(folder)


def test_the_subject_of_a_signature_stays(folder: Path, layout: LayoutRepository) -> None:
    content = load(layout)
    before = blobs_in(folder)
    body = json.loads(manifest_of([], Blob(Digest.of(EMPTY_CONFIG), 2)).data)
    body["subject"] = {
        "mediaType": MANIFEST_TYPE,
        "digest": str(content.document.digest),
        "size": len(content.document.data),
    }
    data = json.dumps(body).encode()
    signature = Document(data, MANIFEST_TYPE, Digest.of(data))
    layout.put_manifest(str(signature.digest), signature, soon())
    # Listed no more, as some tools leave it: the signature does not own what it signs.
    index = json.loads((folder / "index.json").read_bytes())
    index["manifests"] = [entry for entry in index["manifests"] if entry["digest"] == str(signature.digest)]
    (folder / "index.json").write_bytes(json.dumps(index).encode())
    layout.delete(signature.digest, "", soon())
    assert blobs_in(folder) == before - {Digest.of(EMPTY_CONFIG).hex}
