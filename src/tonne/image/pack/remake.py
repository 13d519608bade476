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


class InputChanged(SourceChanged):
    """What an interrupted run packed is not what the source gives now, though nothing about the files says so."""


class Remaker:
    """Gives the stored bytes of new frames anew, equal to the first time or an error.

    Any thread may call.  One frame is made at a time, under `_lock`, in the one buffer that this costs.
    """

    def __init__(self, tree: ScannedTree, ledger: Ledger, flow: Flow, level: int) -> None:
        self._tree = tree
        self._ledger = ledger
        self._flow = flow
        self._level = level
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None
        self._buffer = bytearray()

    def stored(self, lane: int, ordinals: range) -> Iterator[Stored]:
        """The frames at those places of a lane; `SourceChanged` when the source does not give them any more."""
        for ordinal in ordinals:
            self._flow.check()
            with self._lock:
                made = self._make(n_of(lane, ordinal))
                # The buffer is everyone's; what is given out must outlive the lock.
                frame = Stored(made.codec, bytes(made.data), made.digest)
            yield frame

    def _make(self, n: int) -> Stored:
        if self._encoder is None:
            self._encoder, self._buffer = Encoder(self._level), bytearray(FRAME_BYTES)
        recipe = self._ledger.recipes.read(n, 1)[0]
        inode, group, offset = int(recipe["inode"]), int(recipe["group"]), int(recipe["offset"])
        if group != NO_GROUP:
            cell = self._group(group)
        else:
            length = min(FRAME_BYTES, self._tree.row(inode).size - offset)
            cell = Cell(inode, offset, length, self._buffer)
            self._read(inode, offset, cell.content)
        cell.digest = blake3_of(cell.content)
        if cell.digest != self._ledger.contents.raw(n):
            where = self._tree.shown(inode) if group == NO_GROUP else "several small files"
            raise SourceChanged("a file changed while it was packed", where=where)
        return cell.encode(self._encoder.encode)

    def _group(self, group: int) -> Cell:
        cell = Cell(0, 0, 0, self._buffer, group)
        for row in self._ledger.group_members(group):
            start, length = int(row["frame_offset"]), int(row["length"])
            self._read(int(row["inode"]), 0, memoryview(self._buffer)[start : start + length])
            cell.length = start + length
        return cell

    def _read(self, inode: int, offset: int, out: memoryview) -> None:
        file = OpenFile(self._tree, inode, self._tree.row(inode))
        try:
            file.fill(offset, out)
            file.close()
        finally:
            file.abandon()
