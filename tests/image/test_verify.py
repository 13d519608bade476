"""Verify: whatever is wrong is found and named, whatever is right is not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

import tonne.image.verify
import tonne.image.verify_frames
from tests.image.sketch import Made, make, put
from tonne.clock import Deadline
from tonne.errors import Interrupted, MissingPath, ShortBody, Unreachable
from tonne.image.match import Selection
from tonne.image.opening import open_image
from tonne.image.pull import pull
from tonne.image.verify import _hash_zeros, verify_blobs, verify_image, verify_sample
from tonne.image.verify_folder import verify_folder
from tonne.image.verify_frames import Finding, Verdict, VerifyReport
from tonne.image.workers import Halt
from tonne.model import Blob, Digest, Entry, Extent
from tonne.progress import Silent
from tonne.settings import NetworkSettings, ReadSettings, Settings
from tonne.source.memory import MemoryRepository

TREE = r"""
    frame 4096
    lanes 3
    dir a
    dir a/empty
    file a/large seed:1:100000
    file a/small1 text:one
    file a/small2 text:two
    file a/nothing -
    file a/sparse hole:20000+seed:2:5000+hole:3000
    file "caf\xe9" text:latin
    link a/link small1
    hard again a/large
"""
SETTINGS = Settings(network=NetworkSettings(request_bytes=16384, connections=3), read=ReadSettings(whole_index_bytes=0))


@pytest.fixture
def made() -> Made:
    return make(TREE)


@pytest.fixture
def repository(made: Made) -> MemoryRepository:
    return repository_of(made)


def repository_of(made: Made) -> MemoryRepository:
    repository = MemoryRepository("memory/here")
    put(repository, made)
    return repository


def checked(repository: MemoryRepository, store: object = None) -> tuple[VerifyReport, dict[bytes, Verdict]]:
    verdicts: dict[bytes, Verdict] = {}

    def on_file(verdict: Verdict) -> None:
        assert verdict.path not in verdicts
        verdicts[verdict.path] = verdict

    image = open_image(repository, "v1", SETTINGS, Deadline())
    return verify_image(image, SETTINGS, Silent(), on_file, store), verdicts  # type: ignore[arg-type]


def test_a_good_image(made: Made, repository: MemoryRepository) -> None:
    report, verdicts = checked(repository)
    assert report.good
    assert report.frames_checked == report.frames == len(made.frames)
    assert report.stored_bytes == sum(frame.stored_bytes for frame in made.frames)
    files = {path for path, entry in zip(made.paths, made.entries, strict=True) if entry.is_file and entry.links == 1}
    first = made.paths[made.entry(b"again").inode - 1]
    assert set(verdicts) == files | {first}
    assert all(verdict.good for verdict in verdicts.values())
    assert report.files_checked == len(verdicts)


def test_a_flipped_bit_is_named(made: Made, repository: MemoryRepository) -> None:
    inode = made.entry(b"a/large").inode
    extent = made.extents[inode][3]
    frame = made.frames[extent.frame or 0]
    pack = made.manifest.packs[frame.pack].digest
    repository.flip(pack, frame.offset + 11, times=99)
    report, verdicts = checked(repository)
    assert report.findings == [
        Finding(
            what="frame",
            why="the stored bytes have the wrong digest",
            path=made.paths[inode - 1],
            file_offset=extent.file_offset,
            frame=frame.number,
            pack=str(pack),
            pack_offset=frame.offset,
            length=frame.stored_bytes,
            origin="memory/here",
        )
    ]
    assert [path for path, verdict in verdicts.items() if not verdict.good] == [made.paths[inode - 1]]
    assert (report.files_bad, report.findings_count, report.good) == (1, 1, False)
    assert report.frames_checked == len(made.frames)


def test_a_bit_flipped_once_on_the_wire_is_none(made: Made, repository: MemoryRepository) -> None:
    repository.flip(made.manifest.packs[0].digest, 5, times=1)
    assert checked(repository)[0].good


def test_a_lost_pack(made: Made, repository: MemoryRepository) -> None:
    lost = made.manifest.packs[1].digest
    del repository.blobs[lost]
    report, verdicts = checked(repository)
    assert {finding.pack for finding in report.findings} == {str(lost)}
    in_pack = {frame.number for frame in made.frames if frame.pack == 1}
    assert {finding.frame for finding in report.findings} == in_pack
    assert not all(verdict.good for verdict in verdicts.values())


def test_all_that_is_wrong_is_counted_and_only_so_much_kept(
    made: Made, repository: MemoryRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pack in made.manifest.packs:
        del repository.blobs[pack.digest]
    whole, verdicts = checked(repository)
    sample = sampled(repository, share=1.0)
    monkeypatch.setattr(tonne.image.verify, "FILE_FINDINGS_MAX", 3)
    monkeypatch.setattr(tonne.image.verify, "FINDINGS_MAX", 7)
    monkeypatch.setattr(tonne.image.verify_frames, "FINDINGS_MAX", 7)
    few, few_verdicts = checked(repository)
    for path, verdict in verdicts.items():
        assert few_verdicts[path].findings == verdict.findings[:3]
        assert few_verdicts[path].findings_more == len(verdict.findings) - len(few_verdicts[path].findings)
        assert few_verdicts[path].good == verdict.good
    assert max(verdict.findings_more for verdict in few_verdicts.values()) > 10
    assert (few.findings_count, few.files_bad) == (whole.findings_count, whole.files_bad)
    assert len(few.findings) == 7
    few = sampled(repository, share=1.0)
    assert few.findings_count == sample.findings_count > len(made.frames)
    assert few.findings == sample.findings[:7]


def test_a_hole_of_any_size_is_left_when_the_check_is_stopped() -> None:
    halt = Halt()
    timer = threading.Timer(0.2, halt.stop)
    timer.start()
    with pytest.raises(Interrupted):
        _hash_zeros(blake3(), 1 << 62, halt)
    timer.join()


def test_blobs_that_were_cut_short(made: Made, repository: MemoryRepository) -> None:
    image = open_image(repository, "v1", SETTINGS, Deadline())
    report = VerifyReport()
    repository.fail("read", ShortBody("the blob ends early"), times=None)
    verify_blobs(image, SETTINGS, Silent(), report)
    assert {finding.pack for finding in report.findings} == {str(digest) for digest in made.blobs}
    assert {finding.why for finding in report.findings} == {"the blob ends early"}


def test_a_source_that_cannot_be_read_is_an_error(repository: MemoryRepository) -> None:
    repository.fail("read", Unreachable("gone"), skip=8, times=None)
    with pytest.raises(Unreachable):
        checked(repository)


def test_frames_that_no_file_uses_are_checked(made: Made) -> None:
    """As in packs of an older version that are listed again."""

    def change(extents: dict[int, list[Extent]]) -> None:
        mine = extents[made.entry(b"a/large").inode]
        mine[5] = replace(mine[5], frame=mine[4].frame)  # so the file is wrong, and the frame is in no file

    made = make(TREE, change_extents=change)
    repository = repository_of(made)
    unused = next(number for number in range(len(made.frames)) if not _uses(made, number))
    frame = made.frames[unused]
    repository.flip(made.manifest.packs[frame.pack].digest, frame.offset, times=99)
    report, _ = checked(repository)
    assert report.frames_checked == len(made.frames)
    found = [finding for finding in report.findings if finding.frame == unused]
    assert len(found) == 1
    assert found[0].path is None


def _uses(made: Made, number: int) -> bool:
    return any(extent.frame == number for extents in made.extents.values() for extent in extents)


@pytest.mark.parametrize(
    ("name", "digest"), [(b"small1", bytes(32)), (b"nothing", bytes(32)), (b"large", bytes(32)), (b"sparse", bytes(32))]
)
def test_a_tree_that_lies_about_a_file(name: bytes, digest: bytes) -> None:
    def change(entries: list[Entry]) -> None:
        for place, entry in enumerate(entries):
            if entry.name == name or (name == b"large" and entry.name == b"again"):
                entries[place] = replace(entry, digest=digest)

    report, verdicts = checked(repository_of(make(TREE, change)))
    bad = [verdict for verdict in verdicts.values() if not verdict.good]
    assert len(bad) == 1
    assert bad[0].findings[0].what == "file"
    assert report.findings_count == 1


class OneBlobStore:
    """Holds a pack's bytes, one of them changed."""

    def __init__(self, blob: Blob, data: bytes) -> None:
        self.digest = blob.digest
        self.data = data
        self.dropped: list[tuple[int, int]] = []

    def blob(self, blob: Blob) -> OneBlobStore:
        self.asked = blob.digest
        return self

    def read(self, offset: int, out: memoryview) -> bool:
        if self.asked != self.digest:
            return False
        out[:] = self.data[offset : offset + len(out)]
        return True

    def write(self, offset: int, data: memoryview) -> None:
        raise AssertionError("verify keeps nothing")

    def drop(self, offset: int, length: int) -> None:
        self.dropped.append((offset, length))

    def document(self, digest: Digest) -> bytes | None:
        return None

    def keep_document(self, digest: Digest, data: bytes) -> None:
        raise AssertionError("verify keeps nothing")


