"""The index of the new image, out of the ledger, the tree, the bases and the packs' footers; in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from tonne.clock import Deadline
from tonne.image.pack.base import Bases
from tonne.image.pack.failure import blaming
from tonne.image.pack.ledger import Ledger
from tonne.image.pack.options import PackOptions
from tonne.image.pack.rows import BLOCK_ROWS, Rows
from tonne.image.pack.table import Numbering
from tonne.image.pack.tree import ScannedTree, ScanRow
from tonne.model import Blob, Digest, Entry, Kind
from tonne.wire.page import PAGE_BYTES, decode_xattrs, extent_pages, fixed_pages, tree_pages
from tonne.wire.record import EXTENT, NO_FRAME, Records
from tonne.wire.root import IndexBuilder, Pack, Part, Totals


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """Root and pages, ready to be stored; the pages are in a file."""

    root: bytes
    pages: Blob
    pages_path: Path
    packs: tuple[Pack, ...]


class IndexAssembler:
    """Writes an image's index.  One thread, once."""

    def __init__(
        self,
        tree: ScannedTree,
        ledger: Ledger,
        bases: Bases,
        numbering: Numbering,
        options: PackOptions,
        deadline: Deadline,
        check: Callable[[], None],
    ) -> None:
        self._tree = tree
        self._ledger = ledger
        self._bases = bases
        self._numbering = numbering
        self._options = options
        self._deadline = deadline
        self._check = check
        self._base_used = [0] * len(numbering.bases)
        self._new_stored: list[int] = []

    def build(self, path: Path) -> BuiltIndex:
        """Write the pages to `path` and return the rest."""
        builder = IndexBuilder()
        hasher = sha256()
        with open(path, "wb", opener=_private) as file:

            def write(pieces: Iterator[bytes]) -> None:
                for piece in pieces:
                    self._check()
                    hasher.update(piece)
                    with blaming(path, "the index cannot be written"):
                        file.write(piece)

            write(builder.store(Part.TREE, tree_pages(self._entries())))
            per_page = PAGE_BYTES // EXTENT.itemsize
            for _, table in _cut(self._extents(), per_page):
                write(builder.store(Part.EXTENTS, extent_pages(table)))
            for part in (Part.FRAMES, Part.CONTENTS):
                rows = PAGE_BYTES // (64 if part is Part.FRAMES else 32)
                for first, table in _cut(self._frames(part), rows):
                    write(builder.store(part, fixed_pages(table, first)))
            packs = tuple(self._packs())
            totals = Totals(self._tree.content_bytes, len(self._tree), self._tree.files)
            tail, root = builder.finish(totals, packs)
            write(iter([tail]))
            with blaming(path, "the index cannot be written"):
                file.flush()
        size = os.stat(path).st_size
        return BuiltIndex(root, Blob(Digest("sha256", hasher.hexdigest()), size), path, packs)

    # --- tree ---

    def _entries(self) -> Iterator[Entry]:
        for start, block in self._tree.rows.blocks():
            for place, values in enumerate(block.tolist()):
                yield self._entry(start + place + 1, ScanRow._make(values))

    def _entry(self, number: int, row: ScanRow) -> Entry:
        name = self._tree.name(row)
        parent = row.parent
        if row.inode != number:
            # A later name repeats the first's record, which may have been scanned at another moment.
            row = self._tree.row(row.inode)
        strings = self._tree.heap.read(row.heap, row.name_bytes + row.target_bytes + row.xattrs_bytes)
        target = strings[row.name_bytes : row.name_bytes + row.target_bytes]
        kind = Kind(row.mode & 0o170000)
        fixed = self._options.reproducible
        return Entry(
            number=number,
            parent=parent,
            inode=row.inode,
            name=name,
            kind=kind,
            permissions=row.mode & 0o7777,
            uid=0 if fixed else row.uid,
            gid=0 if fixed else row.gid,
            mtime_ns=self._options.mtime_s * 1_000_000_000 if fixed else row.mtime_ns,
            size_bytes=0 if kind is Kind.DIRECTORY else row.size,
            links=row.links,
            first_child=row.first_child,
            children=row.children,
            digest=self._ledger.digest_of(row.inode) if kind is Kind.FILE else b"",
            target=target,
            xattrs=decode_xattrs(strings[row.name_bytes + row.target_bytes :]),
        )

    # --- extents ---

    def _extents(self) -> Iterator[Records]:
        """Both tables of extents as one, sorted, with the image's frame numbers."""
        groups = self._numbering.final(np.array(self._ledger.group_frames, np.uint32))
        for large, small in merge_by_inode(self._ledger.extents, self._ledger.small):
            large["frame"] = self._numbering.final(large["frame"])
            in_group = small["frame"] < len(groups)
            other = self._numbering.final(np.where(in_group, np.uint32(NO_FRAME), small["frame"]))
            if len(groups):
                other[in_group] = groups[small["frame"][in_group]]
            small["frame"] = other
            table = np.concatenate([large, small])
            yield table[np.lexsort((table["file_offset"], table["inode"]))]

    # --- frames ---

    def _frames(self, part: Part) -> Iterator[Records]:
        place_of = {base.pack.digest: place for place, base in enumerate(self._numbering.bases)}
        for number in range(len(self._bases.images)):
            for first, table in self._bases.rows_of(number, part, self._deadline):
                place = place_of.get(self._bases.pack_of(first).pack.digest)
                if place is None:
                    continue
                if part is Part.FRAMES:
                    table = table.copy()
                    table["pack"] = place
                    used = self._bases.used[first : first + len(table)]
                    self._base_used[place] += int(table["stored_bytes"][used].sum(dtype=np.int64))
                yield table
        for place, pack in enumerate(self._numbering.new, len(self._numbering.bases)):
            frames, contents = pack.tables()
            if part is Part.FRAMES:
                frames["pack"] = place
                self._new_stored.append(int(frames["stored_bytes"].sum(dtype=np.int64)))
                yield frames
            else:
                yield contents

    def _packs(self) -> Iterator[Pack]:
        numbering = self._numbering
        for base, first, used in zip(numbering.bases, numbering.base_firsts, self._base_used, strict=True):
            pack = base.pack
            yield replace(pack, first_frame=first, used_bytes=used)
        for new, first, stored in zip(numbering.new, numbering.new_firsts, self._new_stored, strict=True):
            yield Pack(new.blob.digest, new.blob.size_bytes, first, new.count, stored)


