"""Copy: every digest is kept, nothing moves that need not, and an interrupted copy goes on."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.image.sketch import Made, make, put
from tonne.clock import Deadline
from tonne.errors import (
    BadReference,
    Corrupt,
    CorruptBytes,
    Forbidden,
    ForeignManifest,
    Locked,
    MissingBlob,
    MissingManifest,
    ProtocolError,
    SessionLost,
    TonneError,
    TooLarge,
    Unreachable,
    UsageError,
)
from tonne.image.blob_copy import note_key
from tonne.image.copy import CopyReport, copy
from tonne.image.copy_journal import CopyJournal
from tonne.model import Digest
from tonne.progress import Silent
from tonne.source.memory import Asked, MemoryRepository
from tonne.source.seam import Document, SinkFacts
from tonne.wire.oci import DOCKER_MANIFEST_TYPE, INDEX_TYPE, MANIFEST_TYPE

TREE = """
    frame 4096
    lanes 4
    level 0
    file a seed:1:300000
    file b seed:2:5000
"""
CHUNK_BYTES = 8192


class Counted(Silent):
    """Progress that adds up, and must never go back or beyond the total."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self._lock = threading.Lock()

    def begin(self, what: str, total_bytes: int | None = None) -> None:
        self.total = total_bytes or 0

    def advance(self, size_bytes: int) -> None:
        assert size_bytes >= 0
        with self._lock:
            self.done += size_bytes
            assert self.done <= self.total


@pytest.fixture
def made() -> Made:
    return make(TREE)


@pytest.fixture
def source(made: Made) -> MemoryRepository:
    source = MemoryRepository("memory/source")
    put(source, made)
    return source


@pytest.fixture
def target() -> MemoryRepository:
    return MemoryRepository("memory/target", SinkFacts(chunk_bytes=CHUNK_BYTES))


def copied(source: MemoryRepository, target: MemoryRepository, **options: object) -> CopyReport:
    progress = Counted()
    report = copy(source, "v1", target, "v2", progress, **options)  # type: ignore[arg-type]
    assert progress.done == progress.total == report.total_bytes
    return report


def check_equal(made: Made, target: MemoryRepository) -> None:
    assert target.named["v2"] == made.document.digest
    assert target.manifests[made.document.digest].data == made.document.data
    assert target.blobs == made.blobs
    assert target.sessions == 0


def sent(target: MemoryRepository) -> int:
    return sum(asked.length for asked in target.asked if asked.kind in ("append", "put"))


@pytest.mark.parametrize("chunked", [True, False])
def test_a_copy_keeps_every_digest(made: Made, source: MemoryRepository, chunked: bool) -> None:
    target = MemoryRepository("memory/target", SinkFacts(chunked=chunked, chunk_bytes=CHUNK_BYTES))
    report = copied(source, target)
    check_equal(made, target)
    total = sum(len(data) for data in made.blobs.values())
    assert (report.blobs, report.total_bytes, report.sent_bytes) == (len(made.blobs), total, total)
    if chunked:
        assert max(asked.length for asked in target.asked if asked.kind == "append") == CHUNK_BYTES


def test_what_is_there_is_not_sent(made: Made, source: MemoryRepository, target: MemoryRepository) -> None:
    pack = made.packs[1]
    target.add(pack)
    report = copied(source, target)
    check_equal(made, target)
    assert report.present_bytes == len(pack)
    assert sent(target) == report.sent_bytes == report.total_bytes - len(pack)
    target.asked.clear()
    again = copied(source, target)
    assert sent(target) == again.sent_bytes == 0


def test_a_blob_of_the_wrong_length_is_sent_again(
    made: Made, source: MemoryRepository, target: MemoryRepository
) -> None:
    """As a registry that kept a torn upload."""
    target.blobs[made.manifest.packs[0].digest] = b""
    copied(source, target)
    check_equal(made, target)


def test_blobs_are_mounted_within_a_registry(made: Made, source: MemoryRepository, target: MemoryRepository) -> None:
    target.siblings["ml/source"] = source
    report = copied(source, target, mount_from="ml/source")
    check_equal(made, target)
    assert report.mounted_bytes == report.total_bytes
    assert sent(target) == 0


