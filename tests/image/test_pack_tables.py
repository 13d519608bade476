"""The tables that keep a packing's memory bounded, each against a simple model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.errors import BadSettings, TooLarge
from tonne.image.pack import digests
from tonne.image.pack.assemble import merge_by_inode
from tonne.image.pack.base import BasePack
from tonne.image.pack.digests import DigestTable, keys_of
from tonne.image.pack.journal import SentPack
from tonne.image.pack.ledger import BASE_BIT
from tonne.image.pack.limits import PACK_BYTES_MIN, check_manifest, choose_pack_bytes
from tonne.image.pack.options import GIB, LANES, PACKS_AIM
from tonne.image.pack.places import lane_of, n_of, ordinal_of
from tonne.image.pack.rows import BUFFER_BYTES, Rows, Scratch
from tonne.image.pack.table import Numbering
from tonne.model import Blob, Digest
from tonne.source.seam import SinkFacts
from tonne.wire.record import EXTENT, NO_FRAME
from tonne.wire.root import Pack

EMPTY = Digest.of(b"")


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, BUFFER_BYTES // 2), st.integers(0, 255)),
            st.tuples(st.just("write"), st.integers(0, 3 * BUFFER_BYTES), st.integers(0, 255)),
            st.tuples(st.just("read"), st.integers(0, 3 * BUFFER_BYTES), st.integers(0, 5000)),
        ),
        max_size=20,
    )
)
def test_a_scratch_file_is_a_growing_array(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    scratch = Scratch(tmp_path_factory.getbasetemp() / "scratch-file")
    model = bytearray()
    for kind, at, value in steps:
        if kind == "append":
            assert scratch.append(bytes([value]) * at) == len(model)
            model += bytes([value]) * at
        elif kind == "write":
            data = bytes([value]) * 77
            scratch.write(at, data)
            model += bytes(max(0, at + len(data) - len(model)))
            model[at : at + len(data)] = data
        elif at + value <= len(model):
            assert scratch.read(at, value) == model[at : at + value]
    assert len(scratch) == len(model)
    assert scratch.read(0, len(model)) == model
    with pytest.raises(ValueError, match="ends before"):
        scratch.read(len(model), 1)
    scratch.close()


def test_rows_go_through_in_blocks(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows", np.dtype([("a", "<u4"), ("b", "<u8")]))
    for value in range(1000):
        assert rows.append(np.array([(value, value * 2)], rows.dtype).tobytes()) == value
    rows.put_raw(7, (99).to_bytes(8, "little"), 4)
    seen = [int(row["b"]) for _, block in rows.blocks(64) for row in block]
    assert seen == [99 if value == 7 else value * 2 for value in range(1000)]
    assert rows.raw(3) == rows.read(3, 1).tobytes()
    rows.close()


@given(
    values=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=60),
    first=st.integers(0, 10),
)
def test_a_digest_is_found_where_it_was_seen_first(values: list[tuple[int, int]], first: int) -> None:
    """Digests of which many share their first eight bytes: the caller's whole comparison decides."""
    names = [bytes([a]) * 8 + bytes([b]) * 24 for a, b in values]
    table = DigestTable()
    array = np.array([np.void(name) for name in names[:first]], "V32") if names[:first] else np.zeros(0, "V32")
    table.extend(keys_of(array), np.arange(len(array), dtype=np.uint32))
    kept = digests.TAIL_MAX
    digests.TAIL_MAX = 5
    try:
        for value, name in enumerate(names[first:], len(array)):
            if not any(names[found] == name for found in table.find(name)):
                table.add(name, value)
    finally:
        digests.TAIL_MAX = kept
    for value, name in enumerate(names):
        found = [place for place in table.find(name) if names[place] == name]
        others = {other for other in names if other[:8] == name[:8]}
        # One of those that collide may be lost, and found later where it was stored again.
        if len(others) == 1:
            assert found[:1] == [names.index(name)], f"{value} was lost though nothing collides with it"


@given(n=st.integers(0, 1 << 40))
def test_places_in_lanes(n: int) -> None:
    assert n_of(lane_of(n), ordinal_of(n)) == n
    assert 0 <= lane_of(n) < LANES
    # Eight neighbours lie together.
    if n % 8 != 7:
        assert (lane_of(n + 1), ordinal_of(n + 1)) == (lane_of(n), ordinal_of(n) + 1)


