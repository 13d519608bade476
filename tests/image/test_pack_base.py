"""What other images store already is not stored again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.image.packing import FOREVER, MIB, SMALL_CHUNKS, Bench, check_equal, check_format, noise
from tonne.errors import MissingManifest, Unreachable
from tonne.image.pack import BaseSource
from tonne.model import Digest, parse_reference
from tonne.model.frame import FRAME_BYTES
from tonne.source.memory import MemoryRepository
from tonne.source.seam import Document, SinkFacts
from tonne.wire.oci import MANIFEST_TYPE, encode_json


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "model"
    top.mkdir()
    for shard in range(4):
        (top / f"shard-{shard}").write_bytes(noise(3 * FRAME_BYTES + 1000, shard))
    for place in range(20):
        (top / f"small-{place}").write_bytes(noise(50_000, 50 + place))
    (top / "text").write_bytes(b"text\n" * 100_000)
    return top


def other(bench: Bench, name: str, repository: MemoryRepository | None = None) -> Bench:
    """Another repository of the same registry."""
    made = Bench(bench.folder / name.replace("/", "-"), repository or MemoryRepository(name, SMALL_CHUNKS))
    made.name = f"127.0.0.1:5000/{name}"
    made.repository.siblings["models/a"] = bench.repository
    return made


def test_the_same_again_is_the_same_image(bench: Bench, tree: Path) -> None:
    first = bench.pack(tree)
    puts = bench.count("put_manifest")
    second = bench.pack(tree)
    assert second.unchanged
    assert second.digest == first.digest
    assert (second.new_frames, second.new_stored_bytes, second.sent_bytes) == (0, 0, 0)
    assert bench.count("put_manifest") == puts
    assert second.stored_bytes == first.stored_bytes


def test_another_annotation_or_option_is_another_image(bench: Bench, tree: Path) -> None:
    first = bench.pack(tree)
    for options in ({"annotations": {"a": "b"}}, {"exclude": ("nothing",)}, {"level": 2}):
        again = bench.pack(tree, **options)
        assert again.digest != first.digest
        assert again.new_frames == 0
        assert not again.unchanged


def test_one_changed_shard_costs_one_shard(bench: Bench, tree: Path) -> None:
    bench.pack(tree)
    (tree / "shard-2").write_bytes(noise(3 * FRAME_BYTES + 1000, 99))
    (tree / "small-7").write_bytes(noise(50_000, 98))
    (tree / "small-9").unlink()
    second = bench.pack(tree)
    assert second.new_content_bytes == 3 * FRAME_BYTES + 1000 + 50_000
    assert second.packs_reused > 0
    check_equal(bench.image(), tree)
    check_format(bench.image(), bench.repository)
    assert bench.image().config(FOREVER).bases == second.bases


def test_a_part_of_a_file_that_grew_is_found(bench: Bench, tree: Path) -> None:
    bench.pack(tree)
    with open(tree / "shard-1", "ab") as file:
        file.write(noise(500, 97))
    assert bench.pack(tree).new_content_bytes == 1500
    check_equal(bench.image(), tree)


def test_a_pack_that_the_base_hardly_uses_is_not_listed_again(bench: Bench, tmp_path: Path) -> None:
    top = tmp_path / "versions"
    top.mkdir()
    for place in range(8):
        (top / f"{place}").write_bytes(noise(FRAME_BYTES, place))
    bench.pack(top, pack_bytes=64 * MIB)
    assert bench.pack(top, pack_bytes=64 * MIB).unchanged
    for place in range(7):
        (top / f"{place}").write_bytes(noise(FRAME_BYTES, 100 + place))
    # One of eight frames of the pack is used: the third version does not lean on it any more.
    second = bench.pack(top, pack_bytes=64 * MIB)
    assert (second.new_frames, second.packs_reused) == (7, 1)
    third = bench.pack(top, pack_bytes=64 * MIB)
    assert (third.new_frames, third.packs_reused) == (1, 1)
    assert bench.pack(top, pack_bytes=64 * MIB).unchanged
    check_equal(bench.image(), top)
    check_format(bench.image(), bench.repository)


def test_without_a_base_everything_is_stored(bench: Bench, tree: Path) -> None:
    first = bench.pack(tree)
    again = bench.pack(tree, "v2", ())
    assert again.new_content_bytes == first.new_content_bytes
    # Equal bytes in equal packs, so the target has them; only the config could tell.
    assert again.digest == first.digest


def test_a_base_in_a_repository_of_the_same_registry_is_mounted(bench: Bench, tree: Path) -> None:
    bench.pack(tree)
    target = other(bench, "models/b")
    result = target.pack(tree, bases=[bench.base()])
    assert result.new_frames == 0
    assert result.packs_reused == len(bench.image().index.root.packs)
    assert target.count("mount") == result.packs_reused
    assert result.sent_bytes < MIB
    check_equal(target.image(), tree)
    check_format(target.image(), target.repository)


def test_a_base_elsewhere_is_copied(bench: Bench, tree: Path) -> None:
    bench.pack(tree)
    target = other(bench, "models/b")
    elsewhere = BaseSource(parse_reference("registry.example.com/x/y:v1"), bench.repository)
    result = target.pack(tree, bases=[elsewhere])
    assert result.new_frames == 0
    assert target.count("mount") == 0
    check_equal(target.image(), tree)
    check_format(target.image(), target.repository)
    assert {pack.digest for pack in target.image().index.root.packs} <= set(bench.repository.blobs)


def test_a_copy_that_was_cut_off_goes_on(bench: Bench, tree: Path) -> None:
    bench.pack(tree)
    target = other(bench, "models/b")
    elsewhere = BaseSource(parse_reference("registry.example.com/x/y:v1"), bench.repository)
    target.repository.fail("append", Unreachable("gone"), skip=20, times=None)
    with pytest.raises(Unreachable):
        target.pack(tree, bases=[elsewhere])
    target.repository.heal()
    done = set(target.repository.blobs)
    target.pack(tree, bases=[elsewhere])
    finished = [asked.subject for asked in target.repository.asked if asked.kind == "finish"]
    assert all(finished.count(str(digest)) <= 1 for digest in done)
    check_equal(target.image(), tree)


def test_a_base_that_cannot_be_brought_is_stored_anew(bench: Bench, tree: Path) -> None:
    bench.pack(tree, pack_bytes=16 * MIB)
    for facts in (SinkFacts(chunk_bytes=MIB, blob_bytes_max=9 * MIB), SMALL_CHUNKS):
        target = other(bench, f"models/{facts.blob_bytes_max or 0}", MemoryRepository(facts=facts))
        elsewhere = BaseSource(parse_reference("registry.example.com/x/y:v1"), bench.repository)
        if facts.blob_bytes_max is None:
            for pack in bench.image().index.root.packs:
                del bench.repository.blobs[pack.digest]  # the base has lost its packs
        result = target.pack(tree, bases=[elsewhere])
        assert result.new_content_bytes > 0
        assert result.warnings
        check_equal(target.image(), tree)
        check_format(target.image(), target.repository)


def test_several_bases(bench: Bench, tree: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, shards in ((one, (0, 1)), (two, (1, 2))):
        folder.mkdir()
        for shard in shards:
            (folder / f"{shard}").write_bytes((tree / f"shard-{shard}").read_bytes())
    bench.pack(one, "one", ())
    bench.pack(two, "two", ())
    result = bench.pack(tree, "v1", [bench.base("one"), bench.base("two")])
    assert result.new_content_bytes == 3 * FRAME_BYTES + 1000 + 20 * 50_000 + 500_000
    assert result.bases == (bench.image("one").digest, bench.image("two").digest)
    check_equal(bench.image(), tree)
    check_format(bench.image(), bench.repository)


def test_bases_that_share_packs(bench: Bench, tree: Path) -> None:
    bench.pack(tree, "v1")
    (tree / "shard-0").write_bytes(noise(3 * FRAME_BYTES + 1000, 77))
    bench.pack(tree, "v2", [bench.base("v1")])
    result = bench.pack(tree, "v3", [bench.base("v1"), bench.base("v2")])
    assert result.new_frames == 0
    digests = [pack.digest for pack in bench.image("v3").index.root.packs]
    assert len(set(digests)) == len(digests)
    check_equal(bench.image("v3"), tree)
    check_format(bench.image("v3"), bench.repository)


def test_a_base_that_is_asked_for_must_be_there(bench: Bench, tree: Path) -> None:
    with pytest.raises(MissingManifest):
        bench.pack(tree, bases=[bench.base("absent")])


def test_something_else_under_the_tag_is_no_base(bench: Bench, tree: Path) -> None:
    config = bench.repository.add(b"{}")
    data = encode_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": str(config.digest),
                "size": config.size_bytes,
            },
            "layers": [],
        }
    )
    bench.repository.put_manifest("v1", Document(data, MANIFEST_TYPE, Digest.of(data)), FOREVER)
    result = bench.pack(tree)
    assert any("base" in line for line in result.warnings)
    check_equal(bench.image(), tree)


def test_the_journal_pins_the_base(bench: Bench, tree: Path, tmp_path: Path) -> None:
    """The tag moves between an interrupted run and the next: what is new is still told against the old base."""
    bench.pack(tree)
    base = bench.image().digest
    (tree / "shard-0").write_bytes(noise(3 * FRAME_BYTES + 1000, 77))
    bench.repository.fail("put_manifest", Unreachable("gone"))
    with pytest.raises(Unreachable):
        bench.pack(tree)
    (tmp_path / "other").mkdir()
    aside = bench.pack(tmp_path / "other", "aside", ())
    bench.repository.named["v1"] = aside.digest
    result = bench.pack(tree)
    assert result.resumed
    assert result.bases == (base,)
    assert result.new_content_bytes == 3 * FRAME_BYTES + 1000


def test_killed_after_the_manifest_was_stored(bench: Bench, tree: Path) -> None:
    """The tag is the result already; the journal's base is older, and so the result is the same again."""
    bench.pack(tree)
    (tree / "shard-0").write_bytes(noise(3 * FRAME_BYTES + 1000, 77))
    calls = 0

    def cut(asked: object) -> None:
        nonlocal calls
        calls += bench.count("put_manifest") > 1
        if calls > 1:
            raise Unreachable("gone")

    bench.repository.on_call = cut
    with pytest.raises(Unreachable):
        bench.pack(tree)
    bench.repository.on_call = None
    stored = bench.repository.named["v1"]
    result = bench.pack(tree)
    assert result.digest == stored
    assert not result.unchanged
    assert not bench.journals.exists()


def test_a_base_that_lost_a_pack_is_packed_without_it(bench: Bench, tree: Path) -> None:
    bench.pack(tree)
    pack = bench.image().index.root.packs[1]
    del bench.repository.blobs[pack.digest]
    (tree / "shard-0").write_bytes(noise(3 * FRAME_BYTES + 1000, 77))
    result = bench.pack(tree)
    assert pack.digest not in [listed.digest for listed in bench.image().index.root.packs] or (
        pack.digest in bench.repository.blobs
    )
    assert result.packs_reused > 0
    check_equal(bench.image(), tree)
    check_format(bench.image(), bench.repository)