def merge_by_inode(large: Rows, small: Rows, block_rows: int = BLOCK_ROWS) -> Iterator[tuple[Records, Records]]:
    """Go through two tables that are sorted by inode and share none: rows of both, up to some inode, again and again.

    A piece may end within a file's rows.
    """
    sources = [large.blocks(block_rows), small.blocks(block_rows)]
    held: list[Records] = [np.zeros(0, EXTENT), np.zeros(0, EXTENT)]
    more = [True, True]
    while True:
        for which in (0, 1):
            if more[which] and not len(held[which]):
                found = next(sources[which], None)
                more[which] = found is not None
                held[which] = held[which] if found is None else found[1]
        if not len(held[0]) and not len(held[1]):
            return
        # Rows up to the least of the last inodes cannot be followed by lower ones.
        limit = min(int(table["inode"][-1]) for table in held if len(table))
        taken: list[Records] = []
        for which in (0, 1):
            stop = int(np.searchsorted(np.ascontiguousarray(held[which]["inode"]), limit, "right"))
            taken.append(held[which][:stop].copy())
            held[which] = held[which][stop:]
        yield taken[0], taken[1]


def _cut(tables: Iterator[Records], rows: int) -> Iterator[tuple[int, Records]]:
    """Tables that follow each other, cut anew into pieces of `rows` but for the last; each with its first number."""
    held: list[Records] = []
    count, first = 0, 0
    for table in tables:
        held.append(table)
        count += len(table)
        if count >= rows:
            whole = np.concatenate(held)
            stop = count - count % rows
            yield first, whole[:stop]
            first += stop
            held, count = [whole[stop:]], count - stop
    if count:
        yield first, np.concatenate(held)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