def test_a_bad_frame_in_the_cache_is_named_and_dropped(made: Made) -> None:
    made = make(TREE.replace("lanes 3", "lanes 1"))
    frame = made.frames[7]
    data = bytearray(made.packs[0])
    data[frame.offset] ^= 1
    store = OneBlobStore(made.manifest.packs[0].blob, bytes(data))
    report, verdicts = checked(repository_of(made), store)
    assert [(finding.what, finding.frame, finding.origin) for finding in report.findings] == [
        ("cached frame", 7, "the local cache")
    ]
    assert store.dropped == [(frame.offset, frame.stored_bytes)]
    assert all(verdict.good for verdict in verdicts.values())


# --- samples and blobs ---


def sampled(repository: MemoryRepository, **options: object) -> VerifyReport:
    image = open_image(repository, "v1", SETTINGS, Deadline())
    return verify_sample(image, SETTINGS, Silent(), **options)  # type: ignore[arg-type]


def test_a_sample(made: Made, repository: MemoryRepository) -> None:
    report = sampled(repository, count=5)
    assert (report.frames_checked, report.frames, report.good) == (5, len(made.frames), True)
    assert sampled(repository, share=0.5).frames_checked == round(len(made.frames) / 2)
    assert sampled(repository, share=0.000001).frames_checked == 1
    assert sampled(repository, share=1.0).frames_checked == len(made.frames)
    assert sampled(repository, count=10**9).frames_checked == len(made.frames)


