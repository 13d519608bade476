"""The fetcher: only verified bytes come out, neighbours come together, nobody fetches what another fetches already."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.clock import Deadline
from tonne.errors import CorruptBytes, DeadlineExceeded, TonneError, Unreachable
from tonne.image.fetch import Fetcher, Kept, Piece
from tonne.model import Blob, Digest, blake3_of
from tonne.model.frame import STRIPE_BYTES
from tonne.source.memory import Asked, MemoryRepository
from tonne.source.seam import Check, Priority, Urgent

NEVER = Deadline()
LONG_S = 20.0


class Shelf:
    """A keeper in memory that a test can spoil."""

    def __init__(self) -> None:
        self.blobs: dict[Digest, ShelfBlob] = {}
        self.documents: dict[Digest, bytes] = {}

    def blob(self, blob: Blob) -> Kept:
        return self.blobs.setdefault(blob.digest, ShelfBlob())

    def document(self, digest: Digest) -> bytes | None:
        return self.documents.get(digest)

    def keep_document(self, digest: Digest, data: bytes) -> None:
        self.documents[digest] = data


class ShelfBlob:
    def __init__(self) -> None:
        self.kept: dict[int, int] = {}  # byte by byte: a write may hold several pieces

    def read(self, offset: int, out: memoryview) -> bool:
        place = range(offset, offset + out.nbytes)
        if any(at not in self.kept for at in place):
            return False
        out[:] = bytes(self.kept[at] for at in place)
        return True

    def write(self, offset: int, data: memoryview) -> None:
        self.kept.update(enumerate(data, offset))

    def drop(self, offset: int, length: int) -> None:
        for at in range(offset, offset + length):
            self.kept.pop(at, None)


def cut(data: bytes, lengths: list[int]) -> list[Piece]:
    pieces, at = [], 0
    for length in lengths:
        pieces.append(Piece(at, length, blake3_of(data[at : at + length])))
        at += length
    return pieces


DATA = bytes(range(256)) * 8
TENTHS = [200] * 10


@pytest.fixture
def repository() -> MemoryRepository:
    return MemoryRepository()


def reads(repository: MemoryRepository) -> list[tuple[int, int]]:
    return [(asked.offset, asked.length) for asked in repository.asked if asked.kind == "read"]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30), st.data(), st.integers(1, 400), st.booleans(), st.booleans()
)
def test_what_comes_is_what_was_asked_in_requests_of_neighbours(
    lengths: list[int], data: st.DataObject, request_bytes: int, keeps: bool, twice: bool
) -> None:
    repository = MemoryRepository()
    content = DATA[: sum(lengths)]
    blob = repository.add(content)
    shelf = Shelf() if keeps else None
    fetcher = Fetcher(repository, shelf, request_bytes)
    pieces = cut(content, lengths)
    for _ in range(1 + twice):
        wanted = data.draw(st.lists(st.sampled_from(pieces), max_size=20))
        before = len(reads(repository))
        got = fetcher.pieces(blob, wanted, NEVER)
        assert [bytes(view) for view in got] == [content[piece.offset : piece.end] for piece in wanted]
        asked = reads(repository)[before:]
        covered = [at for offset, length in asked for at in range(offset, offset + length)]
        assert len(covered) == len(set(covered)), "no byte twice"
        if not (twice and keeps):
            assert set(covered) <= {at for piece in wanted for at in range(piece.offset, piece.end)}
        longest = max((piece.length for piece in pieces), default=0)
        assert all(length <= max(request_bytes, longest) for _, length in asked)
        for (one, length), (two, other) in zip(sorted(asked), sorted(asked)[1:], strict=False):
            assert one + length != two or length + other > request_bytes or length + longest > request_bytes, (
                "neighbours that fit came apart"
            )


def test_from_the_store_nothing_is_asked(repository: MemoryRepository) -> None:
    blob, shelf = repository.add(DATA), Shelf()
    pieces = cut(DATA, TENTHS)
    Fetcher(repository, shelf, 1000).pieces(blob, pieces, NEVER)
    asked = len(repository.asked)
    again = Fetcher(repository, shelf, 1000).pieces(blob, pieces, NEVER)
    assert b"".join(again) == DATA[:2000]
    assert len(repository.asked) == asked


@given(st.integers(0, 1999))
def test_a_rotten_bit_in_the_store_is_fetched_again(offset: int) -> None:
    repository, shelf = MemoryRepository(), Shelf()
    blob, pieces = repository.add(DATA), cut(DATA, TENTHS)
    fetcher = Fetcher(repository, shelf, 1000)
    fetcher.pieces(blob, pieces, NEVER)
    kept = shelf.blobs[blob.digest].kept
    start = offset // 200 * 200
    kept[offset] ^= 1
    before = len(reads(repository))
    assert b"".join(fetcher.pieces(blob, pieces, NEVER)) == DATA[:2000]
    assert reads(repository)[before:] == [(start, 200)]
    assert bytes(kept[at] for at in range(2000)) == DATA[:2000]


@given(st.integers(0, 1999))
def test_a_wrong_bit_from_the_source_never_comes_out_and_is_told(offset: int) -> None:
    repository, shelf, told = MemoryRepository(), Shelf(), list[TonneError]()
    blob, pieces = repository.add(DATA), cut(DATA, TENTHS)
    fetcher = Fetcher(repository, shelf, 1000, told.append)
    repository.flip(blob.digest, offset)
    with pytest.raises(CorruptBytes) as caught:
        fetcher.pieces(blob, pieces, NEVER)
    assert caught.value.fields["origin"] == repository.origin
    assert caught.value.fields["offset"] == offset // 200 * 200
    assert told == [caught.value]
    assert offset not in shelf.blob(blob).kept  # type: ignore[attr-defined]
    assert b"".join(fetcher.pieces(blob, pieces, NEVER)) == DATA[:2000], "the failure was remembered"


def test_many_readers_make_one_request(repository: MemoryRepository) -> None:
    blob, pieces = repository.add(DATA), cut(DATA, TENTHS)
    fetcher = Fetcher(repository, None, 10_000)
    gate, waiting = threading.Event(), threading.Semaphore(0)

    def hold(asked: Asked) -> None:
        waiting.release()
        assert gate.wait(LONG_S)

    repository.on_call = hold
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(fetcher.pieces, blob, pieces, NEVER)
        assert waiting.acquire(timeout=LONG_S)
        others = [pool.submit(fetcher.pieces, blob, [piece], NEVER) for piece in pieces[:7]]
        gate.set()
        assert b"".join(first.result(LONG_S)) == DATA[:2000]
        for piece, other in zip(pieces, others, strict=False):
            assert bytes(other.result(LONG_S)[0]) == DATA[piece.offset : piece.end]
    # Who came after the answer asks for itself, since nothing is kept; who came before does not.
    assert reads(repository)[0] == (0, 2000)


def test_who_waits_has_a_deadline_of_its_own(repository: MemoryRepository) -> None:
    blob, pieces = repository.add(DATA), cut(DATA, TENTHS)
    fetcher = Fetcher(repository, None, 10_000)
    gate, waiting = threading.Event(), threading.Semaphore(0)

    def hold(asked: Asked) -> None:
        waiting.release()
        assert gate.wait(LONG_S)

    repository.on_call = hold
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetcher.pieces, blob, pieces, NEVER)
        assert waiting.acquire(timeout=LONG_S)
        with pytest.raises(DeadlineExceeded):
            fetcher.pieces(blob, pieces[:1], Deadline.after(0.05))
        gate.set()
        assert len(first.result(LONG_S)) == 10
    assert reads(repository) == [(0, 2000)]


def test_a_failure_reaches_those_who_wait_and_nobody_after(repository: MemoryRepository) -> None:
    blob, pieces = repository.add(DATA), cut(DATA, TENTHS)
    fetcher = Fetcher(repository, None, 10_000)
    repository.fail("read", Unreachable("no connection"))
    with pytest.raises(Unreachable):
        fetcher.pieces(blob, pieces, NEVER)
    assert b"".join(fetcher.pieces(blob, pieces, NEVER)) == DATA[:2000]


def test_a_whole_blob_is_verified_kept_and_bounded(repository: MemoryRepository) -> None:
    blob, shelf = repository.add(DATA), Shelf()
    fetcher = Fetcher(repository, shelf, 1000)
    repository.flip(blob.digest, 17)
    with pytest.raises(CorruptBytes):
        fetcher.whole(blob, NEVER)
    assert shelf.documents == {}
    assert fetcher.whole(blob, NEVER) == DATA
    shelf.documents[blob.digest] = b"rotten"
    assert fetcher.whole(blob, NEVER) == DATA
    asked = len(repository.asked)
    assert fetcher.whole(blob, NEVER) == DATA
    assert len(repository.asked) == asked
    with pytest.raises(CorruptBytes):
        fetcher.whole(blob, NEVER, limit_bytes=len(DATA) - 1)


class UntilUrgent(MemoryRepository):
    """Reads wait until somebody urgent waits for them, and then fail if they are told to."""

    error: TonneError | None = None

    def read(
        self,
        blob: Blob,
        offset: int,
        out: memoryview,
        deadline: Deadline,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> None:
        end_s = time.monotonic() + LONG_S
        while priority.now is not Priority.DEMAND:
            assert time.monotonic() < end_s, "nobody made it urgent"
            time.sleep(0.001)
        if self.error is not None:
            raise self.error
        super().read(blob, offset, out, deadline, check, priority)


def join_in_flight(repository: UntilUrgent) -> list[Future[list[memoryview]]]:
    """One who is in no hurry and one who is, for the same piece."""
    blob, pieces = repository.add(DATA), cut(DATA, TENTHS)
    fetcher = Fetcher(repository, None, 200)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(fetcher.pieces, blob, pieces[:1], NEVER, Priority.BACKGROUND)
        while not fetcher.flights:
            time.sleep(0.001)
        return [leader, pool.submit(fetcher.pieces, blob, pieces[:1], NEVER)]


def test_whoever_joins_a_flight_makes_it_as_urgent_as_itself() -> None:
    repository = UntilUrgent()
    assert [bytes(future.result()[0]) for future in join_in_flight(repository)] == [DATA[:200]] * 2
    assert reads(repository) == [(0, 200)]


def test_an_error_is_given_to_each_who_waits_as_an_object_of_its_own() -> None:
    repository = UntilUrgent()
    repository.error = Unreachable("no route")
    errors = [future.exception() for future in join_in_flight(repository)]
    assert [type(error) for error in errors] == [Unreachable] * 2
    assert errors[0] is not errors[1]


def test_what_one_request_brought_is_kept_stripe_by_stripe(
    repository: MemoryRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store evicts what was kept in one call with the stripe in which that begins."""
    data = bytes(2 * STRIPE_BYTES)
    blob = repository.add(data)
    written: list[tuple[int, int]] = []
    monkeypatch.setattr(ShelfBlob, "write", lambda self, offset, data: written.append((offset, data.nbytes)))
    ends = [STRIPE_BYTES - 300, STRIPE_BYTES - 100, STRIPE_BYTES + 200, STRIPE_BYTES + 300, STRIPE_BYTES + 400]
    pieces = [Piece(a, b - a, blake3_of(data[a:b])) for a, b in pairwise(ends)]
    Fetcher(repository, Shelf(), 1 << 20).pieces(blob, pieces, NEVER)
    assert reads(repository) == [(STRIPE_BYTES - 300, 700)]
    assert written == [(STRIPE_BYTES - 300, 500), (STRIPE_BYTES + 200, 200)]
