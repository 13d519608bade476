"""A packing that was cut off at any call goes on, sends nothing twice that was acknowledged, and ends the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.image.packing import MIB, SMALL_CHUNKS, Bench, check_equal, check_format, noise
from tonne.errors import Forbidden, Interrupted, MissingBlob, SessionLost, SourceChanged, Unreachable
from tonne.image.blob_copy import RESTARTS_MAX
from tonne.model.frame import FRAME_BYTES
from tonne.source.memory import Asked, MemoryRepository
from tonne.source.seam import SinkFacts

CALLS = ["facts", "check_rights", "manifest", "start", "append", "finish", "has", "put", "put_manifest"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Some 60 MiB that do not pack, in two lanes: a pack takes one frame and a small one."""
    top = tmp_path / "model"
    top.mkdir()
    (top / "weights").write_bytes(noise(13 * FRAME_BYTES + 100, 1))
    for place in range(12):
        (top / f"small-{place}").write_bytes(noise(300_000, 50 + place))
    return top


class Cut:
    """The network is gone from the n-th call on."""

    def __init__(self, bench: Bench, after: int) -> None:
        self.left = after
        bench.repository.on_call = self

    def __call__(self, asked: Asked) -> None:
        self.left -= 1
        if self.left < 0:
            raise Unreachable("the network is gone", where="memory")


def calls_of(bench: Bench, tree: Path) -> int:
    bench.pack(tree)
    return len(bench.repository.asked)


def test_cut_off_at_any_call(tmp_path: Path, tree: Path) -> None:
    whole = Bench(tmp_path / "whole")
    total = calls_of(whole, tree)
    expected = whole.image().digest
    everything = whole.bytes_of("append") + whole.bytes_of("put")
    assert total > 60
    points = sorted({*range(6), *random.Random(7).sample(range(6, total), 10), total - 4, total - 2, total - 1})
    for point in points:
        bench = Bench(tmp_path / f"cut-{point}")
        Cut(bench, point)
        with pytest.raises(Unreachable):
            bench.pack(tree)
        assert not bench.repository.manifests or point >= total - 2
        bench.repository.on_call = None
        acknowledged = bench.bytes_of("append")
        result = bench.pack(tree)
        assert result.digest == expected, point
        # `asked` is written before the cut raises, so each lane may count one chunk that never arrived.
        sent = bench.bytes_of("append") + bench.bytes_of("put")
        assert sent <= everything + 4 * MIB + whole.bytes_of("put"), point
        assert result.sent_bytes <= everything - acknowledged + 4 * MIB + whole.bytes_of("put"), point
        check_format(bench.image(), bench.repository)
        assert bench.repository.sessions == 0, point
        assert not bench.journals.exists(), point


