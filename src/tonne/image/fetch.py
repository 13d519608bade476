"""Verified stored bytes: from the store if they are there, else from the source, and then into the store.

This is the one place where bytes become trusted.  A piece (a frame, a page) is asked for once at a time in a process,
whoever asks; neighbours are asked for in one request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tonne.clock import Deadline
from tonne.errors import CorruptBytes, DeadlineExceeded, TonneError
from tonne.model import Blob, Digest, Frame, blake3_of
from tonne.source.seam import Priority, Source

WHOLE_BYTES_MAX = 64 * 1024 * 1024  # of a blob that is read as one piece (root, config, small pages blob)


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a blob's stored bytes that has a BLAKE3 of its own."""

    offset: int
    length: int
    digest: bytes

    @property
    def end(self) -> int:
        return self.offset + self.length


def piece_of(frame: Frame) -> Piece:
    return Piece(frame.offset, frame.stored_bytes, frame.digest)


def _buffer(size_bytes: int) -> memoryview:
    """Room for bytes that are about to come.

    Not a bytearray: that writes zeros first, while NumPy leaves the memory untouched and asks for huge pages.
    """
    return np.empty(size_bytes, np.uint8).data


class Kept(Protocol):
    """What is kept of one blob.  Any thread may call; nothing is verified here."""

    def read(self, offset: int, out: memoryview) -> bool:
        """Fill `out`; False when not all of the range is there, and then `out` holds rubbish."""

    def write(self, offset: int, data: memoryview) -> None:
        """Keep bytes that were verified."""

    def drop(self, offset: int, length: int) -> None:
        """Forget a range that turned out to be wrong."""


class Keeper(Protocol):
    """Where verified bytes are kept: the node's store, or what stands in for it."""

    def blob(self, blob: Blob) -> Kept: ...

    def document(self, digest: Digest) -> bytes | None:
        """A small blob or manifest that was kept as a whole; the caller verifies it."""

    def keep_document(self, digest: Digest, data: bytes) -> None: ...