@pytest.mark.parametrize("refused", [False, True])
def test_what_cannot_be_mounted_is_sent(
    made: Made, source: MemoryRepository, target: MemoryRepository, refused: bool
) -> None:
    if refused:
        target.fail("mount", Forbidden("no"), times=None)
    report = copied(source, target, mount_from="another")
    check_equal(made, target)
    assert report.sent_bytes == report.total_bytes


@pytest.mark.parametrize("after", [0, 1, 5, 20, 40])
def test_an_interrupted_copy_goes_on(
    made: Made, source: MemoryRepository, target: MemoryRepository, tmp_path: Path, after: int
) -> None:
    target.fail("append", Unreachable("gone"), skip=after, times=None)
    with pytest.raises(Unreachable):
        copied(source, target, journal_folder=tmp_path)
    before = [asked for asked in target.asked if asked.kind == "append"][:after]
    before += [asked for asked in target.asked if asked.kind == "put" and Digest.parse(asked.subject) in target.blobs]
    target.heal()
    target.asked.clear()
    report = copied(source, target, journal_folder=tmp_path)
    check_equal(made, target)
    assert sum(asked.length for asked in before) + sent(target) == report.total_bytes
    assert list(tmp_path.iterdir()) == []


def test_without_a_journal_no_session_is_left(source: MemoryRepository, target: MemoryRepository) -> None:
    target.fail("append", Unreachable("gone"), skip=3, times=None)
    with pytest.raises(Unreachable):
        copied(source, target)
    assert target.sessions == 0