def test_a_seed_takes_the_same_sample_again(made: Made, repository: MemoryRepository) -> None:
    def frames(seed: int | None) -> tuple[int | None, set[tuple[str, int, int]]]:
        repository.asked.clear()
        report = sampled(repository, count=6, seed=seed)
        packs = {str(pack.digest) for pack in made.manifest.packs}
        return report.seed, {(a.subject, a.offset, a.length) for a in repository.asked if a.subject in packs}

    seed, first = frames(None)
    assert frames(seed) == (seed, first)
    assert any(frames(other)[1] != first for other in range(5))


def test_a_bad_frame_of_a_sample_is_named_with_its_files(made: Made, repository: MemoryRepository) -> None:
    extent = made.extents[made.entry(b"a/small1").inode][0]
    frame = made.frames[extent.frame or 0]
    repository.flip(made.manifest.packs[frame.pack].digest, frame.offset, times=99)
    report = sampled(repository, share=1.0)
    sharing = {made.paths[inode - 1] for inode, extents in made.extents.items() if extents[0].frame == extent.frame}
    assert len(sharing) > 1
    assert {finding.path for finding in report.findings} == sharing
    assert report.findings_count == len(sharing)


def test_whole_blobs(made: Made, repository: MemoryRepository) -> None:
    image = open_image(repository, "v1", SETTINGS, Deadline())
    report = VerifyReport()
    verify_blobs(image, SETTINGS, Silent(), report)
    assert (report.blobs_checked, report.good) == (len(made.blobs), True)
    pack = made.manifest.packs[0].digest
    # The salt in the trailer is in no frame: only the whole blob's digest can see it.
    repository.flip(pack, len(repository.blobs[pack]) - 60, times=99)
    del repository.blobs[made.manifest.config.digest]
    report = VerifyReport()
    verify_blobs(image, SETTINGS, Silent(), report)
    assert {finding.pack for finding in report.findings} == {str(pack), str(made.manifest.config.digest)}
    assert sampled(repository, share=1.0).good


