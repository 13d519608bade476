"""Folders with everything that makes a copy go wrong, and what must be equal in a copy."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

FRAME_BYTES = 4 * 1024 * 1024
COMPARE_BYTES = 8 * 1024 * 1024


def make_hard_tree(folder: Path, small_files: int, large_bytes: int) -> None:
    """Small files by the thousand, names of every kind, links, holes, attributes, sizes around a frame.

    Deterministic but for owners: those are set only when the caller is root.
    """
    source = random.Random(7)
    root = os.fsencode(folder)
    os.makedirs(root)
    many = os.path.join(root, b"many")
    os.mkdir(many)
    for number in range(small_files):
        group = os.path.join(many, b"%03d" % (number % 100)) if number % 2 else many
        if not os.path.isdir(group):
            os.mkdir(group)
        _write(os.path.join(group, b"file-%06d" % number), b"%d\n" % number * (number % 50))
    for name, size in (
        (b"frame-exactly", FRAME_BYTES),
        (b"frame-and-one", FRAME_BYTES + 1),
        (b"frame-less-one", FRAME_BYTES - 1),
        (b"two-frames-and-one", 2 * FRAME_BYTES + 1),
        (b"one-byte", 1),
        (b"empty", 0),
        (b"zeros", 3 * FRAME_BYTES),
    ):
        _write(os.path.join(root, name), bytes(size) if name == b"zeros" else source.randbytes(size))
    _write_large(os.path.join(root, b"large"), large_bytes)
    _write(os.path.join(root, b"n" * 255), b"a long name")
    _write(os.path.join(root, b"invalid-\xff\xfe-utf8"), b"a name that is no text")
    _write(os.path.join(root, "ünïcode 文件 \U0001f40b".encode()), b"a name that is text")
    for odd in (
        b"new\nline",
        b" leading",
        b"trailing ",
        b"-dash",
        b"tab\t",
        b"percent%41",
        b"quote'\"",
        b"back\\slash",
    ):
        _write(os.path.join(root, odd), odd)
    deep = root
    for level in range(60):
        deep = os.path.join(deep, b"deep-%02d" % level)
        os.mkdir(deep)
    _write(os.path.join(deep, b"bottom"), b"down here")
    os.makedirs(os.path.join(root, b"empty-folder", b"inner"))
    links = os.path.join(root, b"links")
    os.mkdir(links)
    os.link(os.path.join(root, b"frame-and-one"), os.path.join(links, b"hard"))
    os.link(os.path.join(root, b"frame-and-one"), os.path.join(links, b"hard-too"))
    os.link(os.path.join(root, b"empty"), os.path.join(links, b"hard-empty"))
    os.symlink(b"../frame-exactly", os.path.join(links, b"relative"))
    os.symlink(b"../many", os.path.join(links, b"to-folder"))
    os.symlink(b"nowhere/at/all", os.path.join(links, b"broken"))
    os.symlink(b"t" * 1000, os.path.join(links, b"long-target"))
    os.symlink(b"\xfe\xff", os.path.join(links, b"target-not-text"))
    _write_holes(
        os.path.join(root, b"holes"), [(0, b"head"), (5 * FRAME_BYTES + 123, b"middle"), (9 * FRAME_BYTES, b"end")]
    )
    _write_holes(os.path.join(root, b"hole-at-end"), [(0, b"head")], size=6 * FRAME_BYTES + 17)
    _write_holes(os.path.join(root, b"all-hole"), [], size=2 * FRAME_BYTES)
    attributes = os.path.join(root, b"attributes")
    _write(attributes, b"has attributes")
    os.setxattr(attributes, "user.one", b"1")
    os.setxattr(attributes, "user.binary", bytes(range(256)))
    os.setxattr(attributes, "user.empty", b"")
    os.setxattr(os.path.join(root, b"empty-folder"), "user.folder", b"yes")
    for mode in (0o400, 0o755, 0o4755, 0o2750, 0o1666, 0o000):
        path = os.path.join(root, b"mode-%04o" % mode)
        _write(path, b"%o" % mode)
        os.chmod(path, mode)
    os.mkdir(os.path.join(root, b"sticky"), 0o777)
    os.chmod(os.path.join(root, b"sticky"), 0o1777)
    if os.geteuid() == 0:
        os.chown(os.path.join(root, b"one-byte"), 1234, 4321)
        os.chown(os.path.join(root, b"links", b"broken"), 77, 88, follow_symlinks=False)
    for name, stamp in ((b"one-byte", 1), (b"zeros", -5_000_000_001), (b"empty", 1_700_000_000_123_456_789)):
        os.utime(os.path.join(root, name), ns=(stamp, stamp))
    os.utime(os.path.join(links, b"relative"), ns=(999, 999), follow_symlinks=False)
    os.utime(os.path.join(root, b"empty-folder"), ns=(42, 42))


def _write(path: bytes, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _write_large(path: bytes, size_bytes: int) -> None:
    block = random.Random(3).randbytes(FRAME_BYTES + 4099)
    with open(path, "wb") as file:
        left = size_bytes
        number = 0
        while left > 0:
            piece = number.to_bytes(8, "little") + block[: min(len(block), left)]
            file.write(piece[:left])
            left -= min(len(piece), left)
            number += 1


def _write_holes(path: bytes, pieces: list[tuple[int, bytes]], size: int = 0) -> None:
    with open(path, "wb") as file:
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)
        if size:
            file.truncate(size)


@dataclass(frozen=True, slots=True)
class Facts:
    """What must be equal of an entry. `links`: the first name, in byte order, of the same inode."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    nlink: int
    links: bytes
    target: bytes
    digest: str
    attributes: tuple[tuple[str, bytes], ...]


