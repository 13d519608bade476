"""What is found in a folder, in which order, and what is left out."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from tests.image.packing import FOREVER, Bench, check_equal, content_of, tree_of
from tonne.errors import LocalFailure, SourceChanged, SymlinkOutside
from tonne.image.pack import Links, PackOptions
from tonne.image.pack.links import leaves
from tonne.image.pack.scan import scan_folder
from tonne.image.pack.tree import ScannedTree
from tonne.model.entry import Kind


def check() -> None:
    """Nobody stops the scan."""


class Scan:
    """One scan, with what it warned of."""

    def __init__(self, folder: Path, scratch: Path, leave_out: set[tuple[int, int]] | None = None, **options: object):
        scratch.mkdir(exist_ok=True)
        self.warnings: list[str] = []
        made = PackOptions(**options)  # type: ignore[arg-type]  # a test's keywords
        self.tree: ScannedTree = scan_folder(
            os.fsencode(folder), made, scratch, leave_out or set(), self.warnings.append, check
        )
        self.paths = [self.tree.path(number) for number in range(1, len(self.tree) + 1)]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def make(top: Path, *paths: str) -> None:
    for path in paths:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (top / path).mkdir(exist_ok=True)
        else:
            (top / path).write_bytes(path.encode())


def test_breadth_first_names_in_byte_order(top: Path, scratch: Path) -> None:
    make(top, "b/z", "b/a/x", "B", "a-", "a/1", "a/0/", "é")
    assert Scan(top, scratch).paths == [
        b"",
        b"B",
        b"a",
        b"a-",
        b"b",
        "é".encode(),
        b"a/0",
        b"a/1",
        b"b/a",
        b"b/z",
        b"b/a/x",
    ]


def test_folders_know_their_children(top: Path, scratch: Path) -> None:
    make(top, "a/1", "a/2/", "b/")
    tree = Scan(top, scratch).tree
    rows = {tree.path(number): tree.row(number) for number in range(1, len(tree) + 1)}
    assert (rows[b""].first_child, rows[b""].children, rows[b""].links) == (2, 2, 4)
    assert (rows[b"a"].first_child, rows[b"a"].children, rows[b"a"].links) == (4, 2, 3)
    assert (rows[b"b"].first_child, rows[b"b"].children, rows[b"b"].links) == (0, 0, 2)


def test_hard_links_share_the_first_number(top: Path, scratch: Path, tmp_path: Path) -> None:
    make(top, "a/x", "m", "only")
    os.link(top / "m", top / "a" / "m2")
    os.link(top / "m", top / "z")
    os.link(top / "only", tmp_path / "outside")
    tree = Scan(top, scratch).tree
    rows = {tree.path(number): tree.row(number) for number in range(1, len(tree) + 1)}
    assert {rows[path].inode for path in (b"m", b"z", b"a/m2")} == {3}
    assert [rows[path].links for path in (b"m", b"z", b"a/m2", b"only", b"a/x")] == [3, 3, 3, 1, 1]
    assert (tree.files, tree.content_bytes) == (3, len("m") + len("only") + len("a/x"))


def test_devices_fifos_and_sockets_are_left_out_and_told(top: Path, scratch: Path) -> None:
    make(top, "x")
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(top / "sock"))
        if os.geteuid() == 0:
            os.mknod(top / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        scan = Scan(top, scratch)
    assert scan.paths == [b"", b"x"]
    assert any("fifo" in line for line in scan.warnings)
    assert any("socket" in line for line in scan.warnings)


@pytest.mark.timeout(20)
def test_a_fifo_is_never_waited_for(top: Path, scratch: Path) -> None:
    make(top, "x")
    tree = Scan(top, scratch).tree
    (top / "x").unlink()
    os.mkfifo(top / "x")
    with pytest.raises(SourceChanged):
        tree.open_file(2, tree.row(2))
    os.mkfifo(top / ".tonneignore")
    with pytest.raises(LocalFailure, match="regular"):
        Scan(top, scratch)


def test_what_is_left_out(top: Path, scratch: Path) -> None:
    make(top, "keep", "a.tmp", "sub/b.tmp", "sub/keep.tmp", "logs/1", "deep/logs/2", "build/x", "sub/build/y")
    (top / ".tonneignore").write_text("# comment\n*.tmp\n!keep.tmp\nlogs/\n")
    scan = Scan(top, scratch, exclude=("/build",))
    assert scan.paths == [b"", b"deep", b"keep", b"sub", b"sub/build", b"sub/keep.tmp", b"sub/build/y"]


def test_folders_that_we_write_to_are_left_out(top: Path, scratch: Path) -> None:
    make(top, "x", "cache/data")
    state = (top / "cache").stat()
    scan = Scan(top, scratch, {(state.st_dev, state.st_ino)})
    assert scan.paths == [b"", b"x"]
    assert len(scan.warnings) == 1


def test_paths_longer_than_a_system_call_takes(top: Path, tmp_path: Path) -> None:
    at = os.open(top, os.O_RDONLY)
    name = "d" * 250
    for _ in range(20):
        os.mkdir(name, dir_fd=at)
        deeper = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    fd = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=at)
    os.write(fd, b"deep")
    os.close(fd)
    os.setxattr(f"/proc/self/fd/{at}/file", "user.deep", b"yes")
    os.symlink("file", "link", dir_fd=at)
    os.close(at)
    bench = Bench(tmp_path / "bench")
    bench.pack(top)
    image = bench.image()
    found = tree_of(image)
    path = b"/".join([name.encode()] * 20)
    assert content_of(image, found[path + b"/file"]) == b"deep"
    assert found[path + b"/file"].xattrs == ((b"user.deep", b"yes"),)
    assert found[path + b"/link"].target == b"file"


def test_attributes(top: Path, tmp_path: Path) -> None:
    make(top, "x", "folder/")
    os.setxattr(top / "x", b"user.b", b"2")
    os.setxattr(top / "x", b"user.a", bytes(range(256)))
    os.setxattr(top / "folder", b"user.f", b"")
    if os.geteuid() == 0:
        os.setxattr(top / "x", b"trusted.t", b"t")
        os.setxattr(top, b"user.root", b"r")
    bench = Bench(tmp_path / "bench")
    bench.pack(top)
    found = tree_of(bench.image())
    expected = [(b"user.a", bytes(range(256))), (b"user.b", b"2")]
    if os.geteuid() == 0:
        expected.insert(0, (b"trusted.t", b"t"))
        assert found[b""].xattrs == ((b"user.root", b"r"),)
    assert found[b"x"].xattrs == tuple(expected)
    assert found[b"folder"].xattrs == ((b"user.f", b""),)


# --- symbolic links ---


def test_a_cache_of_hugging_face_packs_as_real_files(tmp_path: Path) -> None:
    repo = tmp_path / "models--x--y"
    snapshot = repo / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for name, blob in (("config.json", b"{}"), ("model.safetensors", b"weights" * 1000), ("copy", b"{}")):
        target = repo / "blobs" / f"{len(blob)}"
        target.write_bytes(blob)
        os.symlink(f"../../blobs/{target.name}", snapshot / name)
    bench = Bench(tmp_path / "bench")
    result = bench.pack(snapshot)
    image = bench.image()
    found = tree_of(image)
    assert {path: entry.kind for path, entry in found.items()} == {
        b"": Kind.DIRECTORY,
        b"config.json": Kind.FILE,
        b"copy": Kind.FILE,
        b"model.safetensors": Kind.FILE,
    }
    assert content_of(image, found[b"model.safetensors"]) == b"weights" * 1000
    # Two links to one blob are two names of one file.
    assert found[b"config.json"].inode == found[b"copy"].inode
    assert result.files == 2


def test_links_within_stay_links(top: Path, scratch: Path) -> None:
    make(top, "a/x", "b/")
    os.symlink("a/x", top / "one")
    os.symlink("../a", top / "b" / "two")
    os.symlink(".", top / "b" / "self")
    tree = Scan(top, scratch).tree
    kept = {tree.path(n): stat.S_ISLNK(tree.row(n).mode) for n in range(1, len(tree) + 1)}
    assert kept == {b"": False, b"a": False, b"b": False, b"one": True, b"a/x": False, b"b/self": True, b"b/two": True}


def test_links_that_leave(top: Path, scratch: Path, tmp_path: Path) -> None:
    make(top, "x")
    outside = tmp_path / "outside"
    make(outside, "deep/file", "top")
    os.symlink("deep/file", outside / "inner")
    os.symlink("../model/x", outside / "back")
    os.symlink(outside, top / "folder")
    os.symlink(top / "x", top / "absolute")
    os.symlink("../model/x", top / "around")
    scan = Scan(top, scratch)
    assert scan.paths == [
        b"",
        b"absolute",
        b"around",
        b"folder",
        b"x",
        b"folder/back",
        b"folder/deep",
        b"folder/inner",
        b"folder/top",
        b"folder/deep/file",
    ]
    rows = {path: scan.tree.row(number) for number, path in enumerate(scan.paths, 1)}
    assert {path for path, row in rows.items() if stat.S_ISLNK(row.mode)} == {b"folder/inner"}

    kept = Scan(top, scratch, links=Links.KEEP)
    assert kept.paths == [b"", b"absolute", b"around", b"folder", b"x"]
    assert len(kept.warnings) == 3
    with pytest.raises(SymlinkOutside, match="absolute"):
        Scan(top, scratch, links=Links.ERROR)


def test_followed_content_is_read(top: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make(outside, "deep/file")
    os.symlink(outside, top / "folder")
    bench = Bench(tmp_path / "bench")
    bench.pack(top)
    image = bench.image()
    assert content_of(image, tree_of(image)[b"folder/deep/file"]) == b"deep/file"
    assert image.index.entry(1, FOREVER).children == 1


def test_broken_links(top: Path, scratch: Path) -> None:
    os.symlink("nowhere", top / "inside")
    os.symlink("/nowhere/at/all", top / "outside")
    os.symlink("b", top / "a")
    os.symlink("a", top / "b")
    scan = Scan(top, scratch)
    assert scan.paths == [b"", b"a", b"b", b"inside", b"outside"]
    assert len(scan.warnings) == 4
    with pytest.raises(SymlinkOutside):
        Scan(top, scratch, links=Links.ERROR)


@pytest.mark.parametrize("target", ["..", "."])
def test_circles_are_found(top: Path, scratch: Path, target: str) -> None:
    make(top, "x")
    os.symlink(os.path.realpath(top / target), top / "again")
    with pytest.raises(SymlinkOutside, match="circle"):
        Scan(top, scratch)
    assert Scan(top, scratch, links=Links.KEEP).paths == [b"", b"again", b"x"]


def test_special_files_behind_links(top: Path, scratch: Path) -> None:
    os.symlink("/dev/null", top / "null")
    scan = Scan(top, scratch)
    assert scan.paths == [b""]
    assert len(scan.warnings) == 1


@pytest.mark.parametrize(
    ("folder", "target", "out"),
    [
        (b"/m", b"x", False),
        (b"/m/a", b"../x", False),
        (b"/m/a", b"../../x", True),
        (b"/m/a", b"../../m/x", True),
        (b"/m", b"/m/x", True),
        (b"/m", b"a/../b", False),
        (b"/m", b"a/../../b", True),
        (b"/m", b"./././x", False),
    ],
)
def test_which_links_leave(folder: bytes, target: bytes, out: bool) -> None:
    assert leaves(folder, b"/m", target) is out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(top: Path, tmp_path: Path) -> None:
    make(top, "secret")
    os.chmod(top / "secret", 0)
    with pytest.raises(LocalFailure, match="secret"):
        Bench(tmp_path / "bench").pack(top)


def test_many_small_files(top: Path, tmp_path: Path) -> None:
    for folder in range(20):
        (top / f"{folder}").mkdir()
        for place in range(150):
            (top / f"{folder}" / f"{place}").write_bytes(b"%d" % (place % 100))
    bench = Bench(tmp_path / "bench")
    result = bench.pack(top)
    assert (result.files, result.new_frames) == (3000, 1)
    check_equal(bench.image(), top)
