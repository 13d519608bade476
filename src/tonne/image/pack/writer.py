"""One pack on its way: frames in, chunks out, a footer at the end."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator

import numpy as np

from tonne.errors import CorruptBytes, CorruptLocal, SessionLost, TonneError
from tonne.image.blob_copy import RESTARTS_MAX, cancel_upload, chunk_size
from tonne.image.pack.cell import Stored
from tonne.image.pack.flow import Flow
from tonne.image.pack.journal import Journal, SentPack, lane_key
from tonne.image.pack.places import pack_bytes_of, pack_takes
from tonne.model import Blob, Digest
from tonne.source.seam import Sink, SinkFacts, Upload
from tonne.wire.pack import encode_footer
from tonne.wire.record import CONTENT, FOOTER, NO_FRAME

_ROW = struct.Struct("<IIQIBBHII32s32s")
assert _ROW.size == FOOTER.itemsize


class PackWriter:
    """Builds one pack and sends it as it grows.  For one thread.

    Where the sink keeps upload sessions, full chunks are appended and the journal notes each acknowledgement.  A lost
    session costs the pack's bytes again: they are made anew.  Where the sink takes one request a blob, nothing is kept
    but the hash, and the pack is made anew for the request.  After an error the pack cannot be gone on with in this
    process; the next one goes on from the journal.
    """

    def __init__(
        self,
        lane: int,
        start: int,
        sink: Sink,
        facts: SinkFacts,
        flow: Flow,
        journal: Journal,
        remake: Callable[[int, range], Iterator[Stored]],
        upload: Upload | None,
    ) -> None:
        """`start`: the lane's place of the first frame.  `upload`: a session that holds a part of this very pack."""
        self.lane = lane
        self.start = start
        self._key = lane_key(lane, start)
        self._sink = sink
        self._chunked = facts.chunked
        self._flow = flow
        self._journal = journal
        self._remake = remake
        self._upload = upload
        self._skip_bytes = upload.acknowledged_bytes if upload is not None else 0
        self._sha = hashlib.sha256()
        self._rows = bytearray()
        self._frames_bytes = 0
        self._restarts = 0
        self._chunk = bytearray(chunk_size(facts) if facts.chunked else 0)
        self._filled = 0

    @property
    def count(self) -> int:
        return len(self._rows) // FOOTER.itemsize

    @property
    def next(self) -> int:
        """The lane's place of the frame that would follow."""
        return self.start + self.count

    def takes(self, stored_bytes: int, pack_bytes: int) -> bool:
        """Whether a frame of that size still fits, the footer included; the first always does."""
        return pack_takes(self.count, pack_bytes_of(self.count, self._frames_bytes), stored_bytes, pack_bytes)

    def add(self, frame: Stored, raw_bytes: int, content: bytes) -> None:
        """Append a frame.  `content` is the BLAKE3 of what it decodes to."""
        size = len(frame.data)
        self._put(memoryview(frame.data))
        self._rows += _ROW.pack(
            0, size, self._frames_bytes, raw_bytes, int(frame.codec), 0, 0, NO_FRAME, 0, frame.digest, content
        )
        self._frames_bytes += size

    def finish(self) -> SentPack:
        """Append the footer, note the pack, commit it."""
        footer = self._footer()
        self._put(memoryview(footer))
        blob = Blob(Digest("sha256", self._sha.hexdigest()), self._frames_bytes + len(footer))
        # Before the commit: were we killed between the two the other way round, the session would be gone and the
        # pack be sent again.  The next run asks the sink whether the pack is there.
        pack = self._journal.note_pack(self.lane, self.start, self.count, blob, footer)
        if not self._chunked:
            self._send_whole(blob, footer)
        elif self._upload is None:
            # It fits a chunk: one request instead of three.
            self._sink.put(
                blob, lambda: iter([memoryview(self._chunk)[: self._filled]]), self._flow.deadline, self._note_token
            )
            self._flow.count_sent(self._filled)
        else:
            self._commit(blob, footer)
        self._journal.uploads.forget(self._key)
        return pack

    def _footer(self) -> bytes:
        table = np.frombuffer(bytes(self._rows), FOOTER)
        contents = np.zeros(len(table), CONTENT)
        contents["digest"] = table["content"]
        return encode_footer(table["frame"], contents, self._frames_bytes)

    def _put(self, data: memoryview) -> None:
        """Hash and send, whatever becomes of sessions meanwhile."""
        self._sha.update(data)
        if not self._chunked:
            return
        try:
            self._send(data)
        except SessionLost as lost:
            self._restart(lost, data)

    def _restart(self, lost: TonneError, data: memoryview) -> None:
        """A new session: everything that was in the old one, then `data`."""
        while True:
            if self._restarts >= RESTARTS_MAX:
                raise lost
            self._restarts += 1
            self._drop()
            self._skip_bytes = self._filled = 0
            try:
                for piece in self._made():
                    self._send(piece)
                self._send(data)
                return
            except SessionLost as again:
                lost = again

    def _made(self) -> Iterator[memoryview]:
        """The stored bytes of all frames so far, made anew and compared."""
        table = np.frombuffer(bytes(self._rows), FOOTER)
        frames = self._remake(self.lane, range(self.start, self.next))
        for row, frame in zip(table["frame"], frames, strict=True):
            if row["digest"].tobytes() != frame.digest:
                raise CorruptLocal(
                    "a frame was encoded to other bytes than before", todo="check the memory of this machine"
                )
            yield memoryview(frame.data)

    def _send(self, data: memoryview) -> None:
        """Fill chunks, and append those that are full."""
        if self._skip_bytes:
            step = min(self._skip_bytes, len(data))
            self._skip_bytes -= step
            data = data[step:]
        while len(data):
            step = min(len(data), len(self._chunk) - self._filled)
            self._chunk[self._filled : self._filled + step] = data[:step]
            self._filled += step
            data = data[step:]
            if self._filled == len(self._chunk):
                self._append()

    def _append(self) -> None:
        self._flow.check()
        if self._upload is None:
            self._upload = self._sink.start(self._flow.deadline)
            try:
                # Noted before it holds anything, so that it can be cancelled if nobody goes on with it.
                self._note_token(self._upload.token)
            except BaseException:
                cancel_upload(self._upload)
                raise
        self._upload.append(memoryview(self._chunk)[: self._filled], self._flow.deadline)
        self._flow.count_sent(self._filled)
        self._filled = 0
        self._note_token(self._upload.token)

    def _note_token(self, token: str) -> None:
        self._journal.uploads.keep(self._key, token)

    def _drop(self) -> None:
        """Have the sink forget the session: what follows goes into another."""
        if self._upload is not None:
            cancel_upload(self._upload)
            self._journal.uploads.forget(self._key)
            self._upload = None

    def _commit(self, blob: Blob, footer: bytes) -> None:
        while True:
            try:
                if self._skip_bytes:
                    raise SessionLost("an upload session holds more than was sent", where=self._sink.origin)
                if self._filled or self._upload is None:
                    self._append()
                if self._upload is not None:
                    self._upload.finish(blob.digest, self._flow.deadline)
                return
            except (SessionLost, CorruptBytes) as lost:
                # Another digest: the registry dropped bytes that it had acknowledged, as some have been seen to do.
                self._restart(lost, memoryview(footer))

    def _send_whole(self, blob: Blob, footer: bytes) -> None:
        if self._sink.has(blob.digest, self._flow.deadline) == blob.size_bytes:
            return

        def chunks() -> Iterator[memoryview]:
            for piece in self._made():
                self._flow.count_sent(len(piece))
                yield piece
            yield memoryview(footer)

        self._sink.put(blob, chunks, self._flow.deadline, self._note_token)