def facts_of(folder: Path, contents: bool = True) -> dict[bytes, Facts]:
    """Every entry below a folder, itself as ``b""``, by its path."""
    root = os.fsencode(folder)
    paths = [b""]
    for parent, folders, files in os.walk(root):
        paths += [os.path.relpath(os.path.join(parent, name), root) for name in (*folders, *files)]
    stats = {path: os.lstat(os.path.join(root, path)) for path in paths}
    first: dict[tuple[int, int], bytes] = {}
    for path in sorted(paths):
        first.setdefault((stats[path].st_dev, stats[path].st_ino), path)
    found: dict[bytes, Facts] = {}
    for path, stat in stats.items():
        full = os.path.join(root, path)
        kind = stat.st_mode & 0o170000
        found[path] = Facts(
            mode=stat.st_mode,
            uid=stat.st_uid,
            gid=stat.st_gid,
            mtime_ns=stat.st_mtime_ns,
            size=0 if kind == 0o040000 else stat.st_size,
            nlink=1 if kind == 0o040000 else stat.st_nlink,
            links=first[stat.st_dev, stat.st_ino],
            target=os.readlink(full) if kind == 0o120000 else b"",
            digest=_digest(full) if kind == 0o100000 and contents else "",
            attributes=_attributes(full),
        )
    return found


def _digest(path: bytes) -> str:
    hasher = blake3()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(COMPARE_BYTES):
            hasher.update(data)
    return hasher.hexdigest()


def _attributes(path: bytes) -> tuple[tuple[str, bytes], ...]:
    names = sorted(name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user."))
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)


def differences(expected: dict[bytes, Facts], found: dict[bytes, Facts], ignore: tuple[str, ...] = ()) -> list[str]:
    """Every difference as a line; empty when equal. The top folder's own facts are not compared."""
    lines = [f"missing: {path!r}" for path in sorted(expected.keys() - found.keys())]
    lines += [f"extra: {path!r}" for path in sorted(found.keys() - expected.keys())]
    for path in sorted(expected.keys() & found.keys() - {b""}):
        for name in Facts.__slots__:
            ours, theirs = getattr(expected[path], name), getattr(found[path], name)
            if name not in ignore and ours != theirs:
                lines.append(f"{path[:80]!r}: {name}: {ours!r} became {theirs!r}"[:300])
    return lines
