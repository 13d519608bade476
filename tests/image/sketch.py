"""Images from a text form, written with nothing but tonne.wire: for golden files, and for tests that need an image.

A line is an entry or a setting; words as in a shell, ``\\xNN`` in paths for any byte, ``#`` begins a comment:

    frame 4096                      content of a frame (default 4 MiB)
    lanes 2                         packs; eight frames in turn to each (default 1)
    level 3                         zstd, 0: all frames raw (default 3)
    depth 2                         make the root list pages of lists
    dir  PATH [mode=755] [mtime=SECONDS.NANOSECONDS] [uid=0] [gid=0] [user.NAME=HEX]...
    file PATH CONTENT [mode=644] ...
    link PATH TARGET ...
    hard PATH FIRST

CONTENT is ``-`` (empty) or pieces joined by ``+``: ``text:...``, ``seed:N:BYTES`` (SHAKE-256), ``zero:BYTES`` (stored),
``hole:BYTES`` (not stored).  Small files share frames as the packer has it; equal frames are stored once.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from blake3 import blake3

from tests.wire.rows import extent_record, frame_table
from tonne.codec.frames import Encoder
from tonne.model import Blob, Digest, Entry, Extent, Frame, Kind, blake3_of
from tonne.source.seam import Document
from tonne.wire.oci import (
    CONFIG_TYPE,
    MANIFEST_TYPE,
    PACK_TYPE,
    PAGES_TYPE,
    ROOT_TYPE,
    Config,
    Descriptor,
    ImageManifest,
)
from tonne.wire.pack import encode_footer
from tonne.wire.page import PAGE_BYTES, extent_pages, fixed_pages, tree_pages
from tonne.wire.record import CONTENT, EXTENT
from tonne.wire.root import IndexBuilder, Pack, Part, Totals

LARGE_BYTES = 1 << 20  # files above this have frames of their own


@dataclass
class Made:
    """A built image: all blobs by digest, the manifest, and what the files hold, for comparison."""

    document: Document
    blobs: dict[Digest, bytes]
    entries: list[Entry]
    paths: list[bytes]
    contents: dict[bytes, bytes]
    frames: list[Frame]
    extents: dict[int, list[Extent]]
    manifest: ImageManifest
    root: bytes
    pages: bytes
    packs: list[bytes] = field(default_factory=list)

    def entry(self, path: bytes) -> Entry:
        return self.entries[self.paths.index(path)]


class Holder(Protocol):
    """The part of a repository in memory that an image is put into."""

    def add(self, data: bytes) -> Blob: ...

    @property
    def manifests(self) -> dict[Digest, Document]: ...
    @property
    def named(self) -> dict[str, Digest]: ...


def put(repository: Holder, made: Made, tag: str = "v1") -> None:
    """Store the image in a repository in memory under a tag."""
    for data in made.blobs.values():
        repository.add(data)
    repository.manifests[made.document.digest] = made.document
    repository.named[tag] = made.document.digest


@dataclass
class _Node:
    path: bytes
    kind: str
    content: list[tuple[str, bytes | int]] = field(default_factory=list)
    target: bytes = b""
    mode: int = 0
    mtime_ns: int = 1_600_000_000_000_000_000
    uid: int = 0
    gid: int = 0
    xattrs: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def parent(self) -> bytes:
        return self.path.rpartition(b"/")[0]

    @property
    def name(self) -> bytes:
        return self.path.rpartition(b"/")[2]


def _bytes(word: str) -> bytes:
    return word.encode("utf-8").decode("unicode_escape").encode("latin-1") if "\\" in word else word.encode()


def _content(text: str) -> list[tuple[str, bytes | int]]:
    pieces: list[tuple[str, bytes | int]] = []
    for piece in [] if text == "-" else text.split("+"):
        kind, _, rest = piece.partition(":")
        if kind == "text":
            pieces.append(("data", rest.encode()))
        elif kind == "seed":
            seed, _, length = rest.partition(":")
            pieces.append(("data", hashlib.shake_256(seed.encode()).digest(int(length))))
        elif kind == "zero":
            pieces.append(("data", bytes(int(rest))))
        elif kind == "hole":
            pieces.append(("hole", int(rest)))
        else:
            raise ValueError(piece)
    return pieces


def _parse(text: str) -> tuple[dict[str, int], dict[bytes, _Node]]:
    settings = {"frame": 4 << 20, "lanes": 1, "level": 3, "depth": 1}
    nodes = {b"": _Node(b"", "dir", mode=0o755)}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] in settings:
            settings[words[0]] = int(words[1])
            continue
        kind, path = words[0], _bytes(words[1]).strip(b"/")
        node = _Node(path, kind, mode={"dir": 0o755, "link": 0o777}.get(kind, 0o644))
        rest = words[2:]
        if kind == "file":
            node.content = _content(rest.pop(0))
        elif kind in ("link", "hard"):
            node.target = _bytes(rest.pop(0))
        elif kind != "dir":
            raise ValueError(line)
        for word in rest:
            key, _, value = word.partition("=")
            if key == "mode":
                node.mode = int(value, 8)
            elif key == "mtime":
                seconds, _, nanoseconds = value.partition(".")
                node.mtime_ns = int(seconds) * 10**9 + int(nanoseconds.ljust(9, "0") or 0)
            elif key in ("uid", "gid"):
                setattr(node, key, int(value))
            else:
                node.xattrs.append((key.encode(), bytes.fromhex(value)))
        nodes[path] = node
    return settings, nodes


def _numbered(nodes: dict[bytes, _Node]) -> list[_Node]:
    """Breadth-first, names of a folder in byte order."""
    below: dict[bytes, list[_Node]] = {}
    for node in nodes.values():
        if node.path:
            below.setdefault(node.parent, []).append(node)
    order = [nodes[b""]]
    for node in order:
        order += sorted(below.get(node.path, []), key=lambda item: item.name)
    assert len(order) == len(nodes), "an entry's folder is missing"
    return order


class _Frames:
    """New frames, dealt to lanes, equal ones once."""

    def __init__(self, lanes: int, level: int) -> None:
        self.bodies = [bytearray() for _ in range(lanes)]
        self.lists: list[list[tuple[int, Frame, bytes]]] = [[] for _ in range(lanes)]
        self._known: dict[bytes, int] = {}
        self._encoder = Encoder(level) if level else None
        self._lanes = lanes
        self.count = 0

    def add(self, content: bytes) -> int:
        digest = blake3_of(content)
        if digest in self._known:
            return self._known[digest]
        n = self.count
        self.count += 1
        lane = (n // 8) % self._lanes
        codec, stored = self._encoder.encode(content) if self._encoder else (0, content)
        body = self.bodies[lane]
        frame = Frame(n, 0, len(body), len(stored), len(content), int(codec), blake3_of(stored))
        body += stored
        self.lists[lane].append((n, frame, digest))
        self._known[digest] = n
        return n

    def numbered(self) -> tuple[dict[int, int], list[Frame], list[bytes], list[tuple[int, int]]]:
        """New number by n, frames and content digests in the order of the packs, (first, count) of each pack."""
        used = [items for items in self.lists if items]
        renumbered: dict[int, int] = {}
        frames: list[Frame] = []
        contents: list[bytes] = []
        spans: list[tuple[int, int]] = []
        for pack, items in enumerate(used):
            spans.append((len(frames), len(items)))
            for n, frame, content in items:
                renumbered[n] = len(frames)
                frames.append(replace(frame, number=len(frames), pack=pack))
                contents.append(content)
        return renumbered, frames, contents, spans


def make(
    text: str,
    change: Callable[[list[Entry]], None] = lambda entries: None,
    change_extents: Callable[[dict[int, list[Extent]]], None] = lambda extents: None,
    page_bytes: int = PAGE_BYTES,
) -> Made:
    """Build the image that the text describes.  The `change`s may make it hostile; digests then fit what they made."""
    settings, nodes = _parse(text)
    order = _numbered(nodes)
    number = {node.path: place for place, node in enumerate(order, 1)}
    store = _Frames(settings["lanes"], settings["level"])
    extents: dict[int, list[Extent]] = {}
    contents: dict[bytes, bytes] = {}
    shared: list[tuple[int, bytes]] = []

    def flush() -> None:
        frame = store.add(b"".join(data for _, data in shared))
        at = 0
        for inode, data in shared:
            extents[inode] = [Extent(0, len(data), frame, at)]
            at += len(data)
        shared.clear()

    for node in order:
        if node.kind != "file":
            continue
        whole = b"".join(bytes(piece) if isinstance(piece, int) else piece for _, piece in node.content)
        contents[node.path] = whole
        inode = min(
            number[item.path] for item in order if item is node or (item.target == node.path and item.kind == "hard")
        )
        plain = all(kind == "data" for kind, _ in node.content)
        if not whole:
            continue
        if plain and len(whole) <= min(LARGE_BYTES, settings["frame"] // 4):
            if sum(len(data) for _, data in shared) + len(whole) > settings["frame"]:
                flush()
            shared.append((inode, whole))
        else:
            extents[inode] = list(_cut(node, store, settings["frame"]))
    if shared:
        flush()
    renumbered, frames, digests, spans = store.numbered()
    extents = {
        inode: [item if item.frame is None else replace(item, frame=renumbered[item.frame]) for item in items]
        for inode, items in extents.items()
    }
    change_extents(extents)
    entries = _entries(order, nodes, number, contents)
    change(entries)
    settings["page"] = page_bytes
    return _assemble(settings, order, entries, contents, extents, frames, digests, spans, store)


def _cut(node: _Node, store: _Frames, frame_bytes: int) -> Iterator[Extent]:
    at = 0
    for kind, piece in node.content:
        if kind == "hole":
            assert isinstance(piece, int)
            yield Extent(at, piece, None)
            at += piece
            continue
        assert isinstance(piece, bytes)
        for start in range(0, len(piece), frame_bytes):
            part = piece[start : start + frame_bytes]
            yield Extent(at, len(part), store.add(part))
            at += len(part)


def _entries(
    order: list[_Node], nodes: dict[bytes, _Node], number: dict[bytes, int], contents: dict[bytes, bytes]
) -> list[Entry]:
    names: dict[bytes, list[_Node]] = {}
    for node in order:
        names.setdefault(node.target if node.kind == "hard" else node.path, []).append(node)
    entries = []
    for place, node in enumerate(order, 1):
        first_path = node.target if node.kind == "hard" else node.path
        same = names[first_path]
        what = nodes[first_path]
        children = [number[item.path] for item in order if item.path and item.parent == node.path]
        kind = {"dir": Kind.DIRECTORY, "file": Kind.FILE, "link": Kind.SYMLINK}[what.kind]
        content = contents.get(first_path, b"")
        entries.append(
            Entry(
                number=place,
                parent=number[node.parent] if node.path else 0,
                inode=min(number[item.path] for item in same),
                name=node.name,
                kind=kind,
                permissions=what.mode,
                uid=what.uid,
                gid=what.gid,
                mtime_ns=what.mtime_ns,
                size_bytes=len(content) if kind is Kind.FILE else len(what.target) if kind is Kind.SYMLINK else 0,
                links=len(same) if kind is not Kind.DIRECTORY else 2,
                first_child=children[0] if children and kind is Kind.DIRECTORY else 0,
                children=len(children) if kind is Kind.DIRECTORY else 0,
                digest=blake3(content).digest() if kind is Kind.FILE else b"",
                target=what.target if kind is Kind.SYMLINK else b"",
                xattrs=tuple(sorted(what.xattrs)),
            )
        )
    return entries


def _assemble(
    settings: dict[str, int],
    order: list[_Node],
    entries: list[Entry],
    contents: dict[bytes, bytes],
    extents: dict[int, list[Extent]],
    frames: list[Frame],
    digests: list[bytes],
    spans: list[tuple[int, int]],
    store: _Frames,
) -> Made:
    frame_rows = frame_table(frames)
    content_rows = np.zeros(len(digests), CONTENT)
    for row, digest in zip(content_rows, digests, strict=True):
        row["digest"] = np.void(digest)
    bodies = [body for body, items in zip(store.bodies, store.lists, strict=True) if items]
    blobs: dict[Digest, bytes] = {}

    def keep(data: bytes, media_type: str) -> Descriptor:
        digest = Digest.of(data)
        blobs[digest] = data
        return Descriptor(media_type, digest, len(data))

    used = {item.frame for items in extents.values() for item in items}
    packs, descriptors, pack_data = [], [], []
    for body, (first, count) in zip(bodies, spans, strict=True):
        mine = slice(first, first + count)
        data = bytes(body) + encode_footer(frame_rows[mine], content_rows[mine], len(body))
        descriptors.append(keep(data, PACK_TYPE))
        pack_data.append(data)
        used_bytes = sum(frame.stored_bytes for frame in frames[mine] if frame.number in used)
        packs.append(Pack(descriptors[-1].digest, len(data), first, count, used_bytes))
    rows = [extent_record(inode, item) for inode in sorted(extents) for item in extents[inode]]
    extent_rows = np.array(rows, EXTENT) if rows else np.zeros(0, EXTENT)
    builder = IndexBuilder(1 if settings["depth"] == 2 else 256 * 1024)
    pages = b"".join(
        piece
        for part, items in (
            (Part.TREE, tree_pages(entries, settings["page"])),
            (Part.EXTENTS, extent_pages(extent_rows, settings["page"])),
            (Part.FRAMES, fixed_pages(frame_rows, 0, settings["page"])),
            (Part.CONTENTS, fixed_pages(content_rows, 0, settings["page"])),
        )
        for piece in builder.store(part, items)
    )
    files = [entry for entry in entries if entry.is_file and entry.inode == entry.number]
    totals = Totals(sum(entry.size_bytes for entry in files), len(entries), len(files))
    tail, root = builder.finish(totals, packs)
    pages += tail
    stored = sum(frame.stored_bytes for frame in frames)
    config = Config("sketch", {}, (), totals.content_bytes, totals.files, totals.entries, len(frames), stored, stored)
    manifest = ImageManifest(
        keep(config.encode(), CONFIG_TYPE), keep(root, ROOT_TYPE), keep(pages, PAGES_TYPE), tuple(descriptors)
    )
    data = manifest.encode()
    document = Document(data, MANIFEST_TYPE, Digest.of(data))
    paths = [node.path for node in order]
    return Made(document, blobs, entries, paths, contents, frames, extents, manifest, root, pages, pack_data)


def write_layout(folder: Path, images: dict[str, Made]) -> None:
    """Write images as an OCI layout, by tag."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    manifests = []
    for tag, made in images.items():
        for digest, data in {**made.blobs, made.document.digest: made.document.data}.items():
            (blobs / digest.hex).write_bytes(data)
        manifests.append(
            {
                "mediaType": made.document.media_type,
                "digest": str(made.document.digest),
                "size": len(made.document.data),
                "annotations": {"org.opencontainers.image.ref.name": tag},
            }
        )
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
