"""The first stage: files in the order of their numbers, cut into cells; small ones put together on the way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from blake3 import blake3

from tonne.image.pack.cell import Cell, is_zeros
from tonne.image.pack.content import OpenFile
from tonne.image.pack.digests import DigestTable
from tonne.image.pack.flow import Flow
from tonne.image.pack.ledger import BASE_BIT, Ledger
from tonne.image.pack.options import SMALL_BYTES
from tonne.image.pack.tree import ScannedTree, ScanRow
from tonne.model import blake3_of
from tonne.model.frame import FRAME_BYTES

FindSmall = Callable[[bytes, int], tuple[int, int] | None]
"""Digest and size of a small file to frame (its id) and offset of an equal one in a base; None when there is none."""


class Reader:
    """Reads all files once and gives cells to `emit`, in order.  One thread.

    Small files are looked up as wholes, in the bases and among those read before, since their place in a frame says
    nothing: the same files are put together otherwise in another tree.  Files of several frames are not: equal files
    have equal frames, which are found one by one.
    """

    def __init__(
        self,
        tree: ScannedTree,
        ledger: Ledger,
        find_small: FindSmall,
        flow: Flow,
        hashing: Executor,
        emit: Callable[[Cell], None],
        advance: Callable[[int], None],
    ) -> None:
        """`advance` is told of bytes that are done with here: small files that were found elsewhere."""
        self._tree = tree
        self._ledger = ledger
        self._find_small = find_small
        self._flow = flow
        self._hashing = hashing
        self._emit = emit
        self._advance = advance
        self._seen = DigestTable()
        self._group: Cell | None = None
        self._zeros = bytes(FRAME_BYTES)

    def run(self) -> None:
        """All files; then the last group."""
        for number, row in self._tree.all_files():
            self._flow.check()
            file = OpenFile(self._tree, number, row)
            try:
                if row.size == 0:
                    self._ledger.file_digest(number, self._ledger.empty_digest)
                elif row.size <= SMALL_BYTES:
                    self._small(number, row, file)
                else:
                    self._large(number, row, file)
                file.close()
            finally:
                file.abandon()
        self._close_group()

    def _small(self, number: int, row: ScanRow, file: OpenFile) -> None:
        if self._group is not None and self._group.length + row.size > FRAME_BYTES:
            self._close_group()
        group = self._group = self._group or self._open_group()
        if group.buffer is None:
            raise AssertionError("a group has a buffer")
        place = group.length
        content = memoryview(group.buffer)[place : place + row.size]
        file.fill(0, content)
        digest = blake3_of(content)
        self._ledger.file_digest(number, digest)
        if is_zeros(content):
            self._ledger.small_extent(number, 0, row.size, None, 0)
        elif not self._found(number, row.size, digest):
            at = self._ledger.small_extent(number, 0, row.size, len(self._ledger.group_starts) - 1, place)
            self._seen.add(digest, at)
            group.length += row.size
            return
        self._advance(row.size)

    def _found(self, number: int, size: int, digest: bytes) -> bool:
        """Whether a base or an earlier file has the same content; then its place is this file's too."""
        stored = self._find_small(digest, size)
        if stored is not None:
            self._ledger.small_extent(number, 0, size, stored[0] | BASE_BIT, stored[1])
            return True
        for at in self._seen.find(digest):
            inode, length, _, frame, frame_offset = self._ledger.small_row(at)
            if length == size and self._ledger.digest_of(inode) == digest:
                self._ledger.small_extent(number, 0, size, frame, frame_offset)
                return True
        return False

    def _open_group(self) -> Cell:
        group = len(self._ledger.group_starts)
        self._ledger.group_starts.append(len(self._ledger.small))
        return Cell(0, 0, 0, self._flow.take_slot(), group)

    def _close_group(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        if group.length == 0:
            # All its files were found elsewhere.  The number stays, with no rows that name it.
            self._drop(group)
            return
        self._send(group)

    def _drop(self, group: Cell) -> None:
        self._ledger.group_starts.pop()
        if group.buffer is not None:
            self._flow.give_buffer(group.buffer)
        self._flow.give_slot()

    def _large(self, number: int, row: ScanRow, file: OpenFile) -> None:
        whole = row.size <= FRAME_BYTES
        hasher = blake3()
        for offset, length, hole in file.cells():
            if hole:
                whole = False
                self._emit(Cell(number, offset, length))
                self._hash_zeros(hasher, length)
                continue
            cell = Cell(number, offset, length, self._flow.take_slot(), whole=whole)
            file.ahead(offset + length)
            file.fill(offset, cell.content)
            if not whole:
                hasher.update(cell.content)
            self._send(cell)
        # A cell that is all of its file is hashed by the next stage, which then knows the file's digest.
        if not whole:
            self._ledger.file_digest(number, hasher.digest())

    def _hash_zeros(self, hasher: blake3, length: int) -> None:
        while length:
            self._flow.check()
            step = min(length, len(self._zeros))
            hasher.update(memoryview(self._zeros)[:step])
            length -= step

    def _send(self, cell: Cell) -> None:
        cell.hashed = self._hashing.submit(cell.look)
        self._emit(cell)