@given(
    count=st.integers(1, 200),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=20),
    bases=st.lists(st.integers(1, 9), max_size=4),
    skipped=st.sets(st.integers(0, 3)),
)
def test_numbers_follow_the_footers(count: int, cuts: list[int], bases: list[int], skipped: set[int]) -> None:
    """Against a brute-force count: the concatenation of the packs is the numbering."""
    every: list[BasePack] = []
    at = 0
    for frames in bases:
        every.append(BasePack(Pack(EMPTY, 0, 0, frames, 0), 0, at))
        at += frames
    used = [pack for place, pack in enumerate(every) if place not in skipped]
    lanes = [[n for n in range(count) if lane_of(n) == lane] for lane in range(LANES)]
    sent: list[SentPack] = []
    turn = 0
    for lane, members in enumerate(lanes):
        start = 0
        while start < len(members):
            size = min(cuts[turn % len(cuts)], len(members) - start)
            turn += 1
            sent.append(SentPack(lane, start, size, Blob(EMPTY, 0), Path()))
            start += size
    expected = [BASE_BIT | pack.first_id + place for pack in used for place in range(pack.pack.frames)]
    for new in sorted(sent, key=lambda pack: lanes[pack.lane][pack.start]):
        expected += lanes[new.lane][new.start : new.end]
    numbering = Numbering(used, sent[::-1])
    assert numbering.frames == len(expected)
    given_numbers = np.array([*expected, NO_FRAME], np.uint32)
    assert numbering.final(given_numbers).tolist() == [*range(len(expected)), NO_FRAME]


@given(
    owners=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40),
    block=st.integers(1, 7),
)
def test_two_sorted_tables_become_one(
    tmp_path_factory: pytest.TempPathFactory, owners: list[tuple[bool, int]], block: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    tables = [Rows(folder / "large", EXTENT), Rows(folder / "small", EXTENT)]
    expected = []
    for inode, (which, count) in enumerate(owners, 1):
        for place in range(count):
            row = np.array([(inode, 1, place, 0, 0)], EXTENT)
            tables[which].extend(row)
            expected.append((inode, place))
    found: list[tuple[int, int]] = []
    for pieces in merge_by_inode(tables[0], tables[1], block):
        merged = np.concatenate(pieces)
        merged = merged[np.lexsort((merged["file_offset"], merged["inode"]))]
        found += [(int(row["inode"]), int(row["file_offset"])) for row in merged]
    assert found == expected
    for table in tables:
        table.close()


def test_the_size_of_packs() -> None:
    facts = SinkFacts()
    assert choose_pack_bytes(0, None, facts) == 4 * GIB
    assert choose_pack_bytes(4 * GIB * PACKS_AIM, None, facts) == 4 * GIB
    assert choose_pack_bytes(4 * GIB * PACKS_AIM + 1, None, facts) == 8 * GIB
    assert choose_pack_bytes(10 * 10**12, None, facts) == 8 * GIB
    assert choose_pack_bytes(50 * 10**12, None, facts) == 64 * GIB
    assert choose_pack_bytes(10 * 10**12, None, SinkFacts(blob_bytes_max=5 * GIB)) == 5 * GIB
    assert choose_pack_bytes(1, 100 << 20, facts) == 100 << 20
    with pytest.raises(BadSettings):
        choose_pack_bytes(1, PACK_BYTES_MIN - 1, facts)
    with pytest.raises(TooLarge):
        choose_pack_bytes(1, 6 * GIB, SinkFacts(blob_bytes_max=5 * GIB))


def test_manifests_of_the_largest_images_fit() -> None:
    for content in (10 * 10**12, 50 * 10**12):
        check_manifest(content, choose_pack_bytes(content, None, SinkFacts()), 0, 0, SinkFacts())
    with pytest.raises(TooLarge, match="manifest"):
        check_manifest(10 * 10**12, 64 << 20, 0, 0, SinkFacts())
    check_manifest(10 * 10**12, 64 << 20, 0, 0, SinkFacts(manifest_bytes_max=None))


def test_scratch_files_are_for_the_owner(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "s")
    assert os.stat(tmp_path / "s").st_mode & 0o077 == 0
    scratch.close()
