"""Verified stored bytes: from the store if they are there, else from the source, and then into the store.

This is the one place where bytes become trusted.  A piece (a frame, a page) is asked for once at a time in a process,
whoever asks; neighbours are asked for in one request.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from tonne.clock import Deadline
from tonne.errors import CorruptBytes, DeadlineExceeded, TonneError
from tonne.image.buffers import SPARE_BYTES_MAX, Buffers
from tonne.model import Blob, Digest, Frame, blake3_of
from tonne.model.frame import STRIPE_BYTES
from tonne.source.seam import Priority, RisingPriority, Source, Urgent

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


class Kept(Protocol):
    """What is kept of one blob.  Any thread may call; nothing is verified here."""

    def read(self, offset: int, out: memoryview) -> bool:
        """Fill `out`; False when not all of the range is there, and then `out` holds rubbish."""

    def write(self, offset: int, data: memoryview) -> None:
        """Keep bytes that were verified: one piece, or several that lie together and start in the same stripe."""

    def drop(self, offset: int, length: int) -> None:
        """Forget a range that turned out to be wrong."""


class Keeper(Protocol):
    """Where verified bytes are kept: the node's store, or what stands in for it."""

    def blob(self, blob: Blob) -> Kept: ...

    def document(self, digest: Digest) -> bytes | None:
        """A small blob or manifest that was kept as a whole; the caller verifies it."""

    def keep_document(self, digest: Digest, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class _Flight:
    """A piece on its way, and how urgent that is."""

    priority: RisingPriority
    future: Future[memoryview] = field(default_factory=Future)


class Fetcher:
    """Gives verified pieces.

    Any thread may call.  `_flights` is guarded by `_lock`; a flight is entered before its request and removed after its
    bytes are in the store, whatever happened, so a failure is never remembered.  Who waits for another's flight makes
    it as urgent as itself.  Nothing survives the process but the store.
    """

    def __init__(
        self,
        source: Source,
        store: Keeper | None,
        request_bytes: int,
        on_event: Callable[[TonneError], None] | None = None,
        spare_bytes_max: int = SPARE_BYTES_MAX,
    ) -> None:
        """`store` None: nothing is kept.  `on_event` is told of corrupt bytes, with their origin; `spare_bytes_max` of
        memory is kept for the next requests."""
        self.source = source
        self.store = store
        self._request_bytes = request_bytes
        self._on_event = on_event or (lambda error: None)
        self._lock = threading.Lock()
        self._flights: dict[tuple[Digest, int], _Flight] = {}
        self._buffers = Buffers(spare_bytes_max)

    @property
    def flights(self) -> int:
        """How many pieces are on their way."""
        with self._lock:
            return len(self._flights)

    def pieces(
        self, blob: Blob, wanted: Sequence[Piece], deadline: Deadline, priority: Urgent = Priority.DEMAND
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
        out = self._buffers.take(piece.length)
        if not stored.read(piece.offset, out):
            return None
        if blake3_of(out) == piece.digest:
            return out
        # Evicted under our hands, or rotten: either way it is fetched again.
        stored.drop(piece.offset, piece.length)
        return None

    def _fetch(
        self, blob: Blob, missing: Sequence[Piece], got: dict[int, memoryview], deadline: Deadline, priority: Urgent
    ) -> None:
        ours: list[Piece] = []
        theirs: list[tuple[Piece, _Flight]] = []
        rising = RisingPriority(priority.now)
        with self._lock:
            for piece in missing:
                key = (blob.digest, piece.offset)
                flight = self._flights.get(key)
                if flight is None:
                    self._flights[key] = _Flight(rising)
                    ours.append(piece)
                elif all(piece.offset != other.offset for other in ours):
                    theirs.append((piece, flight))
        failure: BaseException | None = None
        with rising.following(priority):
            for run in self._runs(ours):
                if failure is None:
                    try:
                        self._request(blob, run, got, deadline, rising)
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
        self, blob: Blob, run: list[Piece], got: dict[int, memoryview], deadline: Deadline, priority: Urgent
    ) -> None:
        start = run[0].offset
        out = self._buffers.take(run[-1].end - start)

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
            for _, stripe in groupby(run, lambda piece: piece.offset // STRIPE_BYTES):
                together = list(stripe)
                first, end = together[0].offset, together[-1].end
                stored.write(first, out[first - start : end - start])
        self._land(blob, run, got, None)

    def _land(
        self, blob: Blob, run: Iterable[Piece], got: dict[int, memoryview], failure: BaseException | None
    ) -> None:
        with self._lock:
            flights = [(piece, self._flights.pop((blob.digest, piece.offset))) for piece in run]
        for piece, flight in flights:
            if failure is None:
                flight.future.set_result(got[piece.offset])
            else:
                flight.future.set_exception(failure)

    def _wait(self, blob: Blob, piece: Piece, flight: _Flight, deadline: Deadline, priority: Urgent) -> memoryview:
        try:
            with flight.priority.following(priority):
                data = flight.future.result(timeout=deadline.left_s())
        except FutureTimeout:
            raise DeadlineExceeded("waiting for bytes that another reader fetches", where=str(blob.digest)) from None
        except DeadlineExceeded:
            # It was their deadline, not ours.
            deadline.check("reading", str(blob.digest))
            return self.pieces(blob, [piece], deadline, priority)[0]
        except TonneError as error:
            # A copy: an exception that several threads raise would mix up their tracebacks.
            raise copy.copy(error) from error
        if len(data) != piece.length or blake3_of(data) != piece.digest:
            # Another image's idea of the same place.
            return self.pieces(blob, [piece], deadline, priority)[0]
        return data
