"""Pull: files equal to the image, whatever interrupts it, and never outside the folder."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.image.sketch import Made, make, put
from tonne.clock import Deadline
from tonne.codec.frames import Bytes, Decoder
from tonne.errors import (
    CorruptBytes,
    CorruptIndex,
    DiskFull,
    Locked,
    TargetExists,
    TonneError,
    Unreachable,
    UnsafePath,
)
from tonne.image import pull_files
from tonne.image.opening import Image, open_image
from tonne.image.pull import PullReport, pull
from tonne.image.pull_target import Target
from tonne.model import Codec, Entry, Kind
from tonne.progress import Silent
from tonne.settings import NetworkSettings, ReadSettings, Settings
from tonne.source.memory import MemoryRepository
from tonne.source.seam import Priority

TREE = r"""
    frame 4096
    lanes 3
    dir empty mode=750 mtime=1500000000.000000001
    dir a mode=755 mtime=1500000001.5
    dir a/b
    dir "a/b/with space"
    file a/b/exact seed:1:4096
    file a/b/more seed:2:4097 mode=600
    file a/b/less seed:3:4095
    file a/b/large seed:4:100000 mtime=1234567890.123456789
    file a/empty - mode=400
    file a/small1 text:one
    file a/small2 text:two user.key=00ff
    file a/setuid text:three mode=4755
    file "a/b/with space/caf\xe9" text:bytes
    file a/sparse hole:20000+seed:5:5000+hole:3000+seed:6:4096+hole:10000
    file a/allholes hole:50000
    file a/twice seed:7:8192
    file b-twice seed:7:8192
    link a/link ../a/small1 mtime=1400000000.7
    link outside /etc/passwd
    hard a/b/second a/small1
    hard again a/b/large
    hard again2 outside
"""


def settings_of(**network: object) -> Settings:
    return Settings(
        network=replace(NetworkSettings(request_bytes=16384, connections=4), **network),  # type: ignore[arg-type]
        read=ReadSettings(whole_index_bytes=0),
    )


@pytest.fixture
def made() -> Made:
    return make(TREE)


@pytest.fixture
def repository(made: Made) -> MemoryRepository:
    repository = MemoryRepository()
    put(repository, made)
    return repository


def opened(repository: MemoryRepository, settings: Settings | None = None) -> Image:
    return open_image(repository, "v1", settings or settings_of(), Deadline())


def pulled(repository: MemoryRepository, folder: Path, **options: object) -> PullReport:
    settings = settings_of()
    return pull(opened(repository, settings), folder, settings, Silent(), **options)  # type: ignore[arg-type]


def check_equal(made: Made, folder: Path, left_out: frozenset[bytes] = frozenset()) -> None:
    """The folder holds the image's entries and nothing else, with content and metadata."""
    root = os.fsencode(folder)
    found = {b""}
    for where, folders, files in os.walk(root):
        found |= {os.path.relpath(os.path.join(where, name), root) for name in folders + files}
    assert found == set(made.paths) - left_out
    by_inode: dict[int, int] = {}
    for path, entry in zip(made.paths, made.entries, strict=True):
        if path in left_out:
            continue
        full = os.path.join(root, path) if path else root
        facts = os.lstat(full)
        assert stat.S_IFMT(facts.st_mode) == int(entry.kind), path
        assert facts.st_mtime_ns == entry.mtime_ns, path
        if os.geteuid() == 0:
            assert (facts.st_uid, facts.st_gid) == (entry.uid, entry.gid)
        assert by_inode.setdefault(entry.inode, facts.st_ino) == facts.st_ino, path
        if entry.kind is Kind.SYMLINK:
            assert os.readlink(full) == entry.target
            continue
        assert stat.S_IMODE(facts.st_mode) == entry.permissions, path
        assert {(os.fsencode(name), os.getxattr(full, name)) for name in os.listxattr(full)} == set(entry.xattrs)
        if entry.kind is Kind.FILE:
            first = made.paths[entry.inode - 1] if made.paths[entry.inode - 1] in made.contents else path
            expected = made.contents.get(first)
            if expected is None:  # a hard link that stands before its first name in the text
                expected = next(made.contents[p] for p, e in zip(made.paths, made.entries, strict=True)
                                if e.inode == entry.inode and p in made.contents)  # fmt: skip
            with open(full, "rb") as file:
                assert file.read() == expected, path


