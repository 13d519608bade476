"""Two images compared."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image.sketch import Made, make, put
from tonne.clock import Deadline
from tonne.image.diff import Change, Sharing, differences, sharing
from tonne.image.index import Index
from tonne.image.opening import open_image
from tonne.image.report import report_of
from tonne.model import Entry
from tonne.settings import Settings
from tonne.source.memory import MemoryRepository


def index_of(made: Made) -> Index:
    repository = MemoryRepository()
    put(repository, made)
    return open_image(repository, "v1", Settings(), Deadline()).index


def found(old: str, new: str) -> list[tuple[str, bytes, int]]:
    items = differences(index_of(make(old)), index_of(make(new)), Deadline())

    def size(entry: Entry | None) -> int:
        return entry.size_bytes if entry is not None else 0

    return [(item.change.value, item.path, size(item.new) - size(item.old)) for item in items]


OLD = """
    dir a
    file a/same text:same
    file a/grows text:one
    file a/mode text:x mode=644
    file a/time text:x mtime=1
    file gone text:gone
    dir old
    file old/f text:f
    link l a
    dir becomes
    file becomes/inside text:x
"""
NEW = """
    dir a mtime=5
    file a/same text:same
    file a/grows text:longer
    file a/mode text:x mode=600
    file a/time text:x mtime=2
    file new text:new
    link l b
    file becomes text:file
"""


def test_what_differs() -> None:
    assert found(OLD, OLD) == []
    assert found(OLD, NEW) == [
        ("changed", b"a/grows", 3),
        ("changed", b"a/mode", 0),
        ("changed", b"becomes", 4),
        ("removed", b"becomes/inside", -1),
        ("removed", b"gone", -4),
        ("changed", b"l", 0),
        ("added", b"new", 3),
        ("removed", b"old", 0),
        ("removed", b"old/f", -1),
    ]


names = st.sampled_from(["a", "b", "c", "d"])
trees = st.dictionaries(st.tuples(names, names), st.sampled_from(["one", "two"]), max_size=8)


def _text(tree: dict[tuple[str, str], str]) -> str:
    folders = sorted({above for above, _ in tree})
    return "\n".join([f"dir {name}" for name in folders] + [f"file {a}/{b} text:{t}" for (a, b), t in tree.items()])


@settings(max_examples=60)
@given(trees, trees)
def test_differences_are_those_of_the_dictionaries(
    old: dict[tuple[str, str], str], new: dict[tuple[str, str], str]
) -> None:
    items = list(differences(index_of(make(_text(old))), index_of(make(_text(new))), Deadline()))
    files = {item.path: item.change for item in items if b"/" in item.path}
    expected = {}
    for key in set(old) | set(new):
        if old.get(key) != new.get(key):
            change = Change.ADDED if key not in old else Change.REMOVED if key not in new else Change.CHANGED
            expected["/".join(key).encode()] = change
    assert files == expected
    assert [item.path for item in items] == sorted((item.path for item in items), key=lambda path: path.split(b"/"))


def test_shared_bytes() -> None:
    text = "frame 4096\nlevel 0\nfile a seed:1:40000"
    one = make(text)
    alone = index_of(one)
    stored = sum(frame.stored_bytes for frame in one.frames)
    assert sharing(alone, alone, Deadline()) == Sharing(stored, stored, stored)
    # The same pack, of which the other image uses one frame less.
    extents = one.extents[2]
    used = make(text, change_extents=lambda all_: all_.update({2: [extents[1], *extents[1:]]}))
    part = sharing(alone, index_of(used), Deadline())
    assert part.shared_bytes == stored - one.frames[0].stored_bytes
    assert sharing(alone, index_of(make("file b seed:2:5000")), Deadline()).shared_bytes == 0
    assert sharing(index_of(make("dir a")), index_of(make("dir b")), Deadline()) == Sharing(0, 0, 0)


def test_a_report_adds_up() -> None:
    made = make("frame 4096\nlanes 2\nfile a seed:1:100000\nfile b text:x")
    repository = MemoryRepository()
    put(repository, made)
    report = report_of(open_image(repository, "v1", Settings(), Deadline()), Deadline())
    document = report.document()
    assert document["digest"] == str(made.document.digest)
    assert document["contentBytes"] == 100001
    assert document["storedBytes"] == sum(len(pack) for pack in made.packs)
    assert document["usedBytes"] == sum(frame.stored_bytes for frame in made.frames)
    assert document["indexBytes"] == len(made.root) + len(made.pages)
    assert [pack["digest"] for pack in document["packs"]] == [str(pack.digest) for pack in made.manifest.packs]
    assert sum(pack["frames"] for pack in document["packs"]) == document["frames"] == len(made.frames)
