"""Pages, lists of pages and stored pages: what goes in comes out, and nothing hostile gets in."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.rows import extent_record, frame_table
from tonne.codec.frames import encoder_name
from tonne.errors import Corrupt, CorruptBytes, CorruptIndex, TonneError
from tonne.model import Codec, Entry, Extent, Frame, Kind, blake3_of
from tonne.wire.page import (
    FILE_BYTES_MAX,
    PAGE_BYTES,
    TreePage,
    decode_xattrs,
    encode_xattrs,
    extent_pages,
    extents_of,
    fixed_pages,
    frame_of,
    tree_pages,
    valid_name,
)
from tonne.wire.pagelist import PageAddress, PageList, check_page, encode_list, list_pages, parse_list
from tonne.wire.record import EXTENT, FRAME, PAGE, TREE, records
from tonne.wire.stored import PAGE_LEVEL, load_page, store_page

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
names = st.binary(min_size=1, max_size=255).filter(valid_name)
xattrs = st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(max_size=40), max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """A root and up to thirty entries below it, numbered as the format has it."""
    count = draw(st.integers(0, 30))
    found = [Entry(1, 0, 1, b"", Kind.DIRECTORY, 0o755, 0, 0, draw(st.integers(-(1 << 63), (1 << 63) - 1)), 0)]
    for number in range(2, count + 2):
        kind = draw(st.sampled_from(list(Kind)))
        target = draw(st.binary(min_size=1, max_size=60).filter(lambda text: b"\0" not in text))
        found.append(
            Entry(
                number=number,
                parent=draw(st.integers(1, number - 1)),
                inode=draw(st.integers(1, number)),
                name=draw(names),
                kind=kind,
                permissions=draw(st.integers(0, 0o7777)),
                uid=draw(u32),
                gid=draw(u32),
                mtime_ns=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
                size_bytes=draw(st.integers(0, FILE_BYTES_MAX)),
                links=draw(u32),
                first_child=number + 1 if kind is Kind.DIRECTORY else 0,
                children=draw(u32) if kind is Kind.DIRECTORY else 0,
                digest=draw(st.binary(min_size=32, max_size=32)) if kind is Kind.FILE else b"",
                target=target if kind is Kind.SYMLINK else b"",
                xattrs=draw(xattrs),
            )
        )
    return found


@given(entries(), st.integers(300, 3000))
def test_entries_survive_pages(found: list[Entry], page_bytes: int) -> None:
    again: list[Entry] = []
    for page in tree_pages(found, page_bytes):
        assert page.key_b == found[len(again)].number
        assert (page.key_a, page.name) == (found[len(again)].parent, found[len(again)].name)
        assert len(page.data) <= page_bytes or page.records == 1
        read = TreePage(page.data, page.records, page.key_b)
        assert len(read) == page.records
        again += [read.entry(number) for number in range(read.first, read.first + len(read))]
    assert again == found


@given(entries(), st.data())
def test_a_damaged_tree_page_is_refused_or_read_but_never_crashes(found: list[Entry], data: st.DataObject) -> None:
    page = next(tree_pages(found))
    spoilt = bytearray(page.data)
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(spoilt)))
    for body in (bytes(spoilt), bytes(spoilt[:cut])):
        try:
            read = TreePage(body, page.records, page.key_b)
            for number in range(1, page.records + 1):
                entry = read.entry(number)
                assert number == 1 or valid_name(entry.name)
        except CorruptIndex:
            pass


HOSTILE_ENTRIES = {
    "name is ..": {"name": b".."},
    "name is .": {"name": b"."},
    "name has a slash": {"name": b"a/b"},
    "name has a NUL": {"name": b"a\0b"},
    "name is empty": {"name": b""},
    "parent is itself": {"parent": 2},
    "parent is later": {"parent": 3},
    "parent is none": {"parent": 0},
    "inode is later": {"inode": 3},
    "inode is none": {"inode": 0},
    "file with children": {"children": 1, "first_child": 3},
    "symlink without target": {"kind": Kind.SYMLINK},
    "file with target": {"target": b"x"},
    "target with a NUL": {"kind": Kind.SYMLINK, "target": b"a\0b"},
    "file too large": {"size_bytes": (1 << 62) + 1},
    "target too long": {"kind": Kind.SYMLINK, "target": b"x" * 4096},
    "folder's children are earlier": {"kind": Kind.DIRECTORY, "children": 1, "first_child": 2},
}
ROOT = Entry(1, 0, 1, b"", Kind.DIRECTORY, 0o755, 0, 0, 0, 0)
FILE = Entry(2, 1, 2, b"f", Kind.FILE, 0o644, 0, 0, 0, 0, digest=bytes(32))


@pytest.mark.parametrize("what", HOSTILE_ENTRIES)
def test_entries_that_break_a_rule(what: str) -> None:
    entry = replace(FILE, **HOSTILE_ENTRIES[what])  # type: ignore[arg-type]
    page = next(tree_pages([ROOT, entry]))
    with pytest.raises(CorruptIndex):
        TreePage(page.data, 2, 1).entry(2)


@pytest.mark.parametrize("mode", [0, 0o020644, 0o140644, 0o010644, 0o060644, 1 << 16 | 0o100644])
def test_modes_of_other_types(mode: int) -> None:
    page = next(tree_pages([ROOT, FILE]))
    table = np.frombuffer(bytearray(page.data), TREE, 2)
    table["mode"][1] = mode
    with pytest.raises(CorruptIndex):
        TreePage(table.tobytes() + page.data[table.nbytes :], 2, 1).entry(2)


def test_entries_that_are_elsewhere() -> None:
    page = next(tree_pages([ROOT, FILE]))
    read = TreePage(page.data, 2, 1)
    for number in (0, 3):
        with pytest.raises(CorruptIndex):
            read.entry(number)
    with pytest.raises(CorruptIndex):
        TreePage(page.data, 99, 1)
    with pytest.raises(CorruptIndex):  # the root must not have a name
        TreePage(next(tree_pages([replace(ROOT, name=b"x")])).data, 1, 1).entry(1)


def test_an_entry_with_large_attributes_has_a_page_of_its_own() -> None:
    large = replace(FILE, xattrs=((b"user.x", bytes(PAGE_BYTES)),))
    sizes = [page.records for page in tree_pages([ROOT, large, replace(FILE, number=3, inode=3, name=b"g")])]
    assert sizes == [1, 1, 1]
    too_large = replace(FILE, xattrs=((b"user.x", bytes(600_000)),))
    page = list(tree_pages([ROOT, too_large]))[1]
    with pytest.raises(CorruptIndex):
        TreePage(page.data, 1, 2).entry(2)


@given(xattrs)
def test_attributes_survive(found: tuple[tuple[bytes, bytes], ...]) -> None:
    data = encode_xattrs(found)
    assert decode_xattrs(data) == found
    if found:
        with pytest.raises(CorruptIndex):
            decode_xattrs(data[:-1])


def test_attributes_that_lie() -> None:
    for data in (struct.pack("<HI", 0, 1) + b"x", struct.pack("<HI", 1, 1 << 31) + b"xx", b"\1"):
        with pytest.raises(CorruptIndex):
            decode_xattrs(data)


# --- extents and frames ---

extents = st.builds(Extent, u64.map(lambda n: n >> 1), u32, st.integers(0, 0xFFFFFFFE), u32) | st.builds(
    Extent, u64.map(lambda n: n >> 1), u64, st.none(), st.just(0)
)


@given(st.lists(extents, max_size=50), st.integers(24, 400))
def test_extents_survive_pages(found: list[Extent], page_bytes: int) -> None:
    rows = np.array([extent_record(7, extent) for extent in found], EXTENT)
    again: list[Extent] = []
    for page in extent_pages(rows, page_bytes):
        assert len(page.data) <= page_bytes
        assert (page.key_a, page.key_b) == (7, found[len(again)].file_offset)
        check_page(page.records, EXTENT, page.data, "extents")
        again += extents_of(records(page.data, EXTENT, page.records, "extents"))
    assert again == found


frames = st.builds(
    Frame,
    number=st.just(0),
    pack=u32,
    offset=u64,
    stored_bytes=u32,
    raw_bytes=u32,
    codec=st.integers(0, 255),
    digest=st.binary(min_size=32, max_size=32),
    parameters=st.integers(0, 0xFFFF),
    base=st.none() | st.integers(0, 0xFFFFFFFE),
    base_offset=u32,
)


@given(st.lists(frames, max_size=20), st.integers(64, 400), st.integers(0, 1000))
def test_frames_survive_pages(found: list[Frame], page_bytes: int, first: int) -> None:
    found = [replace(frame, number=first + place) for place, frame in enumerate(found)]
    again: list[Frame] = []
    for page in fixed_pages(frame_table(found), first, page_bytes):
        assert page.key_a == first + len(again)
        table = records(page.data, FRAME, page.records, "frames")
        again += [frame_of(page.key_a + row, record) for row, record in enumerate(table)]
    assert again == found


def test_a_record_lies_as_the_page_says() -> None:
    """docs/format.md, part 3, byte by byte."""
    frame = Frame(0, 1, 0x0807060504030201, 2, 3, 1, bytes(range(32)), 4, 5, 6)
    assert frame_table([frame]).tobytes() == struct.pack(
        "<IIQIBxHII32s", 1, 2, 0x0807060504030201, 3, 1, 4, 5, 6, bytes(range(32))
    )
    hole = np.array([extent_record(9, Extent(7, (3 << 32) | 2, None))], EXTENT)
    assert hole.tobytes() == struct.pack("<IIQII", 9, 2, 7, 0xFFFFFFFF, 3)
    entry = Entry(2, 1, 2, b"nm", Kind.SYMLINK, 0o7, 10, 11, -5, 3, 4, target=b"tgt", xattrs=((b"k", b"v"),))
    data = next(tree_pages([entry])).data
    head = struct.pack("<IIQqIIIIIIIIIIHH28x32x", 1, 2, 3, -5, 0, 0, 0o120007, 10, 11, 4, 0, 2, 5, 8, 2, 3)
    assert data == head + b"nmtgt" + struct.pack("<HI", 1, 1) + b"kv"


def test_a_page_that_is_longer_than_its_records() -> None:
    with pytest.raises(CorruptIndex):
        check_page(1, FRAME, bytes(65), "frames")
    for count, offset in ((-1, 0), (1, -1), (2, 0), (1, 1)):
        with pytest.raises(CorruptIndex):
            records(bytes(64), FRAME, count, "frames", offset)


# --- lists of pages ---


@st.composite
def addresses(draw: st.DrawFn) -> list[PageAddress]:
    keys = sorted(draw(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=20)))
    found, at = [], 0
    for a, b in keys:
        size, count = draw(st.integers(1, 5000)), draw(st.integers(1, 500))
        found.append(
            PageAddress(
                a, b, at, size, draw(st.integers(count, 65536)), count, draw(st.integers(0, 1)),
                draw(st.binary(min_size=32, max_size=32)), draw(st.binary(max_size=10)),
            )
        )  # fmt: skip
        at += size
    return found


@given(addresses(), st.integers(100, 600))
def test_lists_survive(rows: list[PageAddress], page_bytes: int) -> None:
    table, heap = encode_list(rows)
    parsed = parse_list(table + heap, len(rows), 1 << 20, 1, "list")
    assert [parsed.address(place) for place in range(len(parsed))] == rows
    again: list[PageAddress] = []
    for page in list_pages(rows, page_bytes):
        part = parse_list(page.data, page.records, 1 << 20, 1, "list")
        again += [part.address(place) for place in range(len(part))]
        assert (page.key_a, page.key_b, page.name) == (part.address(0).key_a, part.address(0).key_b, part.name(0))
    assert again == rows


@given(addresses(), st.integers(0, 6), st.integers(0, 21))
def test_finding_is_a_linear_search(rows: list[PageAddress], a: int, b: int) -> None:
    table, heap = encode_list(rows)
    parsed = parse_list(table + heap, len(rows), 1 << 20, 1, "list")
    keys = [(row.key_a, row.key_b) for row in rows]
    assert parsed.find_pair(a, b) == max((i for i, key in enumerate(keys) if key <= (a, b)), default=-1)
    assert parsed.find(a) == max((i for i, key in enumerate(keys) if key[0] <= a), default=-1)


@given(st.lists(st.tuples(st.integers(1, 4), names), unique=True, min_size=1), st.integers(0, 5), names)
def test_finding_a_name_is_a_linear_search(keys: list[tuple[int, bytes]], parent: int, name: bytes) -> None:
    keys.sort()
    rows = [PageAddress(p, i + 1, i, 1, 1, 1, 0, bytes(32), n) for i, (p, n) in enumerate(keys)]
    table, heap = encode_list(rows)
    parsed = parse_list(table + heap, len(rows), 1 << 20, 1, "list")
    assert parsed.find_name(parent, name) == max((i for i, key in enumerate(keys) if key <= (parent, name)), default=-1)
    for number in range(len(keys) + 2):
        assert parsed.find_number(number) == min(number, len(keys)) - 1


GOOD = PageAddress(1, 1, 0, 10, 10, 1, 0, bytes(32), b"n")
HOSTILE_LISTS = {
    "beyond the blob": {"offset": 95},
    "far beyond": {"offset": (1 << 64) - 1},
    "nothing stored": {"stored_bytes": 0},
    "too large": {"stored_bytes": (1 << 20) + 1, "offset": 0},
    "too large decoded": {"raw_bytes": (1 << 20) + 1},
    "no records": {"records": 0},
    "more records than bytes": {"records": 11},
    "over the page before": {"offset": 9},
    "the page before again": {"offset": 0},
    "unknown codec": {"codec": 9},
    "out of order": {"key_a": 0, "key_b": 0},
}


@pytest.mark.parametrize("what", HOSTILE_LISTS)
def test_lists_that_break_a_rule(what: str) -> None:
    rows = [GOOD, replace(GOOD, **{"key_b": 2, "offset": 10, **HOSTILE_LISTS[what]})]  # type: ignore[arg-type]
    table, heap = encode_list(rows)
    with pytest.raises(CorruptIndex):
        parse_list(table + heap, 2, 100 if "offset" in HOSTILE_LISTS[what] else 1 << 30, 1, "list")


def test_names_of_a_list_outside_its_heap() -> None:
    table, heap = encode_list([GOOD])
    rows = np.frombuffer(bytearray(table), PAGE)
    rows["name_offset"] = len(heap)
    with pytest.raises(CorruptIndex):
        PageList(rows, heap, 100, 1, "list")
    with pytest.raises(CorruptIndex):
        parse_list(table[:-1], 1, 100, 1, "list")


# --- stored pages ---


@given(st.binary(min_size=1, max_size=2000) | st.integers(1, 2000).map(bytes))
def test_stored_pages_survive(data: bytes) -> None:
    codec, stored = store_page(data)
    assert len(stored) <= len(data)
    assert load_page(stored, codec, len(data), blake3_of(stored), "page") == data


def test_stored_pages_that_lie() -> None:
    data = bytes(5000)
    codec, stored = store_page(data)
    cases: list[tuple[bytes, int, int, type[TonneError]]] = [
        (stored[:-1], codec, 5000, CorruptIndex),
        (stored, codec, 4999, CorruptIndex),
        (stored, codec, 5001, CorruptIndex),
        (stored, Codec.RAW, 5000, CorruptIndex),
        (stored, 7, 5000, CorruptIndex),
        (b"no zstd at all", codec, 5000, CorruptIndex),
        (stored + b"x", codec, 5000, CorruptIndex),
        # What claims 1 TiB must not be allocated; what claims nothing must not be believed.
        (b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\1\0\0", codec, 5000, CorruptIndex),
        (zstandard.ZstdCompressor(write_content_size=False).compress(data), codec, 5000, CorruptIndex),
    ]
    for body, kind, raw_bytes, error in cases:
        with pytest.raises(error):
            load_page(body, kind, raw_bytes, blake3_of(body), "page")
    with pytest.raises(CorruptBytes):
        load_page(stored, codec, 5000, bytes(32), "page")
    assert issubclass(CorruptBytes, Corrupt)


def test_the_encoders_name_stands_for_the_level_of_pages() -> None:
    """Equal names promise equal bytes, and no option says this level: change both or none."""
    assert (PAGE_LEVEL, encoder_name(9).split()[0]) == (3, "tonne-1")
