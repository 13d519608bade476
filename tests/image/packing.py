"""Packing in tests: a small tree, one call, and an independent way to read the result back."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tonne.clock import Deadline
from tonne.codec.frames import Decoder
from tonne.image.fetch import piece_of
from tonne.image.opening import Image, open_image
from tonne.image.pack import BaseSource, PackOptions, PackResult, pack_folder
from tonne.model import Entry, Reference, blake3_of, parse_reference
from tonne.settings import CacheSettings, PackSettings, Settings
from tonne.source.memory import MemoryRepository
from tonne.source.seam import SinkFacts
from tonne.wire.pack import TRAILER_BYTES, parse_footer, parse_trailer
from tonne.wire.root import Part

MIB = 1024 * 1024
PACK_BYTES = 8 * MIB
FOREVER = Deadline()
SMALL_CHUNKS = SinkFacts(chunk_bytes=MIB)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not pack."""
    return np.random.default_rng(seed).bytes(size)


@dataclass(slots=True)
class Bench:
    """A target in memory, and where its journals are."""

    folder: Path
    repository: MemoryRepository = field(default_factory=lambda: MemoryRepository(facts=SMALL_CHUNKS))
    name: str = "127.0.0.1:5000/models/a"
    threads: int = 2

    @property
    def settings(self) -> Settings:
        cache = CacheSettings(folder=self.folder / "cache")
        return replace(Settings(), cache=cache, pack=PackSettings(threads=self.threads))

    @property
    def journals(self) -> Path:
        return self.folder / "cache" / "pack"

    def reference(self, tag: str = "v1") -> Reference:
        return parse_reference(f"{self.name}:{tag}")

    def base(self, tag: str = "v1") -> BaseSource:
        return BaseSource(self.reference(tag), self.repository)

    def pack(
        self, source: Path, tag: str = "v1", bases: Sequence[BaseSource] | None = None, **options: Any
    ) -> PackResult:
        """Pack with small packs; other options as given."""
        return pack_folder(
            source,
            self.reference(tag),
            self.repository,
            self.repository,
            PackOptions(**{"pack_bytes": PACK_BYTES, **options}),
            self.settings,
            bases=bases,
        )

    def image(self, tag: str = "v1") -> Image:
        return open_image(self.repository, tag, self.settings, FOREVER)

    def count(self, kind: str) -> int:
        return sum(asked.kind == kind for asked in self.repository.asked)

    def bytes_of(self, kind: str) -> int:
        return sum(asked.length for asked in self.repository.asked if asked.kind == kind)


def content_of(image: Image, entry: Entry) -> bytes:
    """A file's bytes, straight from extents, frames and packs."""
    decoder = Decoder()
    pieces = []
    for extent in image.index.extents(entry.inode, 0, entry.size_bytes, FOREVER):
        if extent.frame is None:
            pieces.append(bytes(extent.length))
            continue
        frame = image.index.frames([extent.frame], FOREVER)[0]
        blob = image.index.root.packs[frame.pack].blob
        stored = image.fetcher.pieces(blob, [piece_of(frame)], FOREVER)[0]
        content = bytes(decoder.decode(frame.codec, stored, frame.raw_bytes))
        assert image.index.content_digest(extent.frame, FOREVER) == blake3_of(content)
        pieces.append(content[extent.frame_offset : extent.frame_offset + extent.length])
    data = b"".join(pieces)
    assert len(data) == entry.size_bytes
    assert blake3_of(data) == entry.digest
    return data


def tree_of(image: Image) -> dict[bytes, Entry]:
    """Every entry by its path."""
    return {image.index.path(entry, FOREVER): entry for entry in image.index.walk(FOREVER)}


def check_equal(image: Image, source: Path) -> None:
    """Every entry of the image is as in the folder, which has no links that leave it; and nothing is missing."""
    found = tree_of(image)
    top = os.fsencode(source)
    there = {b""}
    for folder, folders, files in os.walk(top):
        there |= {os.path.relpath(os.path.join(folder, name), top) for name in folders + files}
    assert set(found) == there
    inodes: dict[tuple[int, int], int] = {}
    for path, entry in found.items():
        state = os.lstat(os.path.join(top, path))
        assert entry.mode == state.st_mode, path
        assert (entry.uid, entry.gid, entry.mtime_ns) == (state.st_uid, state.st_gid, state.st_mtime_ns), path
        if stat.S_ISLNK(state.st_mode):
            assert entry.target == os.readlink(os.path.join(top, path))
        elif stat.S_ISREG(state.st_mode):
            assert entry.links == state.st_nlink, path
            assert inodes.setdefault((state.st_dev, state.st_ino), entry.inode) == entry.inode
            with open(os.path.join(top, path), "rb") as file:
                assert content_of(image, entry) == file.read(), path
    assert len(set(inodes.values())) == len(inodes)


def check_format(image: Image, repository: MemoryRepository) -> None:
    """What docs/format.md says of packs, frames and totals, checked from the packs' own bytes."""
    root = image.index.root
    frames = [row.tobytes() for table in image.index.tables(Part.FRAMES, FOREVER) for row in table]
    contents = [row.tobytes() for table in image.index.tables(Part.CONTENTS, FOREVER) for row in table]
    rebuilt: list[bytes] = []
    rebuilt_contents: list[bytes] = []
    for place, pack in enumerate(root.packs):
        data = repository.blobs[pack.digest]
        assert pack.digest.matches(data)
        assert len(data) == pack.size_bytes
        trailer = parse_trailer(data[-TRAILER_BYTES:], len(data))
        table, digests = parse_footer(data[trailer.records_offset : -TRAILER_BYTES], trailer, place)
        assert len(table) == pack.frames
        assert pack.first_frame == len(rebuilt)
        rebuilt += [row.tobytes() for row in table]
        rebuilt_contents += [row.tobytes() for row in digests]
    assert frames == rebuilt
    assert contents == rebuilt_contents
    used: set[int] = set()
    files = content_bytes = 0
    for entry in image.index.walk(FOREVER):
        if entry.is_file and entry.inode == entry.number:
            files += 1
            content_bytes += entry.size_bytes
            extents = image.index.extents(entry.inode, 0, entry.size_bytes, FOREVER)
            used |= {extent.frame for extent in extents if extent.frame is not None}
    assert (files, content_bytes) == (root.totals.files, root.totals.content_bytes)
    for pack in root.packs:
        mine = [number for number in used if pack.first_frame <= number < pack.first_frame + pack.frames]
        assert mine, "a pack is listed of which nothing is used"
        assert pack.used_bytes == sum(frame.stored_bytes for frame in image.index.frames(mine, FOREVER))
