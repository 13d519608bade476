"""A folder becomes an image, and is the same when it is read back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.image.packing import FOREVER, MIB, SMALL_CHUNKS, Bench, check_equal, check_format, content_of, noise, tree_of
from tonne.clock import SYSTEM_CLOCK
from tonne.errors import BadSettings, Locked, MissingPath, SourceChanged, TooLarge, UsageError
from tonne.image.pack import PackOptions, pack_folder
from tonne.image.pack.journal import Journal
from tonne.image.pack.options import SMALL_BYTES
from tonne.model import Codec, Digest, parse_reference
from tonne.model.frame import FRAME_BYTES
from tonne.source.memory import MemoryRepository
from tonne.source.seam import SinkFacts
from tonne.wire.root import Part

EDGES = [
    0,
    1,
    SMALL_BYTES - 1,
    SMALL_BYTES,
    SMALL_BYTES + 1,
    FRAME_BYTES - 1,
    FRAME_BYTES,
    FRAME_BYTES + 1,
    3 * FRAME_BYTES + 17,
]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files of every size that the cutting tells apart, links, holes, and odd names."""
    top = tmp_path / "model"
    (top / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir()
    for place, size in enumerate(EDGES):
        (top / f"edge-{size}").write_bytes(noise(size, place))
    for place in range(40):
        (top / "deep" / f"small-{place:02}").write_bytes(noise(place * 7000, 100 + place))
    (top / "deep" / "text").write_bytes(b"a line of text\n" * 500_000)
    (top / "deep" / "again").write_bytes(noise(FRAME_BYTES + 1, 7))  # equal to an edge
    (top / "deep" / "er" / "small again").write_bytes(noise(7000, 101))
    os.link(top / "edge-1", top / "deep" / "hard")
    os.link(top / f"edge-{FRAME_BYTES}", top / "zzz")
    os.symlink("../edge-1", top / "deep" / "soft")
    os.symlink("nowhere", top / "dangling")
    Path(os.fsdecode(os.fsencode(top) + b"/\xff\xfe")).write_bytes(b"not UTF-8")
    (top / ("n" * 255)).write_bytes(b"long")
    with open(top / "sparse", "wb") as file:
        file.truncate(40 * MIB)
        file.seek(17 * MIB)
        file.write(b"in the middle")
    os.chmod(top / "deep", 0o2750)
    os.utime(top / "deep", ns=(1, 1_234_567_890_123_456_789))
    return top


def test_what_is_packed_is_what_is_read(bench: Bench, tree: Path) -> None:
    result = bench.pack(tree)
    image = bench.image()
    assert image.digest == result.digest
    check_equal(image, tree)
    check_format(image, bench.repository)
    assert result.files == len([entry for entry in tree_of(image).values() if entry.is_file]) - 2
    assert any("dangling" in line for line in result.warnings)
    assert not bench.journals.exists(), "the journal stayed"
    assert bench.repository.sessions == 0


def test_equal_content_is_stored_once(bench: Bench, tree: Path) -> None:
    result = bench.pack(tree)
    found = tree_of(bench.image())
    index = bench.image().index
    for one, other in ((b"deep/again", b"edge-%d" % (FRAME_BYTES + 1)), (b"deep/er/small again", b"deep/small-01")):
        first, second = found[one], found[other]
        assert first.inode != second.inode
        places = [
            [(extent.frame, extent.frame_offset) for extent in index.extents(entry.inode, 0, entry.size_bytes, FOREVER)]
            for entry in (first, second)
        ]
        assert places[0] == places[1]
    assert result.new_content_bytes < result.content_bytes - 39 * MIB


def test_holes_are_extents_without_a_frame(bench: Bench, tree: Path) -> None:
    bench.pack(tree)
    image = bench.image()
    entry = tree_of(image)[b"sparse"]
    extents = image.index.extents(entry.inode, 0, entry.size_bytes, FOREVER)
    assert [(extent.length, extent.frame is None) for extent in extents] == [
        (16 * MIB, True),
        (4 * MIB, False),
        (20 * MIB, True),
    ]


def test_zeros_are_a_hole_whether_the_file_system_stores_them_or_not(bench: Bench, tmp_path: Path) -> None:
    sparse, dense = tmp_path / "sparse", tmp_path / "dense"
    for folder in (sparse, dense):
        folder.mkdir()
    for name, size in (("a", 3 * FRAME_BYTES + 5), ("b", 2 * MIB), ("c", 1000)):
        with open(sparse / name, "wb") as file:
            file.truncate(size)
        (dense / name).write_bytes(bytes(size))
    options = {"reproducible": True}
    first, second = bench.pack(sparse, "v1", (), **options), bench.pack(dense, "v2", (), **options)
    assert first.digest == second.digest
    assert first.new_frames == 0
    check_equal_content(bench, dense)


def check_equal_content(bench: Bench, source: Path) -> None:
    image = bench.image()
    for path, entry in tree_of(image).items():
        if entry.is_file:
            assert content_of(image, entry) == (source / os.fsdecode(path)).read_bytes()


def test_threads_and_chunks_do_not_show_in_the_digest(tmp_path: Path, tree: Path) -> None:
    benches = [
        Bench(tmp_path / "1", MemoryRepository(facts=SMALL_CHUNKS), threads=1),
        Bench(tmp_path / "2", MemoryRepository(facts=SinkFacts(chunk_bytes=5 * MIB)), threads=4),
        Bench(tmp_path / "3", MemoryRepository(facts=SinkFacts(chunked=False)), threads=3),
        Bench(tmp_path / "4", MemoryRepository(facts=SinkFacts(chunk_bytes=MIB, chunk_bytes_min=3 * MIB)), threads=2),
        Bench(tmp_path / "5", MemoryRepository(facts=SinkFacts(chunk_bytes_max=100_000)), threads=2),
    ]
    assert len({bench.pack(tree).digest for bench in benches}) == 1
    for bench in benches:
        check_format(bench.image(), bench.repository)
    assert benches[2].count("append") == 0
    sizes = [asked.length for asked in benches[3].repository.asked if asked.kind == "append"]
    assert sum(size < 3 * MIB for size in sizes) <= len(benches[3].image().index.root.packs)
    assert all(asked.length <= 100_000 for asked in benches[4].repository.asked if asked.kind == "append")


def test_new_frames_lie_in_lanes_as_the_format_says(bench: Bench, tmp_path: Path) -> None:
    top = tmp_path / "model"
    top.mkdir()
    data = noise(70 * FRAME_BYTES, 1)
    (top / "weights").write_bytes(data)
    bench.pack(top, pack_bytes=64 * MIB)
    image = bench.image()
    entry = tree_of(image)[b"weights"]
    extents = image.index.extents(entry.inode, 0, entry.size_bytes, FOREVER)
    frames = image.index.frames([extent.frame for extent in extents if extent.frame is not None], FOREVER)
    # 15 frames and a footer fit 64 MiB.  The second packs of the lanes begin with n = 39, 47, 55 and 63; packs stand in
    # the order of the n that they begin with.
    expected = [n // 8 % 4 + (4 if n >= 64 or n in (39, 47, 55, 63) else 0) for n in range(70)]
    assert [frame.pack for frame in frames] == expected
    assert all(pack.size_bytes <= 64 * MIB for pack in image.index.root.packs)
    check_format(image, bench.repository)


def test_text_is_packed_and_noise_is_stored_raw(bench: Bench, tree: Path) -> None:
    bench.pack(tree)
    image = bench.image()
    found = tree_of(image)
    for name, codec in ((b"deep/text", Codec.ZSTD), (b"edge-%d" % FRAME_BYTES, Codec.RAW)):
        extent = image.index.extents(found[name].inode, 0, 1, FOREVER)[0]
        assert extent.frame is not None
        assert image.index.frames([extent.frame], FOREVER)[0].codec == codec


def test_an_empty_folder_is_an_image(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    result = bench.pack(tmp_path / "nothing")
    assert (result.files, result.entries, result.packs_new) == (0, 1, 0)
    check_equal(bench.image(), tmp_path / "nothing")


def test_reproducible_leaves_owner_and_time_out(bench: Bench, tree: Path) -> None:
    first = bench.pack(tree, "v1", (), reproducible=True, mtime_s=77)
    for path in tree.rglob("*"):
        os.utime(path, ns=(5, 5), follow_symlinks=False)
        os.chown(path, 12345, 54321, follow_symlinks=False)
    os.chmod(tree / "deep", 0o2750)
    second = bench.pack(tree, "v2", (), reproducible=True, mtime_s=77)
    assert first.digest == second.digest
    for entry in tree_of(bench.image()).values():
        assert (entry.uid, entry.gid, entry.mtime_ns) == (0, 0, 77_000_000_000)


def test_what_is_given_need_not_be_utf_8(bench: Bench, tmp_path: Path) -> None:
    top = tmp_path / "few"
    top.mkdir()
    (top / "kept").write_bytes(b"kept")
    Path(os.fsdecode(os.fsencode(top) + b"/left out \xe9")).write_bytes(b"left out")
    bench.pack(top, exclude=(os.fsdecode(b"*\xe9"),))
    assert bench.image().config(FOREVER).options["exclude"] == ["*\\xe9"]
    assert bench.image().index.root.totals.files == 1
    for key, value in (("key", "\udce9"), ("\udce9", "value")):
        with pytest.raises(BadSettings, match="UTF-8"):
            bench.pack(top, annotations={key: value})


def test_annotations_stand_in_the_manifest(bench: Bench, tree: Path) -> None:
    bench.pack(tree, annotations={"org.example.licence": "MIT"})
    assert bench.image().manifest.annotations["org.example.licence"] == "MIT"
    with pytest.raises(BadSettings):
        bench.pack(tree, annotations={"io.tonne.features.incompatible": "0x0"})


def test_the_config_says_how_it_came_to_be(bench: Bench, tree: Path) -> None:
    result = bench.pack(tree, exclude=("*.tmp",))
    config = bench.image().config(FOREVER)
    assert config.options["exclude"] == ["*.tmp"]
    assert (config.content_bytes, config.files, config.entries) == (result.content_bytes, result.files, result.entries)
    assert config.new_frames == bench.image().index.root.frames == result.new_frames
    assert config.bases == ()


def test_a_source_that_changes_while_it_is_read_is_named(bench: Bench, tree: Path) -> None:
    victim = tree / f"edge-{3 * FRAME_BYTES + 17}"

    def change(asked: object) -> None:
        with open(victim, "ab") as file:
            file.write(b"more")

    bench.repository.on_call = change  # long before the file's turn: the first call is made before the scan
    calls = 0

    def once(asked: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # facts, check_rights, then the tag's manifest: after the scan
            change(asked)

    bench.repository.on_call = once
    with pytest.raises(SourceChanged, match=victim.name):
        bench.pack(tree)
    bench.repository.on_call = None
    assert not bench.repository.manifests
    bench.pack(tree)
    check_equal(bench.image(), tree)


def test_a_source_that_is_not_there_or_no_folder(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(MissingPath):
        bench.pack(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(UsageError):
        bench.pack(tmp_path / "file")


def test_a_digest_cannot_be_packed_to(bench: Bench, tree: Path) -> None:
    bench.name = "127.0.0.1:5000/models/a@" + str(Digest.of(b""))
    reference = parse_reference(bench.name)
    assert reference.digest is not None
    with pytest.raises(UsageError):
        pack_folder(tree, reference, bench.repository, bench.repository, PackOptions(), bench.settings)


def test_limits_are_known_before_anything_is_sent(tmp_path: Path, tree: Path) -> None:
    cases: list[tuple[SinkFacts, dict[str, Any]]] = [
        (SinkFacts(manifest_bytes_max=5000), {}),
        (SinkFacts(blob_bytes_max=9 * MIB), {"pack_bytes": 10 * MIB}),
    ]
    for facts, options in cases:
        bench = Bench(tmp_path / "limits", MemoryRepository(facts=facts))
        with pytest.raises(TooLarge) as raised:
            bench.pack(tree, **options)
        assert raised.value.next
        assert not bench.repository.blobs
    with pytest.raises(BadSettings):
        Bench(tmp_path / "small").pack(tree, pack_bytes=MIB)


def test_packs_are_no_larger_than_the_registry_takes(tmp_path: Path, tree: Path) -> None:
    bench = Bench(tmp_path / "limits", MemoryRepository(facts=SinkFacts(blob_bytes_max=9 * MIB)))
    bench.pack(tree, pack_bytes=None)
    assert max(pack.size_bytes for pack in bench.image().index.root.packs) <= 9 * MIB


def test_two_at_once_to_one_target(bench: Bench, tree: Path) -> None:
    raised: list[BaseException] = []

    def second(asked: object) -> None:
        bench.repository.on_call = None
        try:
            bench.pack(tree)
        except Locked as error:
            raised.append(error)

    bench.repository.on_call = second
    bench.pack(tree)
    assert len(raised) == 1
    check_equal(bench.image(), tree)


def test_a_lock_that_was_removed_meanwhile_is_no_lock(tmp_path: Path) -> None:
    first = Journal(tmp_path / "pack", "k", SYSTEM_CLOCK)
    with pytest.raises(Locked):
        Journal(tmp_path / "pack", "k", SYSTEM_CLOCK)
    first.remove()
    second = Journal(tmp_path / "pack", "k", SYSTEM_CLOCK)
    second.close()
    assert (tmp_path / "pack" / "k").stat().st_mode & 0o777 == 0o700
    third = Journal(tmp_path / "pack", "k", SYSTEM_CLOCK)
    third.remove()
    assert not (tmp_path / "pack").exists()


sizes = st.one_of(st.sampled_from(EDGES[:-1]), st.integers(0, 2 * SMALL_BYTES))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(st.tuples(sizes, st.integers(0, 3), st.booleans()), max_size=12), lanes_seed=st.integers(0, 9))
def test_any_folder_comes_back(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[int, int, bool]], lanes_seed: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    top = folder / "model"
    for place, (size, seed, zeros) in enumerate(files):
        path = top / str((place * 7 + lanes_seed) % 3) / f"{place}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size) if zeros else noise(size, seed))
    top.mkdir(exist_ok=True)
    bench = Bench(folder / "bench", threads=2)
    bench.pack(top)
    check_equal(bench.image(), top)
    check_format(bench.image(), bench.repository)
    assert bench.image().index.has_part(Part.TREE)