def reads_of_packs(repository: MemoryRepository, made: Made) -> int:
    packs = {str(pack.digest) for pack in made.manifest.packs}
    return sum(asked.length for asked in repository.asked if asked.kind == "read" and asked.subject in packs)


def test_a_pull_makes_the_image(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    report = pulled(repository, tmp_path / "new" / "target")
    check_equal(made, tmp_path / "new" / "target")
    files = [entry for entry in made.entries if entry.is_file and entry.inode == entry.number]
    assert (report.files, report.entries) == (len(files), len(made.entries))
    assert report.content_bytes == report.made_bytes == sum(entry.size_bytes for entry in files)
    assert report.kept_files == report.found_bytes == 0
    assert report.digest == made.document.digest


def test_holes_stay_holes(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    text = "file sparse hole:4194304+seed:1:4096+hole:8388608"
    put(repository, make(text), "sparse")
    image = open_image(repository, "sparse", settings_of(), Deadline())
    pull(image, tmp_path, settings_of(), Silent())
    facts = (tmp_path / "sparse").stat()
    assert facts.st_size == 4194304 + 4096 + 8388608
    assert facts.st_blocks * 512 <= 65536


def test_neighbours_come_in_one_request_and_nothing_twice(
    made: Made, repository: MemoryRepository, tmp_path: Path
) -> None:
    pulled(repository, tmp_path)
    packs = {str(pack.digest) for pack in made.manifest.packs}
    reads = [asked for asked in repository.asked if asked.kind == "read" and asked.subject in packs]
    stored = sum(frame.stored_bytes for frame in made.frames)
    twice = sum(frame.stored_bytes for frame in made.frames if frame.raw_bytes == 4096) // 10  # `twice` is far apart
    assert stored <= sum(asked.length for asked in reads) <= stored + 2 * 8192 + twice
    assert max(asked.length for asked in reads) > 2 * 4096
    assert len(reads) < len(made.frames)


def test_a_second_pull_fetches_nothing(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    pulled(repository, tmp_path)
    repository.asked.clear()
    report = pulled(repository, tmp_path)
    assert reads_of_packs(repository, made) == 0
    assert (report.kept_files, report.made_bytes) == (report.files, 0)
    check_equal(made, tmp_path)


def test_a_file_that_is_gone_is_made_again(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    pulled(repository, tmp_path)
    (tmp_path / "a/b/more").unlink()
    (tmp_path / "a/link").unlink()
    repository.asked.clear()
    report = pulled(repository, tmp_path)
    assert report.made_bytes == 4097
    check_equal(made, tmp_path)


@pytest.mark.parametrize("spoil", ["foreign", "content", "kind", "target"])
def test_other_peoples_files_are_not_touched(
    made: Made, repository: MemoryRepository, tmp_path: Path, spoil: str
) -> None:
    pulled(repository, tmp_path)
    if spoil == "foreign":
        (tmp_path / "a" / "mine").write_text("mine")
    elif spoil == "content":
        (tmp_path / "a" / "small2").write_text("longer than it was")
    elif spoil == "kind":
        (tmp_path / "empty").rmdir()
        (tmp_path / "empty").write_text("x")
    else:
        (tmp_path / "outside").unlink()
        (tmp_path / "outside").symlink_to("elsewhere")
    before = _facts(tmp_path)
    with pytest.raises(TargetExists) as raised:
        pulled(repository, tmp_path)
    assert raised.value.fields["foreign"] + raised.value.fields["differing"] >= 1
    assert _facts(tmp_path) == before
    if spoil == "kind":
        with pytest.raises(TargetExists):
            pulled(repository, tmp_path, force=True)
        return
    pulled(repository, tmp_path, force=True)
    if spoil == "foreign":
        assert (tmp_path / "a" / "mine").read_text() == "mine"
        (tmp_path / "a" / "mine").unlink()
        os.utime(tmp_path / "a", ns=(0, made.entry(b"a").mtime_ns))
    check_equal(made, tmp_path)


def test_a_target_that_is_a_file(repository: MemoryRepository, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TargetExists):
        pulled(repository, tmp_path / "file")


def test_include_and_exclude(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    report = pulled(repository, tmp_path / "some", include=["a/b/", "small*"], exclude=["large", "caf?"])
    names = {os.fsencode(path.relative_to(tmp_path / "some")) for path in (tmp_path / "some").rglob("*")}
    assert names == {
        b"a",
        b"a/b",
        b"a/b/exact",
        b"a/b/more",
        b"a/b/less",
        b"a/b/second",
        b"a/b/with space",
        b"a/small1",
        b"a/small2",
    }
    assert report.files == 5
    assert report.entries == len(names) + 1
    assert (tmp_path / "some/a/small1").read_bytes() == b"one"
    assert (tmp_path / "some/a/b/second").samefile(tmp_path / "some/a/small1")
    # More of the same image may follow.
    pulled(repository, tmp_path / "some")
    check_equal(made, tmp_path / "some")


def test_a_later_name_of_a_hard_link_alone(repository: MemoryRepository, tmp_path: Path) -> None:
    report = pulled(repository, tmp_path, include=["/a/b/second"])
    assert (tmp_path / "a/b/second").read_bytes() == b"one"
    assert report.files == 1
    assert not (tmp_path / "a/small1").exists()


def test_nothing_matches(repository: MemoryRepository, tmp_path: Path) -> None:
    report = pulled(repository, tmp_path, include=["nothing-of-this-name"])
    assert (report.files, report.entries) == (0, 1)
    assert list(tmp_path.iterdir()) == []


def test_two_pulls_at_once(repository: MemoryRepository, tmp_path: Path) -> None:
    with Target.open(tmp_path), pytest.raises(Locked):
        pulled(repository, tmp_path)


@pytest.mark.parametrize("after", [0, 1, 2, 4, 7])
def test_an_interrupted_pull_goes_on(made: Made, repository: MemoryRepository, tmp_path: Path, after: int) -> None:
    index_reads = 6  # root and pages
    repository.fail("read", Unreachable("the network is gone"), skip=index_reads + after, times=None)
    with pytest.raises(Unreachable):
        pulled(repository, tmp_path)
    assert (tmp_path / ".tonne-pull").is_dir()
    reads = [asked for asked in repository.asked if asked.kind == "read"]
    assert len(reads) > index_reads + after, "the test needs a read that failed"
    first = sum(asked.length for asked in reads[index_reads : index_reads + after])
    repository.heal()
    repository.asked.clear()
    report = pulled(repository, tmp_path)
    check_equal(made, tmp_path)
    assert report.kept_bytes + report.found_bytes + report.made_bytes == report.content_bytes
    # What failed was in flight: at most a request for each connection.
    total = sum(frame.stored_bytes for frame in made.frames) + 2 * 8192
    assert first + reads_of_packs(repository, made) <= total + 5 * 16384


def test_bytes_without_a_record_are_checked(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    """As after kill -9: the unfinished file is there, nothing was recorded, and one frame is wrong."""
    inode = made.entry(b"a/b/large").inode
    content = bytearray(made.contents[b"a/b/large"])
    content[5000] ^= 1
    content[40960:] = bytes(len(content) - 40960)
    self_made = tmp_path / ".tonne-pull" / "files"
    self_made.mkdir(parents=True)
    (self_made / str(inode)).write_bytes(content)
    (tmp_path / ".tonne-pull" / "pull.json").write_text(json.dumps({"manifest": str(made.document.digest)}))
    report = pulled(repository, tmp_path)
    check_equal(made, tmp_path)
    assert report.found_bytes == 9 * 4096


def test_records_of_a_file_that_is_gone_are_not_believed(
    made: Made, repository: MemoryRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_files, "SYNC_BYTES", 1)
    repository.fail("read", Unreachable("the network is gone"), skip=14, times=None)
    with pytest.raises(Unreachable):
        pulled(repository, tmp_path)
    repository.heal()
    files = tmp_path / ".tonne-pull" / "files"
    left = list(files.iterdir())
    assert left, "the test needs an unfinished file"
    assert (tmp_path / ".tonne-pull" / "records").stat().st_size > 0
    for path in left:
        path.unlink()
    pulled(repository, tmp_path)
    check_equal(made, tmp_path)


def test_an_unfinished_pull_of_another_image(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    repository.fail("read", Unreachable("the network is gone"), skip=9, times=None)
    with pytest.raises(Unreachable):
        pulled(repository, tmp_path)
    repository.heal()
    put(repository, make("file other text:other"), "v1")
    with pytest.raises(TargetExists, match="another image"):
        pulled(repository, tmp_path)
    pulled(repository, tmp_path, force=True)
    assert (tmp_path / "other").read_text() == "other"
    assert not (tmp_path / ".tonne-pull").exists()


def test_wrong_bytes_are_never_written(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    frame = made.frames[made.extents[made.entry(b"a/b/large").inode][3].frame or 0]
    repository.flip(made.manifest.packs[frame.pack].digest, frame.offset + 7, times=99)
    events: list[TonneError] = []
    with pytest.raises(CorruptBytes):
        pulled(repository, tmp_path, on_event=events.append)
    assert events
    assert not (tmp_path / "a/b/large").exists()
    repository.heal()
    pulled(repository, tmp_path)
    check_equal(made, tmp_path)


def test_a_full_disk_is_seen_before(
    repository: MemoryRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "free_bytes", property(lambda self: 50_000))
    with pytest.raises(DiskFull) as raised:
        pulled(repository, tmp_path)
    assert raised.value.fields["free_bytes"] == 50_000
    assert raised.value.fields["need_bytes"] > 100_000
    assert list(tmp_path.iterdir()) == []


def test_holes_need_no_room(repository: MemoryRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(repository, make("file sparse hole:200000000+text:end"), "v1")
    monkeypatch.setattr(Target, "free_bytes", property(lambda self: 50_000))
    pulled(repository, tmp_path)
    assert (tmp_path / "sparse").stat().st_size == 200_000_003


def test_a_disk_that_fills_up(
    made: Made, repository: MemoryRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    room = [60_000]

    def write(descriptor: int, data: memoryview, offset: int) -> int:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(DiskFull):
        pulled(repository, tmp_path)
    monkeypatch.undo()
    report = pulled(repository, tmp_path)
    assert report.kept_bytes + report.found_bytes > 30_000
    check_equal(made, tmp_path)


def test_a_symlink_in_the_target_leads_nowhere(repository: MemoryRepository, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "a").symlink_to(elsewhere)
    for force in (False, True):
        with pytest.raises((UnsafePath, TargetExists)):
            pulled(repository, target, force=force)
    assert list(elsewhere.iterdir()) == []


def test_an_image_with_an_entry_below_a_symlink(tmp_path: Path) -> None:
    def change(entries: list[Entry]) -> None:
        number = next(place for place, entry in enumerate(entries) if entry.name == b"d")
        target = os.fsencode(tmp_path / "elsewhere")
        entries[number] = replace(
            entries[number], kind=Kind.SYMLINK, target=target, size_bytes=len(target), children=0, first_child=0
        )

    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UnsafePath):
        pulled(_repository(make("dir d\nfile d/f text:x", change)), tmp_path / "target")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_image_with_a_name_twice(tmp_path: Path) -> None:
    def change(entries: list[Entry]) -> None:
        number = next(place for place, entry in enumerate(entries) if entry.name == b"e")
        entries[number] = replace(entries[number], name=b"d")

    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UnsafePath):
        pulled(_repository(make(f"link d {tmp_path}/elsewhere\ndir e\nfile e/f text:x", change)), tmp_path / "target")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_image_with_a_hard_link_to_another_file(tmp_path: Path) -> None:
    def change(entries: list[Entry]) -> None:
        number = next(place for place, entry in enumerate(entries) if entry.name == b"b")
        entries[number] = replace(entries[number], inode=2)

    with pytest.raises(CorruptIndex):
        pulled(_repository(make("file a text:x\nfile b text:longer", change)), tmp_path / "target")


@pytest.mark.parametrize(
    "what",
    [
        {"permissions": 0o600},
        {"uid": 7},
        {"mtime_ns": 5},
        {"links": 1},
        {"links": 3},
        {"size_bytes": 2},
        {"digest": bytes(32)},
        {"xattrs": ((b"user.a", b"b"),)},
    ],
)
def test_a_hard_link_that_differs_in_more_than_its_name(tmp_path: Path, what: dict[str, Any]) -> None:
    def change(entries: list[Entry]) -> None:
        number = next(place for place, entry in enumerate(entries) if entry.name == b"b")
        entries[number] = replace(entries[number], **what)

    with pytest.raises(CorruptIndex, match="hard link"):
        pulled(_repository(make("file a text:x\nhard b a", change)), tmp_path / "target")


def _facts(folder: Path) -> dict[Path, tuple[int, ...]]:
    return {
        path: (facts.st_ino, facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        for path in folder.rglob("*")
        for facts in [path.lstat()]
    }


def _repository(made: Made) -> MemoryRepository:
    repository = MemoryRepository()
    put(repository, made)
    return repository


def test_state_that_cannot_be_read(repository: MemoryRepository, tmp_path: Path) -> None:
    (tmp_path / ".tonne-pull").mkdir()
    (tmp_path / ".tonne-pull" / "pull.json").write_text("{")
    with pytest.raises(TargetExists):
        pulled(repository, tmp_path)


def test_content_that_is_not_what_the_tree_says(tmp_path: Path) -> None:
    """Frames and extents are consistent, but a file's digest is of something else: written wrongly or to do harm."""

    def change(entries: list[Entry]) -> None:
        entries[1] = replace(entries[1], digest=bytes(32))

    repository = _repository(make("file f text:content", change))
    with pytest.raises(CorruptIndex):
        pulled(repository, tmp_path)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("index_bytes", [0, 1 << 20])
def test_the_index_is_kept_while_the_pull_goes(
    made: Made, repository: MemoryRepository, tmp_path: Path, index_bytes: int
) -> None:
    settings = replace(
        settings_of(), read=ReadSettings(whole_index_bytes=index_bytes, page_cache_bytes=1 + index_bytes)
    )
    pull(opened(repository, settings), tmp_path, settings, Silent())
    check_equal(made, tmp_path)
    pages = str(made.manifest.pages.digest)
    got = [asked for asked in repository.asked if asked.kind == "read" and asked.subject == pages]
    assert sum(asked.length for asked in got) <= 2 * len(made.pages)


def test_packs_are_asked_in_the_background(made: Made, repository: MemoryRepository, tmp_path: Path) -> None:
    pulled(repository, tmp_path)
    packs = {str(pack.digest) for pack in made.manifest.packs}
    asked = [item for item in repository.asked if item.kind == "read" and item.subject in packs]
    assert asked
    assert {item.priority for item in asked} == {Priority.BACKGROUND}


def test_a_part_reads_its_part_of_the_index(tmp_path: Path) -> None:
    made = make(
        "level 0\nframe 1024\nfile big seed:1:5000000\nfile last seed:2:3000\nfile some seed:3:5000000", page_bytes=1024
    )
    repository = _repository(made)
    pulled(repository, tmp_path, include=["last"])
    assert (tmp_path / "last").read_bytes() == made.contents[b"last"]
    pages = str(made.manifest.pages.digest)
    got = sum(asked.length for asked in repository.asked if asked.kind == "read" and asked.subject == pages)
    assert got < len(made.pages) / 4


def test_attributes_of_what_its_owner_may_not_write(tmp_path: Path) -> None:
    entry = Entry(2, 1, 2, b"x", Kind.FILE, 0o444, os.getuid(), os.getgid(), 1, 0, xattrs=((b"user.key", b"value"),))
    path = tmp_path / "x"
    path.touch(0o600)
    uid = os.geteuid()
    told: list[TonneError] = []
    if uid == 0:  # root may always
        os.chown(path, 65534, 65534)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        if uid == 0:
            os.seteuid(65534)
        pull_files.Attributes(told.append).give(descriptor, entry, b"x")
    finally:
        os.seteuid(uid)
        os.close(descriptor)
    assert not told
    assert os.getxattr(path, b"user.key") == b"value"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_what_a_decoder_makes_wrong_never_lands(
    tmp_path: Path, repository: MemoryRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(f"frame 4096\nfile large text:{'ab' * 5000}\n")
    put(repository, made)
    assert any(frame.codec == Codec.ZSTD for frame in made.frames)
    decode = Decoder.decode

    def wrong(self: Decoder, codec: int, stored: Bytes, raw_bytes: int, parameters: int = 0) -> Bytes:
        content = bytearray(decode(self, codec, stored, raw_bytes, parameters))
        content[-1] ^= codec == Codec.ZSTD
        return content

    monkeypatch.setattr(Decoder, "decode", wrong)
    with pytest.raises(CorruptIndex, match="not what the index says"):
        pull(opened(repository), tmp_path / "to", settings_of(), Silent())
    assert not (tmp_path / "to" / "large").exists()
    monkeypatch.setattr(Decoder, "decode", decode)
    pull(opened(repository), tmp_path / "to", settings_of(), Silent())
    assert (tmp_path / "to" / "large").read_bytes() == b"ab" * 5000
