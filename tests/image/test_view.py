"""The view: what a file read gives, and the tree as a mount shows it."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image.sketch import Made, make, put
from tonne.clock import Deadline
from tonne.errors import CorruptBytes, CorruptIndex, MissingPath, Unreachable
from tonne.image.opening import open_image
from tonne.image.view import View
from tonne.model import Entry, Extent
from tonne.settings import Settings
from tonne.source.memory import MemoryRepository

NEVER = Deadline()

TEXT = r"""
frame 1000
lanes 2
dir  empty
dir  folder mode=700 mtime=5.000000007 uid=12 gid=34 user.x=00ff
file folder/one text:one
file folder/hard-first seed:9:2500 mode=640 user.a=01 user.b=
hard hard-second folder/hard-first
file nothing -
file whole-frame seed:1:1000
file frame-more seed:2:1001
file frame-less seed:3:999
file large seed:4:20000
file holes hole:1500+seed:5:1700+hole:5000+seed:6:10+hole:3
file all-hole hole:12345
file zeros zero:5000
file same-zeros zero:5000
file a-small text:a
file b-small text:bb
file c-small text:ccc
link link folder/one mode=777
link broken nowhere
file \xff\xfe text:name
"""


@functools.cache
def made() -> Made:
    return make(TEXT)


def view_of(image: Made, chosen: Settings | None = None) -> tuple[View, MemoryRepository]:
    repository = MemoryRepository()
    put(repository, image)
    chosen = chosen or Settings()
    return View(open_image(repository, "v1", chosen, NEVER), chosen), repository


@functools.cache
def shared() -> View:
    return view_of(made())[0]


@given(st.sampled_from(sorted(made().contents)), st.integers(0, 21000), st.integers(0, 21000))
@settings(max_examples=300)
def test_any_range_of_any_file_is_right(path: bytes, offset: int, length: int) -> None:
    view, content = shared(), made().contents[path]
    entry = view.resolve(path, NEVER)
    assert entry.size_bytes == len(content)
    file = view.open(entry.inode, NEVER)
    expected = content[offset : offset + length]
    assert bytes(file.read(offset, length, NEVER)) == expected
    assert bytes(view.read(entry.inode, offset, length, NEVER)) == expected
    held = file.peek(offset, length)
    assert held is not None
    assert bytes(held) == expected
    assert held.readonly or not expected


def test_a_hole_of_a_tebibyte_costs_nothing() -> None:
    def longer(entries: list[Entry]) -> None:
        entries[1] = replace(entries[1], size_bytes=1 << 40)

    def wider(extents: dict[int, list[Extent]]) -> None:
        extents[2] = [Extent(0, 1 << 40, None)]

    view, repository = view_of(make("file sparse hole:10", longer, wider))
    inode = view.resolve(b"sparse", NEVER).inode
    before = len(repository.asked)
    assert bytes(view.read(inode, 1 << 39, 4096, NEVER)) == bytes(4096)
    assert len(view.read(inode, (1 << 40) - 10, 4096, NEVER)) == 10
    assert len(repository.asked) == before


def test_one_extents_bytes_are_not_copied() -> None:
    view = shared()
    inode = view.resolve(b"large", NEVER).inode
    file = view.open(inode, NEVER)
    one, two = file.read(100, 200, NEVER), file.read(300, 200, NEVER)
    assert one.obj is two.obj


def test_peek_never_asks_anybody() -> None:
    view, repository = view_of(made())
    file = view.open(view.resolve(b"large", NEVER).inode, NEVER)
    before = len(repository.asked)
    assert file.peek(0, 100) is None
    file.extents(0, 100, NEVER)
    assert file.peek(0, 100) is None, "the frame is not there yet"
    assert len(repository.asked) == before
    file.read(0, 100, NEVER)
    assert bytes(file.peek(0, 100) or b"") == made().contents[b"large"][:100]
    beyond = file.peek(20000, 5)
    assert beyond is not None
    assert beyond.nbytes == 0


def test_the_tree() -> None:
    view, image = shared(), made()
    names = sorted(path for path in image.paths if path and b"/" not in path)
    found = list(view.children(1, NEVER))
    assert [entry.name for entry in found] == names
    for skip in range(len(names)):
        assert [entry.name for entry in view.children(1, NEVER, skip)] == names[skip:]
    for name, entry in zip(names, found, strict=True):
        assert view.lookup(1, name, NEVER) == entry
        assert view.entry(entry.inode, NEVER).inode == entry.inode
        assert view.remembered(entry.inode) is not None
    assert view.lookup(1, b"missing", NEVER) is None
    folder = view.resolve(b"folder", NEVER)
    assert (folder.mode, folder.mtime_ns, folder.uid, folder.gid) == (0o040700, 5_000_000_007, 12, 34)
    assert folder.xattrs == ((b"user.x", b"\x00\xff"),)
    assert view.resolve(b"link", NEVER, follow_last=False).target == b"folder/one"
    assert view.resolve(b"link", NEVER).name == b"one"
    assert view.space().entries == len(image.entries)
    assert view.space().content_bytes == sum(
        entry.size_bytes for entry in image.entries if entry.is_file and entry.inode == entry.number
    )


def test_names_of_a_hard_link_share_everything_but_the_name() -> None:
    view = shared()
    first, second = view.resolve(b"folder/hard-first", NEVER), view.resolve(b"hard-second", NEVER)
    assert first.inode == second.inode
    assert (first.name, second.name) == (b"hard-first", b"hard-second")
    for field in ("mode", "links", "size_bytes", "mtime_ns", "xattrs", "digest", "uid", "gid"):
        assert getattr(first, field) == getattr(second, field), field
    assert first.links == 2
    assert view.read(second.inode, 0, 5000, NEVER) == made().contents[b"folder/hard-first"]


@pytest.mark.parametrize("target", [b"folder", b"link", b""])
def test_a_hard_link_to_something_else_is_refused(target: bytes) -> None:
    image = made()
    number = 1 + image.paths.index(target)
    victim = max(place for place, path in enumerate(image.paths) if image.entries[place].is_file)

    def change(entries: list[Entry]) -> None:
        entries[victim] = replace(entries[victim], inode=number)

    view, _ = view_of(make(TEXT, change))
    with pytest.raises(CorruptIndex):
        view.resolve(image.paths[victim], NEVER)


def test_an_extent_that_leaves_its_frame_is_refused() -> None:
    def change(extents: dict[int, list[Extent]]) -> None:
        for inode, items in extents.items():
            extents[inode] = [
                item if item.frame is None else replace(item, frame_offset=item.frame_offset + 1) for item in items
            ]

    view, _ = view_of(make("frame 1000\nfile a seed:1:3000", change_extents=change))
    inode = view.resolve(b"a", NEVER).inode
    with pytest.raises(CorruptIndex):
        view.read(inode, 0, 10, NEVER)


def test_what_is_no_file_is_not_opened_and_what_is_no_folder_not_listed() -> None:
    view = shared()
    with pytest.raises(MissingPath):
        view.open(1, NEVER)
    with pytest.raises(MissingPath):
        view.lookup(view.resolve(b"nothing", NEVER).inode, b"x", NEVER)
    for number in (0, len(made().entries) + 1, 1 << 40):
        with pytest.raises(MissingPath):
            view.entry(number, NEVER)


@given(st.data())
@settings(max_examples=60)
def test_no_wrong_bit_reaches_a_reader(data: st.DataObject) -> None:
    image = made()
    path = data.draw(st.sampled_from([b"large", b"zeros", b"a-small", b"holes"]))
    view, repository = view_of(image)
    pack = data.draw(st.sampled_from(image.manifest.packs))
    repository.flip(pack.digest, data.draw(st.integers(0, pack.size_bytes - 1)))
    inode = view.resolve(path, NEVER).inode
    try:
        assert view.read(inode, 0, 30000, NEVER) == image.contents[path]
    except CorruptBytes:
        repository.heal()
        assert view.read(inode, 0, 30000, NEVER) == image.contents[path], "the failure was remembered"


def test_a_failure_is_forgotten() -> None:
    view, repository = view_of(made())
    inode = view.resolve(b"large", NEVER).inode
    repository.fail("read", Unreachable("no connection"), times=3)
    for _ in range(3):
        with pytest.raises(Unreachable):
            view.read(inode, 0, 100, NEVER)
    assert view.read(inode, 0, 100, NEVER) == made().contents[b"large"][:100]


def test_many_threads_read_the_same_things() -> None:
    view, _ = view_of(made())
    image = made()
    paths = sorted(image.contents) * 6

    def whole(path: bytes) -> bytes:
        return bytes(view.read(view.resolve(path, NEVER).inode, 0, 30000, NEVER))

    with ThreadPoolExecutor(8) as pool:
        for path, data in zip(paths, pool.map(whole, paths), strict=True):
            assert data == image.contents[path], path
