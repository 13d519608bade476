"""The one stage that is strictly in order: what each cell becomes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from tonne.codec.frames import Encoder
from tonne.errors import FolderTooLarge
from tonne.image.pack.base import Bases
from tonne.image.pack.cell import Cell, Stored
from tonne.image.pack.digests import DigestTable
from tonne.image.pack.flow import WAIT_S, Flow
from tonne.image.pack.lane import Lane
from tonne.image.pack.ledger import BASE_BIT, NEW_MAX, NO_GROUP, Ledger
from tonne.image.pack.places import lane_of


class Decider:
    """Takes cells in the reader's order: a hole, a frame of a base, a frame that was new before, or a new frame.

    `take` is for the reader, `run` for the thread that packs.  Everything that the result depends on happens here, in
    one thread; the threads around it only compute.
    """

    def __init__(
        self,
        ledger: Ledger,
        bases: Bases,
        lanes: Sequence[Lane],
        flow: Flow,
        encoding: Executor,
        level: int,
        advance: Callable[[int], None],
    ) -> None:
        self._ledger = ledger
        self._bases = bases
        self._lanes = lanes
        self._flow = flow
        self._encoding = encoding
        self._level = level
        self._advance = advance
        self._encoders = threading.local()
        self._queue: queue.SimpleQueue[Cell | None] = queue.SimpleQueue()
        self._seen = DigestTable()
        self._hole: Cell | None = None  # zeros that the next cell may go on with
        self.new_content_bytes = 0

    def take(self, cell: Cell | None) -> None:
        """The next cell; None: that was the last."""
        self._queue.put(cell)

    def run(self) -> None:
        """Decide on all cells, until the last; raises what ended the flow."""
        while True:
            self._flow.check()
            try:
                cell = self._queue.get(timeout=WAIT_S)
            except queue.Empty:
                continue
            if cell is None:
                break
            self._decide(cell)
        self._flush_hole()

    def _decide(self, cell: Cell) -> None:
        if cell.hashed is not None:
            cell.hashed.result()
        if cell.whole:
            self._ledger.file_digest(cell.inode, cell.digest)
        if cell.buffer is None or cell.zeros:
            self._extend_hole(cell)
            self._done(cell)
            return
        self._flush_hole()
        frame = self._known(cell.digest)
        if frame is None:
            frame = self._new(cell)
        else:
            self._done(cell)
        if cell.group == NO_GROUP:
            self._ledger.extent(cell.inode, cell.offset, cell.length, frame)
        else:
            self._ledger.group_frames.append(frame)

    def _known(self, content: bytes) -> int | None:
        """The provisional number of a frame with that content."""
        found = self._bases.find_frame(content)
        if found is not None:
            return found | BASE_BIT
        for n in self._seen.find(content):
            if self._ledger.contents.raw(n) == content:
                return n
        return None

    def _new(self, cell: Cell) -> int:
        n = cell.n = self._ledger.new_frame(cell.digest, cell.inode, cell.group, cell.offset)
        if n >= NEW_MAX:
            raise FolderTooLarge("the folder has more content than an image can hold")
        self._seen.add(cell.digest, n)
        self.new_content_bytes += cell.length
        lane = self._lanes[lane_of(n)]
        if lane.holds(n, cell.digest):
            self._done(cell)
        else:
            cell.stored = self._encoding.submit(self._encode, cell)
            lane.put(cell)
        return n

    def _encode(self, cell: Cell) -> Stored:
        encoder = getattr(self._encoders, "encoder", None)
        if encoder is None:
            encoder = self._encoders.encoder = Encoder(self._level)
        stored = cell.encode(encoder.encode)
        if cell.buffer is not None and not isinstance(stored.data, memoryview):
            # It is not the content itself, so the next frame may be read while this one waits for its pack.
            self._flow.give_buffer(cell.buffer)
            cell.buffer = None
        return stored

    def _done(self, cell: Cell) -> None:
        self._advance(cell.length)
        if cell.buffer is not None:
            self._flow.give_buffer(cell.buffer)
            cell.buffer = None
            self._flow.give_slot()

    def _extend_hole(self, cell: Cell) -> None:
        """Zeros become one extent for as long as they go on, whether the file system stored them or not."""
        hole = self._hole
        if hole is not None and hole.inode == cell.inode and hole.offset + hole.length == cell.offset:
            hole.length += cell.length
            return
        self._flush_hole()
        self._hole = Cell(cell.inode, cell.offset, cell.length)

    def _flush_hole(self) -> None:
        if self._hole is not None:
            self._ledger.hole(self._hole.inode, self._hole.offset, self._hole.length)
            self._hole = None