class Fetcher:
    """Gives verified pieces.

    Any thread may call.  `_flights` is guarded by `_lock`; a flight is entered before its request and removed after its
    bytes are in the store, whatever happened, so a failure is never remembered.  Nothing survives the process but the
    store.
    """

    def __init__(
        self,
        source: Source,
        store: Keeper | None,
        request_bytes: int,
        on_event: Callable[[TonneError], None] | None = None,
    ) -> None:
        """`store` None: nothing is kept.  `on_event` is told of corrupt bytes, with their origin."""
        self.source = source
        self.store = store
        self._request_bytes = request_bytes
        self._on_event = on_event or (lambda error: None)
        self._lock = threading.Lock()
        self._flights: dict[tuple[Digest, int], Future[memoryview]] = {}

    def pieces(
        self, blob: Blob, wanted: Sequence[Piece], deadline: Deadline, priority: Priority = Priority.DEMAND
    ) -> list[memoryview]:
        """The stored bytes of each wanted piece, verified, in the order asked."""
        got: dict[int, memoryview] = {}
        missing: list[Piece] = []
        for piece in wanted:
            held = self._from_store(blob, piece)
            if held is None:
                missing.append(piece)
            else:
                got[piece.offset] = held
        if missing:
            self._fetch(blob, missing, got, deadline, priority)
        return [got[piece.offset] for piece in wanted]

    def whole(self, blob: Blob, deadline: Deadline, limit_bytes: int = WHOLE_BYTES_MAX) -> bytes:
        """A small blob as a whole, verified against its OCI digest."""
        if blob.size_bytes > limit_bytes:
            raise CorruptBytes("a blob is larger than it may be", where=str(blob.digest), size_bytes=blob.size_bytes)
        if self.store is not None:
            kept = self.store.document(blob.digest)
            if kept is not None and blob.digest.matches(kept):
                return kept
        out = bytearray(blob.size_bytes)

        def check(data: memoryview) -> None:
            if not blob.digest.matches(data):
                raise CorruptBytes("a blob has the wrong digest", where=str(blob.digest))

        self.source.read(blob, 0, memoryview(out), deadline, check)
        data = bytes(out)
        if self.store is not None:
            self.store.keep_document(blob.digest, data)
        return data

    def _from_store(self, blob: Blob, piece: Piece) -> memoryview | None:
        if self.store is None:
            return None
        stored = self.store.blob(blob)
        out = _buffer(piece.length)
        if not stored.read(piece.offset, out):
            return None
        if blake3_of(out) == piece.digest:
            return out
        # Evicted under our hands, or rotten: either way it is fetched again.
        stored.drop(piece.offset, piece.length)
        return None

    def _fetch(
        self, blob: Blob, missing: Sequence[Piece], got: dict[int, memoryview], deadline: Deadline, priority: Priority
    ) -> None:
        ours: list[Piece] = []
        theirs: list[tuple[Piece, Future[memoryview]]] = []
        with self._lock:
            for piece in missing:
                key = (blob.digest, piece.offset)
                flight = self._flights.get(key)
                if flight is None:
                    self._flights[key] = Future()
                    ours.append(piece)
                elif all(piece.offset != other.offset for other in ours):
                    theirs.append((piece, flight))
        failure: BaseException | None = None
        for run in self._runs(ours):
            if failure is None:
                try:
                    self._request(blob, run, got, deadline, priority)
                    continue
                except BaseException as error:
                    failure = error
            self._land(blob, run, got, failure)
        if failure is not None:
            raise failure
        for piece, flight in theirs:
            got[piece.offset] = self._wait(blob, piece, flight, deadline, priority)

    def _runs(self, pieces: Iterable[Piece]) -> list[list[Piece]]:
        """Neighbours together, up to a request's size."""
        runs: list[list[Piece]] = []
        size = 0
        for piece in sorted(pieces, key=lambda item: item.offset):
            if runs and runs[-1][-1].end == piece.offset and size + piece.length <= self._request_bytes:
                runs[-1].append(piece)
                size += piece.length
            else:
                runs.append([piece])
                size = piece.length
        return runs

    def _request(
        self, blob: Blob, run: list[Piece], got: dict[int, memoryview], deadline: Deadline, priority: Priority
    ) -> None:
        start = run[0].offset
        out = _buffer(run[-1].end - start)

        def check(data: memoryview) -> None:
            for piece in run:
                if blake3_of(data[piece.offset - start : piece.end - start]) != piece.digest:
                    error = CorruptBytes(
                        "wrong bytes came",
                        where=str(blob.digest),
                        why=f"{piece.length} bytes at {piece.offset}",
                        offset=piece.offset,
                    )
                    self._on_event(error)
                    raise error

        self.source.read(blob, start, out, deadline, check, priority)
        for piece in run:
            got[piece.offset] = out[piece.offset - start : piece.end - start]
        if self.store is not None:
            stored = self.store.blob(blob)
            for piece in run:
                stored.write(piece.offset, got[piece.offset])
        self._land(blob, run, got, None)

    def _land(
        self, blob: Blob, run: Iterable[Piece], got: dict[int, memoryview], failure: BaseException | None
    ) -> None:
        with self._lock:
            flights = [(piece, self._flights.pop((blob.digest, piece.offset))) for piece in run]
        for piece, flight in flights:
            if failure is None:
                flight.set_result(got[piece.offset])
            else:
                flight.set_exception(failure)

    def _wait(
        self, blob: Blob, piece: Piece, flight: Future[memoryview], deadline: Deadline, priority: Priority
    ) -> memoryview:
        try:
            data = flight.result(timeout=deadline.left_s())
        except FutureTimeout:
            raise DeadlineExceeded("waiting for bytes that another reader fetches", where=str(blob.digest)) from None
        except DeadlineExceeded:
            # It was their deadline, not ours.
            deadline.check("reading", str(blob.digest))
            return self.pieces(blob, [piece], deadline, priority)[0]
        if len(data) != piece.length or blake3_of(data) != piece.digest:
            # Another image's idea of the same place.
            return self.pieces(blob, [piece], deadline, priority)[0]
        return data
