"""Making frames again that were made and let go: from the source, by what the ledger says."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from tonne.codec.frames import Encoder
from tonne.errors import SourceChanged
from tonne.image.pack.cell import Cell, Stored
from tonne.image.pack.content import OpenFile
from tonne.image.pack.flow import Flow
from tonne.image.pack.ledger import NO_GROUP, Ledger
from tonne.image.pack.places import n_of
from tonne.image.pack.tree import ScannedTree
from tonne.model import blake3_of
from tonne.model.frame import FRAME_BYTES


class InputChanged(Exception):
    """What an interrupted run packed is not what is new now: the source gives other content, though nothing about the
    files says so, or a pack of a base cannot be used any more.

    Never leaves the package: the packing begins again without the packs that new frame `n` and those after it shaped.
    """

    def __init__(self, n: int) -> None:
        super().__init__(f"new frame {n} is another one than before")
        self.n = n


class Remaker:
    """Gives the stored bytes of new frames anew, equal to the first time or an error.

    Any thread may call; each gets an encoder and a buffer of its own, 4 MiB and what the encoder takes.
    """

    def __init__(self, tree: ScannedTree, ledger: Ledger, flow: Flow, level: int) -> None:
        self._tree = tree
        self._ledger = ledger
        self._flow = flow
        self._level = level
        self._local = threading.local()

    def stored(self, lane: int, ordinals: range) -> Iterator[Stored]:
        """The frames at those places of a lane; `SourceChanged` when the source does not give them any more."""
        for ordinal in ordinals:
            self._flow.check()
            made = self._make(n_of(lane, ordinal))
            # The buffer is filled again for the next one; what is given out must outlive that.
            yield Stored(made.codec, bytes(made.data), made.digest)

    def _make(self, n: int) -> Stored:
        buffer, encoder = self._bench()
        recipe = self._ledger.recipes.read(n, 1)[0]
        inode, group, offset = int(recipe["inode"]), int(recipe["group"]), int(recipe["offset"])
        if group != NO_GROUP:
            cell = self._group(group, buffer)
        else:
            length = min(FRAME_BYTES, self._tree.row(inode).size - offset)
            cell = Cell(inode, offset, length, buffer)
            self._read(inode, offset, cell.content)
        cell.digest = blake3_of(cell.content)
        if cell.digest != self._ledger.contents.raw(n):
            where = self._tree.shown(inode) if group == NO_GROUP else "several small files"
            raise SourceChanged("a file changed while it was packed", where=where)
        return cell.encode(encoder.encode)

    def _bench(self) -> tuple[bytearray, Encoder]:
        bench: tuple[bytearray, Encoder] | None = getattr(self._local, "bench", None)
        if bench is None:
            bench = self._local.bench = (bytearray(FRAME_BYTES), Encoder(self._level))
        return bench

    def _group(self, group: int, buffer: bytearray) -> Cell:
        cell = Cell(0, 0, 0, buffer, group)
        for row in self._ledger.group_members(group):
            start, length = int(row["frame_offset"]), int(row["length"])
            self._read(int(row["inode"]), 0, memoryview(buffer)[start : start + length])
            cell.length = start + length
        return cell

    def _read(self, inode: int, offset: int, out: memoryview) -> None:
        file = OpenFile(self._tree, inode, self._tree.row(inode))
        try:
            file.fill(offset, out)
            file.close()
        finally:
            file.abandon()