def test_tokens_are_for_the_owner_alone(source: MemoryRepository, target: MemoryRepository, tmp_path: Path) -> None:
    target.fail("append", Unreachable("gone"), skip=3, times=None)
    with pytest.raises(Unreachable):
        copied(source, target, journal_folder=tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 1
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_lost_sessions_start_over(
    made: Made, source: MemoryRepository, target: MemoryRepository, tmp_path: Path
) -> None:
    target.fail("append", Unreachable("gone"), skip=9, times=None)
    with pytest.raises(Unreachable):
        copied(source, target, journal_folder=tmp_path)
    target.heal()
    target.lose_sessions()
    copied(source, target, journal_folder=tmp_path)
    check_equal(made, target)
    assert list(tmp_path.iterdir()) == []


def test_a_session_lost_in_the_middle(made: Made, source: MemoryRepository, target: MemoryRepository) -> None:
    events: list[TonneError] = []
    target.fail("append", SessionLost("forgotten"), skip=4, times=2)
    report = copied(source, target, on_event=events.append)
    check_equal(made, target)
    assert [event.code for event in events] == ["missing.session"] * 2
    assert sent(target) >= report.sent_bytes > report.total_bytes - 4 * CHUNK_BYTES
    target.fail("append", SessionLost("forgotten"), times=None)
    target.blobs.clear()
    with pytest.raises(SessionLost):
        copy(source, "v1", target, "v2", Silent())


def test_a_resumed_part_that_is_wrong_is_sent_again(
    made: Made, source: MemoryRepository, target: MemoryRepository, tmp_path: Path
) -> None:
    pack = made.manifest.packs[0]
    upload = target.start(Deadline())
    upload.append(memoryview(bytes(CHUNK_BYTES)), Deadline())
    journal = CopyJournal(tmp_path, made.document.digest, target.origin)
    journal.uploads.keep(note_key(pack.digest), upload.token)
    journal.close()
    events: list[TonneError] = []
    copied(source, target, journal_folder=tmp_path, on_event=events.append)
    check_equal(made, target)
    assert any(isinstance(event, Corrupt) for event in events)


def test_a_session_longer_than_the_blob(
    made: Made, source: MemoryRepository, target: MemoryRepository, tmp_path: Path
) -> None:
    upload = target.start(Deadline())
    upload.append(memoryview(bytes(1 << 20)), Deadline())
    journal = CopyJournal(tmp_path, made.document.digest, target.origin)
    journal.uploads.keep(note_key(made.manifest.packs[0].digest), upload.token)
    journal.close()
    copied(source, target, journal_folder=tmp_path)
    check_equal(made, target)


def test_two_copies_at_once(made: Made, source: MemoryRepository, target: MemoryRepository, tmp_path: Path) -> None:
    journal = CopyJournal(tmp_path, made.document.digest, target.origin)
    with pytest.raises(Locked):
        copied(source, target, journal_folder=tmp_path)
    journal.close()
    copied(source, target, journal_folder=tmp_path)


@pytest.mark.parametrize("chunked", [True, False])
def test_wrong_bytes_are_not_committed(made: Made, source: MemoryRepository, chunked: bool) -> None:
    target = MemoryRepository("memory/target", SinkFacts(chunked=chunked, chunk_bytes=CHUNK_BYTES))
    pack = made.manifest.packs[0]
    source.flip(pack.digest, 10_000, times=99)
    with pytest.raises(CorruptBytes) as raised:
        copied(source, target)
    assert raised.value.where == "memory/source"
    assert pack.digest not in target.blobs
    assert "v2" not in target.named
    assert target.sessions == 0


def test_a_blob_that_the_target_loses_is_sent_again(
    made: Made, source: MemoryRepository, target: MemoryRepository
) -> None:
    lost = made.manifest.packs[0].digest
    losses = [lost]

    def lose(asked: Asked) -> None:
        if asked.kind == "put_manifest" and losses:
            del target.blobs[losses.pop()]

    target.on_call = lose
    events: list[TonneError] = []
    copy(source, "v1", target, "v2", Silent(), on_event=events.append)
    check_equal(made, target)
    assert [event.code for event in events] == [MissingBlob.code]


def test_a_manifest_that_was_not_stored_is_seen(source: MemoryRepository, target: MemoryRepository) -> None:
    def lie(asked: Asked) -> None:
        if asked.kind == "manifest":
            target.named.clear()

    target.on_call = lie
    with pytest.raises(ProtocolError):
        copied(source, target)


def _foreign(source: MemoryRepository, document: dict[str, object], media_type: str) -> Document:
    data = json.dumps(document).encode()
    stored = Document(data, media_type, Digest.of(data))
    source.manifests[stored.digest] = stored
    source.named["v1"] = stored.digest
    return stored


@pytest.mark.parametrize("media_type", [MANIFEST_TYPE, DOCKER_MANIFEST_TYPE])
def test_other_images_are_copied_too(media_type: str, target: MemoryRepository) -> None:
    source = MemoryRepository()
    config, layer = source.add(b"{}"), source.add(b"layer")
    described = {"mediaType": "application/x", "size": layer.size_bytes, "digest": str(layer.digest)}
    elsewhere = {**described, "digest": str(Digest.of(b"elsewhere")), "urls": ["https://example.com/x"]}
    document = _foreign(
        source,
        {
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": {"mediaType": "application/y", "size": 2, "digest": str(config.digest)},
            "layers": [described, described, elsewhere],
        },
        media_type,
    )
    report = copied(source, target)
    assert target.named["v2"] == document.digest
    assert target.manifests[document.digest] == document
    assert report.blobs == 2


@pytest.mark.parametrize(
    "document", [{"schemaVersion": 2, "manifests": []}, {"schemaVersion": 1, "fsLayers": []}], ids=["index", "schema1"]
)
def test_indexes_are_refused(document: dict[str, object], target: MemoryRepository) -> None:
    source = MemoryRepository()
    _foreign(source, document, INDEX_TYPE)
    with pytest.raises(ForeignManifest) as raised:
        copied(source, target)
    assert "skopeo" in raised.value.next


def test_limits_are_checked_before_anything_moves(source: MemoryRepository) -> None:
    for facts in (SinkFacts(blob_bytes_max=1000), SinkFacts(manifest_bytes_max=100)):
        target = MemoryRepository("memory/target", facts)
        with pytest.raises(TooLarge):
            copied(source, target)
        assert sent(target) == 0


def test_rights_are_checked_before_anything_moves(source: MemoryRepository, target: MemoryRepository) -> None:
    target.fail("check_rights", Forbidden("no"))
    with pytest.raises(Forbidden):
        copied(source, target)
    assert sent(target) == 0


def test_names_that_cannot_be(made: Made, source: MemoryRepository, target: MemoryRepository) -> None:
    with pytest.raises(UsageError) as raised:
        copy(source, "v1", target, str(Digest.of(b"another")), Silent())
    assert not isinstance(raised.value, BadReference)
    with pytest.raises(MissingManifest):
        copy(source, "v9", target, "v2", Silent())
    copy(source, "v1", target, str(made.document.digest), Silent())
    assert made.document.digest in target.manifests