# --- folders ---


@pytest.fixture
def folder(repository: MemoryRepository, tmp_path: Path) -> Path:
    pull(open_image(repository, "v1", SETTINGS, Deadline()), tmp_path / "pulled", SETTINGS, Silent())
    return tmp_path / "pulled"


def compared(repository: MemoryRepository, folder: Path, **options: object) -> tuple[VerifyReport, list[Verdict]]:
    verdicts: list[Verdict] = []
    index = open_image(repository, "v1", SETTINGS, Deadline()).index
    report = verify_folder(index, folder, Silent(), verdicts.append, **options)  # type: ignore[arg-type]
    return report, verdicts


def test_a_good_folder(made: Made, repository: MemoryRepository, folder: Path) -> None:
    report, verdicts = compared(repository, folder)
    assert report.good
    expected = {path for path, entry in zip(made.paths, made.entries, strict=True) if not entry.is_dir}
    assert {verdict.path for verdict in verdicts} == expected
    assert report.files_checked == len(expected)


def _set_mtime(path: Path) -> None:
    os.utime(path, ns=(0, path.lstat().st_mtime_ns + 1), follow_symlinks=False)


def _rewrite(path: Path, data: bytes) -> None:
    facts = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(0, facts.st_mtime_ns))


def _replace_by_copy(path: Path) -> None:
    facts, data = path.stat(), path.read_bytes()
    parent = path.parent.stat()
    path.unlink()
    path.write_bytes(data)
    path.chmod(facts.st_mode & 0o7777)
    os.utime(path, ns=(0, facts.st_mtime_ns))
    os.utime(path.parent, ns=(0, parent.st_mtime_ns))


def _relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("small2")


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILS: dict[str, tuple[str, Callable[[Path], object], set[str]]] = {
    "content": ("a/small1", lambda path: _rewrite(path, b"onE"), {"content"}),
    "size": ("a/small1", lambda path: _rewrite(path, b"longer"), {"size"}),
    "mode": ("a/small1", lambda path: path.chmod(0o600), {"mode"}),
    "folder mode": ("a/empty", lambda path: path.chmod(0o700), {"mode"}),
    "mtime": ("a/small1", _set_mtime, {"mtime"}),
    "link mtime": ("a/link", _set_mtime, {"mtime"}),
    "missing": ("a/small1", lambda path: path.unlink(), {"missing", "mtime"}),
    "extra": ("a/empty/new", lambda path: path.write_text("x"), {"extra", "mtime"}),
    "extra folder": ("a/empty/new", lambda path: path.mkdir(), {"extra", "mtime"}),
    "target": ("a/link", _relink, {"target", "mtime"}),
    "type": ("a/small1", _make_folder, {"type", "mtime"}),
    "link": ("again", _replace_by_copy, {"link"}),
    "sparse": ("a/sparse", lambda path: _rewrite(path, bytes(28000)), {"content"}),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_differs_is_named(repository: MemoryRepository, folder: Path, spoil: str) -> None:
    name, act, expected = SPOILS[spoil]
    act(folder / name)
    report, verdicts = compared(repository, folder)
    assert {finding.what for finding in report.findings} == expected
    assert not report.good
    path = os.fsencode(name)
    assert any(not verdict.good and verdict.path == path for verdict in verdicts) or spoil == "link"


def test_a_part_of_a_folder(repository: MemoryRepository, tmp_path: Path) -> None:
    image = open_image(repository, "v1", SETTINGS, Deadline())
    pull(image, tmp_path / "part", SETTINGS, Silent(), include=["small*"])
    assert compared(repository, tmp_path / "part", selection=Selection(["small*"]))[0].good
    whole, _ = compared(repository, tmp_path / "part")
    assert {finding.what for finding in whole.findings} == {"missing"}


def test_an_unfinished_pull_is_named(repository: MemoryRepository, folder: Path) -> None:
    (folder / ".tonne-pull").mkdir()
    report, _ = compared(repository, folder)
    assert "an unfinished pull" in [finding.why for finding in report.findings]


def test_no_folder(repository: MemoryRepository, tmp_path: Path) -> None:
    with pytest.raises(MissingPath):
        compared(repository, tmp_path / "absent")
