"""The index reader against a plain model, over pages that are small enough for there to be many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.rows import extent_record, frame_table
from tonne.clock import Deadline
from tonne.errors import CorruptBytes, CorruptIndex, MissingPath, Unreachable
from tonne.image.fetch import Fetcher
from tonne.image.index import MEMORY_ONLY, Index, NotInMemory
from tonne.image.match import Selection
from tonne.image.pull_plan import make_plan
from tonne.model import Codec, Digest, Entry, Extent, Frame, Kind, blake3_of
from tonne.model.frame import FRAME_BYTES_MAX, FRAME_STORED_BYTES_MAX
from tonne.source.memory import MemoryRepository
from tonne.wire.page import extent_pages, fixed_pages, tree_pages
from tonne.wire.record import CONTENT, EXTENT, FRAME
from tonne.wire.root import IndexBuilder, Pack, Part, Totals, parse_root

NEVER = Deadline()
MIB = 1 << 20


@dataclass
class Stored:
    repository: MemoryRepository
    index: Index

    @property
    def requests(self) -> int:
        return len(self.repository.asked)


def stored(
    entries: list[Entry],
    extents: Iterable[tuple[int, Extent]] = (),
    frames: list[Frame] | None = None,
    page_bytes: int = 600,
    depth: int = 1,
    cache_bytes: int = MIB,
) -> Stored:
    """An index of these tables, in memory, with tiny pages."""
    builder = IndexBuilder(1 if depth == 2 else 1 << 30)
    frames = frames or []
    rows = np.array([extent_record(inode, extent) for inode, extent in extents], EXTENT)
    contents = np.zeros(len(frames), CONTENT)
    for row, frame in zip(contents, frames, strict=True):
        row["digest"] = np.void(blake3_of(b"content %d" % frame.number))
    pages = [
        *builder.store(Part.TREE, tree_pages(entries, page_bytes)),
        *builder.store(Part.EXTENTS, extent_pages(rows, page_bytes)),
        *builder.store(Part.FRAMES, fixed_pages(frame_table(frames), 0, max(page_bytes, FRAME.itemsize))),
        *builder.store(Part.CONTENTS, fixed_pages(contents, 0, max(page_bytes, CONTENT.itemsize))),
    ]
    packs = [Pack(Digest.of(b"pack"), 1 << 40, 0, len(frames), 0)] if frames else []
    files = sum(1 for entry in entries if entry.is_file)
    tail, root = builder.finish(Totals(0, len(entries), files), packs)
    repository = MemoryRepository()
    blob = repository.add(b"".join(pages) + tail)
    parsed = parse_root(root)
    assert parsed.depth == depth
    return Stored(repository, Index(parsed, blob, Fetcher(repository, None, 16 * MIB), cache_bytes))


def entry(number: int, parent: int, name: bytes, **more: object) -> Entry:
    values: dict[str, object] = {
        "inode": number,
        "kind": Kind.FILE,
        "permissions": 0o644,
        "uid": 0,
        "gid": 0,
        "mtime_ns": number,
        "size_bytes": 0,
        "digest": bytes(32),
    }
    values.update(more)
    return Entry(number=number, parent=parent, name=name, **values)  # type: ignore[arg-type]


def tree_of(folders: list[list[bytes]]) -> list[Entry]:
    """A root with folders, named by number, that hold these names."""
    count = len(folders)
    first = 2 + count
    found = [entry(1, 0, b"", kind=Kind.DIRECTORY, first_child=2 if count else 0, children=count, digest=b"")]
    for place, names in enumerate(folders):
        found.append(
            entry(
                2 + place,
                1,
                b"%06d" % place,
                kind=Kind.DIRECTORY,
                digest=b"",
                first_child=first if names else 0,
                children=len(names),
            )
        )
        first += len(names)
    for place, names in enumerate(folders):
        for name in sorted(names):
            found.append(entry(len(found) + 1, 2 + place, name))
    return found


names = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
folders = st.lists(st.lists(names, unique=True, max_size=8), max_size=8)


@settings(max_examples=30)
@given(folders, st.sampled_from([1, 2]), st.integers(200, 2000), names)
def test_the_tree_reads_as_it_was_written(
    content: list[list[bytes]], depth: int, page_bytes: int, other: bytes
) -> None:
    entries = tree_of(content)
    index = stored(entries, page_bytes=page_bytes, depth=depth).index
    assert list(index.walk(NEVER)) == entries
    for each in entries:
        assert index.entry(each.number, NEVER) == each
        children = [child for child in entries if child.parent == each.number]
        for skip in range(len(children) + 1):
            assert list(index.children(each, NEVER, skip)) == children[skip:]
        by_name = {child.name: child for child in children}
        for name in [*by_name, other, b"", b"\xff" * 30]:
            assert index.lookup(each, name, NEVER) == by_name.get(name)
        path = index.path(each, NEVER)
        assert index.resolve(path, NEVER, follow_last=False) == each


@st.composite
def files(draw: st.DrawFn) -> list[tuple[int, Extent]]:
    """Extents of several files, each covered once, holes of any length among them."""
    found: list[tuple[int, Extent]] = []
    for inode in sorted(draw(st.sets(st.integers(1, 50), max_size=6))):
        at = 0
        lengths = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=25)
        for length, hole in draw(lengths):
            if hole:
                length <<= draw(st.sampled_from([0, 31, 33]))
                found.append((inode, Extent(at, length, None)))
            else:
                found.append((inode, Extent(at, length, draw(st.integers(0, 99)), draw(st.integers(0, 9)))))
            at += length
    return found


@settings(max_examples=50)
@given(files(), st.data(), st.sampled_from([24, 48, 240]), st.sampled_from([1, 2]))
def test_extents_are_those_that_cover_the_range(
    rows: list[tuple[int, Extent]], data: st.DataObject, page_bytes: int, depth: int
) -> None:
    index = stored(tree_of([]), rows, page_bytes=page_bytes, depth=depth).index
    for inode in {inode for inode, _ in rows}:
        mine = [extent for other, extent in rows if other == inode]
        end = data.draw(st.integers(1, mine[-1].end))
        start = data.draw(st.integers(0, end))
        expected = [extent for extent in mine if extent.end > start and extent.file_offset < end and start < end]
        assert index.extents(inode, start, end, NEVER) == expected
        with pytest.raises(CorruptIndex):
            index.extents(inode, start, mine[-1].end + 1, NEVER)
    if rows:
        with pytest.raises(CorruptIndex):
            index.extents(51, 0, 1, NEVER)


@settings(max_examples=50)
@given(files(), st.data(), st.sampled_from([24, 48, 240]))
def test_a_gap_or_an_overlap_is_never_read(
    rows: list[tuple[int, Extent]], data: st.DataObject, page_bytes: int
) -> None:
    changeable = [place for place in range(len(rows) - 1) if rows[place][0] == rows[place + 1][0]]
    if not changeable:
        return
    place = data.draw(st.sampled_from(changeable))
    inode, extent = rows[place]
    length = extent.length + data.draw(st.sampled_from([-1, 1]))
    end = max(item.end for other, item in rows if other == inode)
    # An extent that is too long is told only by the next one, which is not looked at when the first one is enough.
    if length == 0 or (length > extent.length and extent.end + 1 >= end):
        return
    broken = list(rows)
    broken[place] = (inode, Extent(extent.file_offset, length, extent.frame, extent.frame_offset))
    with pytest.raises(CorruptIndex):
        stored(tree_of([]), broken, page_bytes=page_bytes).index.extents(inode, 0, end, NEVER)


def frames_of(count: int) -> list[Frame]:
    return [
        Frame(number, 0, number * 10, 10, 20, int(Codec.ZSTD), blake3_of(b"%d" % number)) for number in range(count)
    ]


@given(st.integers(1, 40), st.data(), st.sampled_from([64, 130, 1000]), st.sampled_from([1, 2]))
def test_frames_and_contents_by_number(count: int, data: st.DataObject, page_bytes: int, depth: int) -> None:
    frames = frames_of(count)
    index = stored(tree_of([]), (), frames, page_bytes, depth).index
    numbers = data.draw(st.lists(st.integers(0, count - 1), max_size=20))
    assert index.frames(numbers, NEVER) == [frames[number] for number in numbers]
    for number in numbers:
        assert index.content_digest(number, NEVER) == blake3_of(b"content %d" % number)
    for wrong in (-1, count, 1 << 31):
        with pytest.raises(CorruptIndex):
            index.frames([wrong], NEVER)
    whole = [row for table in index.tables(Part.FRAMES, NEVER) for row in table["offset"].tolist()]
    assert whole == [frame.offset for frame in frames]


@pytest.mark.parametrize(
    "wrong",
    [
        {"pack": 1},
        {"offset": (1 << 40) - 5},
        {"raw_bytes": 0},
        {"raw_bytes": 65 << 20},
        {"stored_bytes": 0},
        {"stored_bytes": 65 << 20},
    ],
    ids=str,
)
def test_a_frame_out_of_bounds_is_refused(wrong: dict[str, int]) -> None:
    values: dict[str, object] = {
        "number": 0,
        "pack": 0,
        "offset": 0,
        "stored_bytes": 10,
        "raw_bytes": 20,
        "codec": 1,
        "digest": bytes(32),
    }
    index = stored(tree_of([]), (), [Frame(**{**values, **wrong})]).index  # type: ignore[arg-type]
    with pytest.raises(CorruptIndex):
        index.frames([0], NEVER)


def test_an_extent_that_overlaps_one_on_another_page_is_found() -> None:
    rows = [(1, Extent(0, 2, 0, 0)), (1, Extent(1, 1, 0, 0)), (1, Extent(2, 1, 0, 0))]
    for page_bytes in (24, 48, 72):
        with pytest.raises(CorruptIndex):
            stored(tree_of([]), rows, page_bytes=page_bytes).index.extents(1, 0, 3, NEVER)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_lookup_touches_a_page_of_each_level_and_what_was_read_stays(depth: int) -> None:
    held = stored(tree_of([[b"%04d" % number for number in range(500)]]), depth=depth)
    folder = held.index.entry(2, NEVER)
    before = held.requests
    assert held.index.lookup(folder, b"0250", NEVER) is not None
    assert held.requests - before <= depth
    before = held.requests
    assert held.index.lookup(folder, b"0250", NEVER) is not None
    assert held.requests == before


def test_the_whole_index_comes_in_one_request_and_then_nothing_is_fetched() -> None:
    entries = tree_of([[b"%04d" % number for number in range(100)] for _ in range(3)])
    held = stored(entries, [(5, Extent(0, 1, 0))], frames_of(30))
    held.index.load_all(NEVER)
    assert held.requests == 1
    assert list(held.index.walk(NEVER)) == entries
    assert held.index.extents(5, 0, 1, NEVER)
    assert held.index.frames(list(range(30)), NEVER) == frames_of(30)
    assert held.requests == 1


def test_pages_in_memory_are_bounded() -> None:
    held = stored(tree_of([[b"%04d" % number for number in range(500)]]), cache_bytes=2000)
    numbers = [entry.number for entry in held.index.walk(NEVER)]
    before = held.requests
    held.index.entry(numbers[-1], NEVER)
    assert held.requests == before, "the last page is still there"
    held.index.entry(numbers[0], NEVER)
    assert held.requests > before, "the first page has gone"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_total_is_counted_before_anything_is_allocated_by_it(depth: int) -> None:
    """At depth 2 a small root can claim any number of entries."""
    entries = tree_of([[b"%04d" % number for number in range(300)]])
    held = stored(entries, frames=frames_of(50), depth=depth)
    assert held.index.counted(Part.TREE, NEVER) == len(entries)
    assert held.index.counted(Part.FRAMES, NEVER) == 50
    assert held.index.counted(Part.EXTENTS, NEVER) == 0
    if depth == 2:
        root = held.index.root
        tree = root.parts[Part.TREE]
        claim = replace(root, parts={**root.parts, Part.TREE: replace(tree, records=4_000_000_000)})
        lying = Index(claim, held.index._blob, held.index._fetcher, MIB)
        with pytest.raises(CorruptIndex, match="add up"):
            lying.counted(Part.TREE, NEVER)
        with pytest.raises(CorruptIndex, match="add up"):
            make_plan(lying, Selection(), NEVER)


@pytest.mark.parametrize(
    ("what", "is_allowed"),
    [
        ({"stored_bytes": FRAME_STORED_BYTES_MAX}, True),
        ({"stored_bytes": FRAME_STORED_BYTES_MAX + 1}, False),
        ({"stored_bytes": 0}, False),
        ({"raw_bytes": FRAME_BYTES_MAX}, True),
        ({"raw_bytes": FRAME_BYTES_MAX + 1}, False),
        ({"raw_bytes": 0}, False),
    ],
)
def test_the_lengths_of_a_frame_are_bounded(what: dict[str, int], is_allowed: bool) -> None:
    frame = replace(frames_of(1)[0], **what)  # type: ignore[arg-type]
    index = stored(tree_of([]), frames=[frame]).index
    if is_allowed:
        assert index.frames([0], NEVER) == [frame]
    else:
        with pytest.raises(CorruptIndex):
            index.frames([0], NEVER)


def test_a_failure_is_not_remembered() -> None:
    held = stored(tree_of([[b"a"]]))
    held.repository.fail("read", Unreachable("no connection"), times=1)
    with pytest.raises(Unreachable):
        held.index.entry(1, NEVER)
    assert held.index.entry(1, NEVER).number == 1


def test_a_wrong_bit_in_a_page_is_found_wherever_it_is() -> None:
    held = stored(tree_of([[b"a", b"b"]]))
    blob = next(iter(held.repository.blobs))
    for offset in range(len(held.repository.blobs[blob])):
        held.repository.flip(blob, offset)
        with pytest.raises(CorruptBytes):
            held.index.load_all(NEVER)


def test_paths_follow_links_within_the_image_and_no_further() -> None:
    def link(number: int, name: bytes, target: bytes) -> Entry:
        return entry(number, 1, name, kind=Kind.SYMLINK, target=target, size_bytes=len(target), digest=b"")

    entries = [
        entry(1, 0, b"", kind=Kind.DIRECTORY, first_child=2, children=7, digest=b""),
        link(2, b"absolute", b"/etc/passwd"),
        link(3, b"broken", b"nowhere"),
        link(4, b"circle", b"circle"),
        entry(5, 1, b"folder", kind=Kind.DIRECTORY, first_child=9, children=1, digest=b""),
        link(6, b"good", b"./folder/../folder/file"),
        link(7, b"out", b"../x"),
        link(8, b"to-folder", b"folder"),
        entry(9, 5, b"file"),
    ]
    index = stored(entries).index
    for path in (b"folder/file", b"/folder//file/", b"good", b"to-folder/file", b"folder/./file"):
        assert index.resolve(path, NEVER).number == 9, path
    assert index.resolve(b"good", NEVER, follow_last=False).number == 6
    for path in (b"absolute", b"broken", b"circle", b"out", b"..", b"folder/file/x", b"nothing", b"good/x"):
        with pytest.raises(MissingPath):
            index.resolve(path, NEVER)


def test_a_folder_that_claims_anothers_entries_is_refused() -> None:
    entries = tree_of([[b"a"], [b"b"]])
    entries[1] = entry(2, 1, b"000000", kind=Kind.DIRECTORY, first_child=4, children=2, digest=b"")
    index = stored(entries).index
    with pytest.raises(CorruptIndex):
        list(index.children(index.entry(2, NEVER), NEVER))
    entries[1] = entry(2, 1, b"000000", kind=Kind.DIRECTORY, first_child=4, children=200, digest=b"")
    lying = stored(entries).index
    with pytest.raises(CorruptIndex):
        list(lying.children(lying.entry(2, NEVER), NEVER))


@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_in_memory_can_be_had_without_waiting(depth: int) -> None:
    entries = tree_of([[b"a", b"b"]])
    held = stored(entries, [(4, Extent(0, 10, 0))], frames_of(3), depth=depth)
    index, folder = held.index, entries[1]
    asks: list[Callable[[Deadline], object]] = [
        lambda deadline: index.entry(2, deadline),
        lambda deadline: index.lookup(folder, b"a", deadline),
        lambda deadline: list(index.children(folder, deadline)),
        lambda deadline: index.extents(4, 0, 10, deadline),
        lambda deadline: index.frames([2], deadline),
        lambda deadline: index.content_digest(2, deadline),
    ]
    for ask in asks:
        fresh = stored(entries, [(4, Extent(0, 10, 0))], frames_of(3), depth=depth)
        index = fresh.index
        with pytest.raises(NotInMemory):
            ask(MEMORY_ONLY)
        assert fresh.requests == 0
        expected = ask(NEVER)
        asked = fresh.requests
        assert ask(MEMORY_ONLY) == expected
        assert fresh.requests == asked
