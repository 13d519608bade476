"""Decoded frames: the cache's accounts, single flight, requests, and failures that stay where they belong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Semaphore

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.image.sketch import Made, make, put
from tests.source.gates import wait_until
from tonne.clock import Deadline
from tonne.errors import CorruptBytes, DeadlineExceeded, Unreachable
from tonne.image.content import Content, DecodedCache
from tonne.image.opening import open_image
from tonne.settings import NetworkSettings, ReadSettings, Settings
from tonne.source.memory import Asked, MemoryRepository
from tonne.source.seam import Priority

NEVER = Deadline()
LONG_S = 20.0
FRAME = 4096


class Opened:
    """A content over an image in memory; `read` are the requests for packs alone."""

    def __init__(self, text: str, settings: Settings | None = None) -> None:
        self.made: Made = make(f"frame {FRAME}\n{text}")
        self.repository = MemoryRepository()
        put(self.repository, self.made)
        settings = settings or Settings()
        image = open_image(self.repository, "v1", settings, NEVER)
        self.content = Content(image.index, image.fetcher, settings)
        self.packs = {str(pack.digest) for pack in self.made.manifest.packs}
        self.repository.asked.clear()

    @property
    def read(self) -> list[Asked]:
        return [asked for asked in self.repository.asked if asked.subject in self.packs]

    def expected(self, number: int) -> bytes:
        for inode, extents in self.made.extents.items():
            for extent in extents:
                if extent.frame == number:
                    path = self.made.paths[inode - 1]
                    return self.made.contents[path][extent.file_offset : extent.end]
        raise AssertionError(number)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("request"), st.lists(st.integers(1, 50), min_size=1, max_size=4)),
            st.tuples(st.just("get"), st.integers(0, 60)),
        ),
        max_size=40,
    ),
    st.integers(1, 300),
)
def test_the_cache_counts_the_buffers_that_it_holds(steps: list[tuple[str, object]], limit: int) -> None:
    cache = DecodedCache(limit)
    number = 0
    views: dict[int, memoryview] = {}
    order: list[int] = []
    for what, value in steps:
        if what == "request":
            assert isinstance(value, list)
            # Several raw frames of one request are slices of one buffer.
            buffer, at = memoryview(bytearray(sum(value))), 0
            for length in value:
                views[number] = buffer[at : at + length]
                cache.put(number, views[number])
                order.append(number)
                at, number = at + length, number + 1
        elif isinstance(value, int) and cache.get(value) is not None:
            assert cache.get(value) is views[value]
            order.remove(value)
            order.append(value)
        held = [each for each in order if each in cache]
        order = held
        buffers = {id(views[each].obj): memoryview(views[each].obj).nbytes for each in held}
        assert cache.held_bytes == sum(buffers.values())
        assert cache.held_bytes <= limit or len(held) == 1
    while order:
        # The least recently used go first.
        oldest, views[number] = order[0], memoryview(bytes(limit))
        before = cache.held_bytes
        cache.put(number, memoryview(bytes(1)))
        if before + 1 > limit:
            assert oldest not in cache
            break
        order = [each for each in order if each in cache]
        number += 1
        if number > 1000:
            break
    cache.clear()
    assert cache.held_bytes == 0


def test_neighbours_come_in_one_request_and_stay() -> None:
    opened = Opened("level 0\nfile a seed:1:32768")
    numbers = list(range(8))
    got = opened.content.frames(numbers, NEVER)
    assert {number: bytes(data) for number, data in got.items()} == {n: opened.expected(n) for n in numbers}
    assert [(asked.offset, asked.length) for asked in opened.read] == [(0, 8 * FRAME)]
    assert all(data.readonly for data in got.values())
    opened.content.frames(numbers, NEVER)
    assert len(opened.read) == 1
    assert opened.content.held_bytes == 8 * FRAME


def test_far_frames_come_in_several_requests_at_the_same_time() -> None:
    opened = Opened("level 0\nlanes 4\nfile a seed:1:131072")
    together = threading.Barrier(4)

    def meet(asked: Asked) -> None:
        together.wait(LONG_S)

    opened.repository.on_call = meet
    got = opened.content.frames(range(32), NEVER)
    assert {number: bytes(data) for number, data in got.items()} == {n: opened.expected(n) for n in range(32)}
    assert len(opened.read) == 4


def test_more_requests_than_connections_are_made_one_after_the_other() -> None:
    settings = Settings(network=replace(NetworkSettings(), connections=2, request_bytes=FRAME))
    opened = Opened("file a seed:1:131072", settings)
    got = opened.content.frames(range(32), NEVER)
    assert {number: bytes(data) for number, data in got.items()} == {n: opened.expected(n) for n in range(32)}
    assert len(opened.read) == 32


def test_many_readers_of_a_frame_make_one_request_and_one_decoding() -> None:
    opened = Opened("file a seed:1:4096+zero:4096")
    started, gate = threading.Semaphore(0), threading.Event()

    def hold(asked: Asked) -> None:
        started.release()
        assert gate.wait(LONG_S)

    opened.repository.on_call = hold
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(opened.content.frames, [0], NEVER) for _ in range(8)]
        assert started.acquire(timeout=LONG_S)
        gate.set()
        got = [call.result(LONG_S)[0] for call in calls]
    assert len(opened.read) == 1
    assert all(view.obj is got[0].obj for view in got), "it was decoded more than once"


def test_a_failure_is_told_once_and_forgotten() -> None:
    opened = Opened("file a seed:1:8192")
    opened.repository.fail("read", Unreachable("no connection"))
    with pytest.raises(Unreachable):
        opened.content.frames([0, 1], NEVER)
    assert opened.content.absent([0, 1]) == [0, 1]
    assert bytes(opened.content.frames([0], NEVER)[0]) == opened.expected(0)


def test_a_wrong_bit_never_comes_out() -> None:
    opened = Opened("level 0\nfile a seed:1:8192")
    opened.repository.flip(opened.made.manifest.packs[0].digest, 5000)
    with pytest.raises(CorruptBytes):
        opened.content.frames([0, 1], NEVER)
    assert opened.content.peek(1) is None
    got = opened.content.frames([0, 1], NEVER)
    assert bytes(got[1]) == opened.expected(1)


def held_by(opened: Opened, priority: Priority) -> tuple[threading.Semaphore, threading.Event]:
    """Requests of that priority wait for the event, and then fail."""
    started, gate = threading.Semaphore(0), threading.Event()

    def hold(asked: Asked) -> None:
        if asked.subject in opened.packs and asked.priority is priority:
            started.release()
            assert gate.wait(LONG_S)
            raise Unreachable("no connection")

    opened.repository.on_call = hold
    return started, gate


def test_a_reader_who_waits_for_read_ahead_that_fails_tries_by_itself() -> None:
    opened = Opened("file a seed:1:8192")
    started, gate = held_by(opened, Priority.AHEAD)
    with ThreadPoolExecutor(2) as pool:
        ahead = pool.submit(opened.content.frames, [0], NEVER, Priority.AHEAD)
        assert started.acquire(timeout=LONG_S)
        demand = pool.submit(opened.content.frames, [0], NEVER)
        gate.set()
        assert bytes(demand.result(LONG_S)[0]) == opened.expected(0)
        assert isinstance(ahead.exception(LONG_S), Unreachable)


def test_a_reader_who_waits_for_another_reader_is_told_of_the_failure() -> None:
    opened = Opened("file a seed:1:8192")
    started, gate = held_by(opened, Priority.DEMAND)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(opened.content.frames, [0], NEVER)]
        assert started.acquire(timeout=LONG_S)
        calls.append(pool.submit(opened.content.frames, [0], NEVER))
        gate.set()
        for call in calls:
            assert isinstance(call.exception(LONG_S), Unreachable)


def test_who_waits_has_a_deadline_of_its_own_and_others_deadlines_are_not_theirs() -> None:
    opened = Opened("file a seed:1:8192")
    started, gate = threading.Semaphore(0), threading.Event()

    def hold(asked: Asked) -> None:
        if len(opened.read) == 1:
            started.release()
            assert gate.wait(LONG_S)

    opened.repository.on_call = hold
    with ThreadPoolExecutor(2) as pool:
        short = Deadline.after(0.1)
        first = pool.submit(opened.content.frames, [0], short)
        assert started.acquire(timeout=LONG_S)
        with pytest.raises(DeadlineExceeded):
            opened.content.frames([0], Deadline.after(0.01))
        patient = pool.submit(opened.content.frames, [0], Deadline.after(LONG_S))
        while not short.expired():
            pass
        gate.set()
        assert isinstance(first.exception(LONG_S), DeadlineExceeded)
        assert bytes(patient.result(LONG_S)[0]) == opened.expected(0)


def test_memory_stays_within_its_limit_whatever_is_read() -> None:
    settings = Settings(read=replace(ReadSettings(), decoded_cache_bytes=10 * FRAME))
    opened = Opened("file a seed:1:400000", settings)
    for number in range(97):
        opened.content.frames([number], NEVER)
        assert opened.content.held_bytes <= 10 * FRAME


@pytest.fixture
def crowd() -> Iterator[tuple[Opened, Semaphore]]:
    """A content with room for four frames that are waited for, of which each request needs leave."""
    chosen = Settings(
        read=replace(ReadSettings(), decoded_cache_bytes=8 * FRAME), network=replace(NetworkSettings(), connections=32)
    )
    opened, leave = Opened(f"level 0\nfile a seed:1:{32 * FRAME}", chosen), Semaphore(0)

    def wait(asked: Asked) -> None:
        assert leave.acquire(timeout=LONG_S)

    opened.repository.on_call = wait
    yield opened, leave
    leave.release(1000)


def test_readers_wait_for_memory_in_their_order(crowd: tuple[Opened, Semaphore]) -> None:
    opened, leave = crowd
    with ThreadPoolExecutor(12) as pool:
        for number in range(0, 24, 2):
            pool.submit(lambda number=number: opened.content.frames([number], Deadline.after(LONG_S)))  # type: ignore[misc]
            wait_until(lambda number=number: number not in opened.content.absent([number]))  # type: ignore[misc]
        wait_until(lambda: len(opened.read) == 4)
        # Read-ahead has a bound of its own, and what is cached makes way for it.
        ahead = pool.submit(opened.content.frames, [31], Deadline.after(LONG_S), Priority.AHEAD)
        with pytest.raises(DeadlineExceeded):
            opened.content.frames([30], Deadline.after(0.05))
        assert len(opened.read) <= 5
        leave.release(1000)
        assert bytes(ahead.result(LONG_S)[31]) == opened.expected(31)
    assert sorted(asked.offset // FRAME for asked in opened.read) == [*range(0, 24, 2), 31]
    assert bytes(opened.content.frames([30], Deadline.after(LONG_S))[30]) == opened.expected(30)


def test_frames_in_memory_make_way_for_those_that_come(crowd: tuple[Opened, Semaphore]) -> None:
    opened, leave = crowd
    leave.release(8)
    for number in range(0, 16, 2):
        opened.content.frames([number], NEVER)
    assert opened.content.held_bytes == 8 * FRAME
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(opened.content.frames, [20, 21, 22], Deadline.after(LONG_S))
        wait_until(lambda: opened.content.held_bytes == 5 * FRAME)
        leave.release(1000)
        assert set(coming.result(LONG_S)) == {20, 21, 22}
    assert opened.content.held_bytes == 8 * FRAME


def test_runs_count_what_decoding_takes() -> None:
    opened = Opened("file a " + "+".join(f"text:{letter * FRAME}" for letter in "abcdefgh"))
    frames = opened.made.frames
    packed = max(frame.stored_bytes for frame in frames)
    assert packed < FRAME
    runs = opened.content.runs(frames, 2 * (FRAME + packed))
    assert [[frame.number for frame in run] for run in runs] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_runs_are_cut_where_frames_are_apart_or_too_many() -> None:
    opened = Opened("level 0\nlanes 2\nfile a seed:1:131072")
    frames = opened.made.frames
    runs = opened.content.runs([frames[number] for number in (9, 0, 1, 3, 4, 5, 17, 16)], 2 * FRAME)
    assert [[frame.number for frame in run] for run in runs] == [[0, 1], [3, 4], [5], [9], [16, 17]]
