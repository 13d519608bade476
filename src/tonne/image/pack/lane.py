"""A lane: one pack and one upload session at a time, in a thread of its own."""

from __future__ import annotations

import queue
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from tonne.errors import SessionLost
from tonne.image.blob_copy import cancel_noted
from tonne.image.pack.cell import Cell, Stored
from tonne.image.pack.flow import WAIT_S, Flow
from tonne.image.pack.journal import Journal, SentPack, lane_key
from tonne.image.pack.places import n_of, ordinal_of, pack_takes
from tonne.image.pack.remake import InputChanged
from tonne.image.pack.writer import PackWriter
from tonne.source.seam import Sink, SinkFacts, Upload
from tonne.wire.record import Records


class Lane:
    """Puts new frames into packs, in order.

    `holds` and `put` are for the decider, `finish` for whoever ends the pass; the rest happens in the lane's thread,
    which alone touches writer and packs.  A failure there ends the flow.  What survives a crash is in the journal.
    """

    def __init__(
        self,
        number: int,
        sink: Sink,
        facts: SinkFacts,
        flow: Flow,
        journal: Journal,
        remake: Callable[[int, range], Iterator[Stored]],
        pack_bytes: int,
        sent: Sequence[SentPack],
        advance: Callable[[int], None],
    ) -> None:
        """`sent`: packs of this lane that are at the sink already."""
        self.number = number
        self._sink = sink
        self._facts = facts
        self._flow = flow
        self._journal = journal
        self._remake = remake
        self._pack_bytes = pack_bytes
        self._before = sorted(sent, key=lambda pack: pack.start)
        self._starts = [pack.start for pack in self._before]
        self._contents: tuple[int, Records] | None = None
        self._advance = advance
        self._queue: queue.SimpleQueue[Cell | None] = queue.SimpleQueue()
        self._writer: PackWriter | None = None
        self.packs: list[SentPack] = []
        self.thread = threading.Thread(target=self._guarded, name=f"tonne-lane-{number}", daemon=True)
        self.thread.start()

    def holds(self, n: int, content: bytes) -> bool:
        """Whether frame `n` is in a pack that was sent by an earlier run.

        Raises `InputChanged` when that pack holds other content there: then what is new is not what it was.
        """
        ordinal = ordinal_of(n)
        place = bisect_right(self._starts, ordinal) - 1
        if place < 0 or ordinal >= self._before[place].end:
            return False
        if self._contents is None or self._contents[0] != place:
            self._contents = place, self._before[place].tables()[1]
        if self._contents[1]["digest"][ordinal - self._starts[place]].tobytes() != content:
            raise InputChanged(n)
        return True

    def put(self, cell: Cell) -> None:
        """The next new frame of this lane, being encoded; its slot is given back when it is in the pack."""
        self._queue.put(cell)

    def end(self) -> None:
        """No more frames will come."""
        self._queue.put(None)

    def join(self) -> list[SentPack]:
        """Wait for the last pack; all packs of the lane, those of earlier runs included, in order."""
        while self.thread.is_alive():
            self.thread.join(WAIT_S)
            self._flow.check()
        self._flow.check()
        return sorted([*self._before, *self.packs], key=lambda pack: pack.start)

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._flow.fail(error)

    def _run(self) -> None:
        while (cell := self._queue.get()) is not None:
            if self._flow.failed:
                return
            if cell.stored is None:
                raise AssertionError("a frame came to a lane before it was to be encoded")
            frame = cell.stored.result()
            self._frame(ordinal_of(cell.n), frame, cell)
            self._advance(cell.length)
            if cell.buffer is not None:
                self._flow.give_buffer(cell.buffer)
                cell.buffer = None
            self._flow.give_slot()
        if self._flow.failed:
            return
        self._close()

    def _frame(self, ordinal: int, frame: Stored, cell: Cell) -> None:
        writer = self._writer
        # A gap means that a pack of an earlier run lies between.
        if writer is not None and (writer.next != ordinal or not writer.takes(len(frame.data), self._pack_bytes)):
            self._close()
            writer = None
        if writer is None:
            self._check_before(ordinal, len(frame.data))
            writer = self._writer = self._begin(ordinal)
        writer.add(frame, cell.length, cell.digest)

    def _check_before(self, ordinal: int, stored_bytes: int) -> None:
        """Raise `InputChanged` when the frame would have gone into the pack before, had it been there to go."""
        place = bisect_right(self._starts, ordinal) - 1
        if place >= 0:
            before = self._before[place]
            fits = pack_takes(before.count, before.blob.size_bytes, stored_bytes, self._pack_bytes)
            if before.end == ordinal and fits:
                raise InputChanged(n_of(self.number, before.end - 1) + 1)

    def _begin(self, ordinal: int) -> PackWriter:
        upload: Upload | None = None
        key = lane_key(self.number, ordinal)
        token = self._journal.uploads.token(key)
        if token is not None and self._facts.chunked:
            try:
                upload = self._sink.resume(token, self._flow.deadline)
            except SessionLost:
                self._journal.uploads.forget(key)
        elif token is not None:
            cancel_noted(self._sink, self._journal.uploads, key)
        return PackWriter(
            self.number,
            ordinal,
            self._sink,
            self._facts,
            self._flow,
            self._journal,
            self._remake,
            upload,
        )

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self.packs.append(writer.finish())