def test_what_was_finished_is_not_encoded_again(bench: Bench, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.repository.fail("put_manifest", Unreachable("gone"), times=1)
    with pytest.raises(Unreachable):
        bench.pack(tree)
    before = bench.bytes_of("append")

    def refuse(*args: object) -> None:
        raise AssertionError("a frame was encoded again")

    monkeypatch.setattr("tonne.image.pack.cell.Cell.encode", refuse)
    result = bench.pack(tree)
    assert result.resumed
    assert bench.bytes_of("append") == before
    check_equal(bench.image(), tree)


def test_the_network_is_gone_many_times(bench: Bench, tmp_path: Path, tree: Path) -> None:
    whole = Bench(tmp_path / "whole")
    whole.pack(tree)
    for _ in range(200):
        Cut(bench, 30)
        try:
            bench.pack(tree)
            break
        except Unreachable:
            continue
        finally:
            bench.repository.on_call = None
    else:
        pytest.fail("no progress")
    assert bench.image().digest == whole.image().digest


def test_a_session_that_is_lost_in_the_middle_is_made_good(bench: Bench, tmp_path: Path, tree: Path) -> None:
    whole = Bench(tmp_path / "whole")
    whole.pack(tree)
    for kind, skip in (("append", 3), ("append", 9), ("finish", 0), ("finish", 2)):
        once = Bench(tmp_path / f"{kind}-{skip}")
        once.repository.fail(kind, SessionLost("forgotten"), skip=skip)
        assert once.pack(tree).digest == whole.image().digest
        check_format(once.image(), once.repository)


def test_sessions_that_are_lost_between_two_runs(bench: Bench, tmp_path: Path, tree: Path) -> None:
    whole = Bench(tmp_path / "whole")
    whole.pack(tree)
    Cut(bench, 30)
    with pytest.raises(Unreachable):
        bench.pack(tree)
    bench.repository.on_call = None
    bench.repository.lose_sessions()
    assert bench.pack(tree).digest == whole.image().digest


def test_a_registry_that_forgets_every_session_is_an_error(bench: Bench, tree: Path) -> None:
    bench.repository.fail("append", SessionLost("forgotten"), skip=2, times=None)
    with pytest.raises(SessionLost):
        bench.pack(tree)
    assert bench.count("append") <= 3 + 4 * (RESTARTS_MAX + 1)


def test_a_finished_pack_that_the_registry_lost_is_sent_again(bench: Bench, tree: Path) -> None:
    bench.repository.fail("put_manifest", Unreachable("gone"), times=1)
    with pytest.raises(Unreachable):
        bench.pack(tree)
    packs = [digest for digest, data in bench.repository.blobs.items() if len(data) > 4 * MIB]
    assert len(packs) > 3
    for digest in packs[::2]:
        del bench.repository.blobs[digest]
    bench.pack(tree)
    check_equal(bench.image(), tree)
    check_format(bench.image(), bench.repository)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_blobs_that_the_registry_lost_before_the_manifest(
    tmp_path: Path, tree: Path, named: bool, chunked: bool
) -> None:
    whole = Bench(tmp_path / "whole")
    whole.pack(tree)
    bench = Bench(tmp_path / "b", MemoryRepository(facts=SinkFacts(chunked=chunked, chunk_bytes=MIB)))

    def lose(asked: Asked) -> None:
        if asked.kind == "put_manifest":
            bench.repository.on_call = None
            for digest in list(bench.repository.blobs)[::2]:
                del bench.repository.blobs[digest]
            if not named:
                raise MissingBlob("MANIFEST_BLOB_UNKNOWN", where="memory")

    bench.repository.on_call = lose
    assert bench.pack(tree).digest == whole.image().digest
    assert bench.count("put_manifest") == 2
    check_format(bench.image(), bench.repository)


def test_a_registry_that_never_finds_its_blobs_is_an_error(bench: Bench, tree: Path) -> None:
    bench.repository.fail("put_manifest", MissingBlob("MANIFEST_BLOB_UNKNOWN"), times=None)
    with pytest.raises(MissingBlob):
        bench.pack(tree)


def test_another_input_starts_over_and_cancels_the_sessions(bench: Bench, tree: Path) -> None:
    Cut(bench, 30)
    with pytest.raises(Unreachable):
        bench.pack(tree)
    bench.repository.on_call = None
    assert bench.repository.sessions > 0
    (tree / "small-3").write_bytes(b"something else")
    result = bench.pack(tree)
    assert not result.resumed
    check_equal(bench.image(), tree)
    assert bench.repository.sessions == 0


def test_other_options_start_over(bench: Bench, tree: Path) -> None:
    Cut(bench, 30)
    with pytest.raises(Unreachable):
        bench.pack(tree)
    bench.repository.on_call = None
    assert not bench.pack(tree, exclude=("small-3",)).resumed


def test_content_that_changed_in_secret_starts_over(bench: Bench, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the time stamps of a file system lie: the journal fits, what it holds does not."""
    bench.repository.fail("put_manifest", Unreachable("gone"), times=1)
    with pytest.raises(Unreachable):
        bench.pack(tree)
    fingerprint = "tonne.image.pack.tree.ScannedTree.fingerprint"
    (tree / "weights").write_bytes(noise(13 * FRAME_BYTES + 100, 2))
    with monkeypatch.context() as patched:
        patched.setattr(fingerprint, lambda self: bytes(32))
        bench.repository.fail("put_manifest", Unreachable("gone"), times=1)
        with pytest.raises(Unreachable):
            bench.pack(tree)
        (tree / "weights").write_bytes(noise(13 * FRAME_BYTES + 100, 3))
        bench.pack(tree)
    check_equal(bench.image(), tree)
    assert not bench.journals.exists()


def test_a_source_that_changes_under_a_pack_that_is_made_again(bench: Bench, tree: Path) -> None:
    """The file was read and closed; a session is lost after that, and the file is another one now."""

    def change(asked: Asked) -> None:
        if asked.kind == "put_manifest":
            bench.repository.on_call = None
            (tree / "weights").write_bytes(noise(13 * FRAME_BYTES + 100, 9))
            for digest in list(bench.repository.blobs):
                del bench.repository.blobs[digest]

    bench.repository.on_call = change
    with pytest.raises(SourceChanged, match="weights"):
        bench.pack(tree)
    assert not bench.repository.manifests


def test_no_right_to_push_is_found_before_the_scan(bench: Bench, tree: Path) -> None:
    bench.repository.fail("check_rights", Forbidden("no"))
    (tree / "weights").unlink()
    with pytest.raises(Forbidden):
        bench.pack(tree)
    assert bench.count("start") == 0


def test_an_interrupt_leaves_the_journal(bench: Bench, tree: Path) -> None:
    def interrupt(asked: Asked) -> None:
        if asked.kind == "append" and bench.count("append") > 5:
            raise Interrupted("stopped")

    bench.repository.on_call = interrupt
    with pytest.raises(Interrupted):
        bench.pack(tree)
    bench.repository.on_call = None
    assert bench.journals.exists()
    assert not list(bench.journals.glob("*/scratch"))
    assert bench.pack(tree).resumed


def test_tokens_are_for_the_owner_alone(bench: Bench, tree: Path) -> None:
    Cut(bench, 30)
    with pytest.raises(Unreachable):
        bench.pack(tree)
    folders = [path for path in bench.journals.iterdir() if path.is_dir()]
    assert [path.stat().st_mode & 0o077 for path in folders] == [0]
    notes = list(folders[0].glob("uploads/lane-*"))
    assert notes
    assert all(path.stat().st_mode & 0o077 == 0 for path in notes)


def test_one_request_a_blob(tmp_path: Path, tree: Path) -> None:
    bench = Bench(tmp_path / "b", MemoryRepository(facts=SinkFacts(chunked=False)))
    bench.repository.fail("put", Unreachable("gone"), skip=2)
    with pytest.raises(Unreachable):
        bench.pack(tree)
    stored = set(bench.repository.blobs)
    bench.pack(tree)
    again = [asked.subject for asked in bench.repository.asked if asked.kind == "put"]
    assert all(again.count(str(digest)) == 1 for digest in stored)
    whole = Bench(tmp_path / "whole", MemoryRepository(facts=SMALL_CHUNKS))
    assert whole.pack(tree).digest == bench.image().digest
