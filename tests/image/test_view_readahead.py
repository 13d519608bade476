"""Who reads in order is recognised, fetched for, and nobody else."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.image.sketch import Made, make, put
from tonne.clock import Deadline
from tonne.errors import Unreachable
from tonne.image.opening import open_image
from tonne.image.pool import Pool
from tonne.image.readahead import BURST_BYTES, READERS_MAX, STALE_READS, WINDOW_FIRST_BYTES, Readers
from tonne.image.view import OpenFile, View
from tonne.settings import MIB, NetworkSettings, ReadSettings, Settings
from tonne.source.memory import Asked, MemoryRepository
from tonne.source.seam import Priority

NEVER = Deadline()
LONG_S = 20.0
WINDOW_MAX = 32 * MIB


def eventually(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < end, f"never came to be: {what}"
        time.sleep(0.002)


class Run:
    """Feeds reads to `Readers` and checks what must hold of every answer."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.readers = Readers(size, WINDOW_MAX)
        self.ahead: list[tuple[int, int]] = []

    def read(self, start: int, length: int) -> tuple[int, int] | None:
        found = self.readers.note(start, min(start + length, self.size))
        if found is None:
            return None
        reader, low, high = found
        assert reader.at <= low < high <= min(self.size, reader.at + WINDOW_MAX)
        assert high - low <= WINDOW_MAX
        self.ahead.append((low, high))
        return low, high


@given(st.integers(1, 600), st.sampled_from([4096, 128 * 1024, MIB, 16 * MIB]), st.integers(0, 300))
@settings(max_examples=40)
def test_a_sequential_reader_has_everything_read_ahead_once(size_mib: int, read_bytes: int, start_mib: int) -> None:
    size = size_mib * MIB + 17
    run = Run(size)
    at = start = min(start_mib, size_mib) * MIB
    if read_bytes == 4096:
        at = start = max(start, size - 40 * MIB)
    while at < size:
        run.read(at, read_bytes)
        at += read_bytes
    if size - start > BURST_BYTES + 2 * read_bytes:
        assert run.ahead, "nothing was read ahead"
        assert run.ahead[0][0] <= start + BURST_BYTES + 2 * read_bytes
        assert run.ahead[-1][1] == size
    assert all(
        one[1] == two[0] or two[0] % read_bytes == start % read_bytes
        for one, two in zip(run.ahead, run.ahead[1:], strict=False)
    )
    assert all(one[1] <= two[0] for one, two in zip(run.ahead, run.ahead[1:], strict=False)), "something came twice"


@given(st.permutations(range(8)), st.integers(0, 100))
def test_requests_of_a_burst_may_come_in_any_order(order: list[int], start_mib: int) -> None:
    # The kernel has several on the way, and they overtake each other.
    run = Run(1000 * MIB)
    at = start_mib * MIB
    for _ in range(8):
        for place in [*(each for each in order if each < 4), *(each for each in order if each >= 4)]:
            run.read(at + place % 4 * MIB, MIB)
        at += 4 * MIB
    assert run.ahead[-1][1] >= at


@given(st.integers(2, READERS_MAX), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_interleaved_readers_each_have_their_own(count: int, random: object) -> None:
    run = Run(count * 200 * MIB)
    places = [number * 200 * MIB for number in range(count)]
    for _ in range(64):
        for reader in range(count):
            run.read(places[reader], 256 * 1024)
            places[reader] += 256 * 1024
    for number in range(count):
        mine = [(low, high) for low, high in run.ahead if low // (200 * MIB) == number]
        assert mine, f"nothing for reader {number}"
        assert mine[-1][1] > places[number]


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=200, unique=True))
def test_who_jumps_about_has_nothing_read_ahead(places: list[int]) -> None:
    # Each fault brings the kernel's own burst with it.
    run = Run(1 << 60)
    for place in places:
        for part in range(4):
            run.read(place * 64 * MIB + part * MIB, MIB)
    assert run.ahead == []


def test_the_window_grows_with_the_reading() -> None:
    run = Run(1000 * MIB)
    distances, sizes = [], []
    for place in range(400):
        found = run.read(place * MIB, MIB)
        if found is not None:
            distances.append(found[1] - (place + 1) * MIB)
            sizes.append(found[1] - found[0])
    assert distances[0] == WINDOW_FIRST_BYTES
    assert set(distances[5:]) == {WINDOW_MAX}
    assert min(sizes[5:]) >= WINDOW_MAX // 3, "requests became small"


def test_what_was_given_back_is_returned_again() -> None:
    readers = Readers(1000 * MIB, WINDOW_MAX)
    found = None
    at = 0
    while found is None:
        found = readers.note(at, at + MIB)
        at += MIB
    reader, low, high = found
    readers.give_back(reader, low)
    again = readers.note(at, at + MIB)
    assert again is not None
    assert again[1] == max(low, at + MIB)
    assert again[2] >= high


def test_a_reader_that_is_passed_over_is_gone() -> None:
    readers = Readers(100_000 * MIB, WINDOW_MAX)
    found = None
    at = 0
    while found is None:
        found = readers.note(at, at + MIB)
        at += MIB
    reader = found[0]
    assert not readers.gone(reader)
    for place in range(STALE_READS + 1):
        readers.note(50_000 * MIB, 50_000 * MIB + place)
    assert readers.gone(reader)


# --- with a view ---

TEXT = f"level 0\nframe {MIB}\nlanes 4\nfile big seed:1:{40 * MIB}\nfile small seed:2:{2 * MIB}\n"


@functools.cache
def made() -> Made:
    return make(TEXT)


class Opened:
    def __init__(self, decoded_mib: int = 64, connections: int = 8) -> None:
        self.made = made()
        self.repository = MemoryRepository()
        put(self.repository, self.made)
        base = Settings()
        chosen = replace(
            base,
            read=replace(ReadSettings(), decoded_cache_bytes=decoded_mib * MIB),
            network=replace(NetworkSettings(), connections=connections),
        )
        self.view = View(open_image(self.repository, "v1", chosen, NEVER), chosen)
        self.packs = {str(pack.digest) for pack in self.made.manifest.packs}
        self.big = self.made.contents[b"big"]

    def open(self, path: bytes) -> OpenFile:
        return self.view.open(self.view.resolve(path, NEVER).inode, NEVER)

    def asked(self, priority: Priority) -> list[Asked]:
        return [each for each in self.repository.asked if each.subject in self.packs and each.priority is priority]


def in_memory(opened: Opened, file: OpenFile, start: int, end: int) -> bool:
    extents = file.extents(start, end, NEVER)
    return not [each for each in extents if each.frame is None or opened.view.content.peek(each.frame) is None]


def test_what_comes_next_is_there_before_it_is_read() -> None:
    opened = Opened()
    file = opened.open(b"big")
    for at in range(6):
        assert bytes(file.read(at * MIB, MIB, NEVER)) == opened.big[at * MIB : (at + 1) * MIB]
    eventually(lambda: in_memory(opened, file, 6 * MIB, 12 * MIB), "six more MiB in memory")
    demand = len(opened.asked(Priority.DEMAND))
    for at in range(6, 12):
        held = file.peek(at * MIB, MIB)
        assert held is not None
        assert bytes(held) == opened.big[at * MIB : (at + 1) * MIB]
    assert len(opened.asked(Priority.DEMAND)) == demand
    opened.view.close()


def test_a_whole_file_is_fetched_once() -> None:
    opened = Opened()
    file = opened.open(b"big")
    for at in range(40):
        assert bytes(file.read(at * MIB, MIB, NEVER)) == opened.big[at * MIB : (at + 1) * MIB]
    spans = [
        (each.subject, each.offset + part)
        for each in [*opened.asked(Priority.DEMAND), *opened.asked(Priority.AHEAD)]
        for part in range(0, each.length, MIB)
    ]
    assert len(spans) == len(set(spans)) == 40
    opened.view.close()


def test_the_window_fits_the_memory() -> None:
    opened = Opened(decoded_mib=15)
    assert opened.view.read_ahead is not None
    assert opened.view.read_ahead.window_max_bytes == 9 * MIB
    file = opened.open(b"big")
    for at in range(40):
        file.read(at * MIB, MIB, NEVER)
        assert opened.view.content.held_bytes <= 15 * MIB
    total = sum(each.length for each in opened.repository.asked if each.subject in opened.packs)
    assert total <= 44 * MIB, "what was read ahead was pushed out before it was read"
    opened.view.close()


def test_failures_of_read_ahead_are_silent_and_forgotten() -> None:
    opened = Opened()

    def fail(asked: Asked) -> None:
        if asked.priority is Priority.AHEAD:
            raise Unreachable("no connection")

    opened.repository.on_call = fail
    file = opened.open(b"big")
    for at in range(40):
        assert bytes(file.read(at * MIB, MIB, NEVER)) == opened.big[at * MIB : (at + 1) * MIB]
    assert opened.asked(Priority.AHEAD)
    opened.view.close()


def test_read_ahead_that_hangs_delays_no_other_reader() -> None:
    opened = Opened()
    gate = threading.Event()

    def hang(asked: Asked) -> None:
        if asked.priority is Priority.AHEAD:
            assert gate.wait(LONG_S)

    opened.repository.on_call = hang
    file = opened.open(b"big")
    for at in range(5):
        file.read(at * MIB, MIB, NEVER)
    eventually(lambda: len(opened.asked(Priority.AHEAD)) > 0, "read-ahead begins")
    other = opened.open(b"small")
    assert bytes(other.read(0, MIB, Deadline.after(LONG_S))) == opened.made.contents[b"small"][:MIB]
    assert len(opened.asked(Priority.AHEAD)) <= 4, "places for readers are left"
    gate.set()
    opened.view.close()


@pytest.mark.parametrize("how", ["close", "seek"])
def test_what_nobody_wants_any_more_is_not_begun(how: str) -> None:
    opened = Opened(connections=2)
    gate = threading.Event()

    def hang(asked: Asked) -> None:
        if asked.priority is Priority.AHEAD:
            assert gate.wait(LONG_S)

    opened.repository.on_call = hang
    file = opened.open(b"big")
    for at in range(5):
        file.read(at * MIB, MIB, NEVER)
    eventually(lambda: len(opened.asked(Priority.AHEAD)) == 1, "read-ahead begins")
    if how == "close":
        file.close()
    else:
        for _ in range(STALE_READS + 1):
            file.read(39 * MIB, MIB, NEVER)
    gate.set()
    # One thread does all read-ahead here, so that this job is behind the others.
    done = threading.Event()
    assert opened.view.read_ahead is not None
    opened.view.read_ahead.submit(done.set)
    assert done.wait(LONG_S)
    assert len(opened.asked(Priority.AHEAD)) == 1
    opened.view.close()


def test_a_pool_runs_all_jobs_with_no_more_threads_than_it_may() -> None:
    pool = Pool(3, "test")
    lock, running, most, done = threading.Lock(), 0, 0, threading.Semaphore(0)

    def job() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
        done.release()

    for _ in range(50):
        pool.submit(job)
    for _ in range(50):
        assert done.acquire(timeout=LONG_S)
    assert 1 <= most <= 3
    pool.close()
    pool.submit(job)
    assert not done.acquire(timeout=0.05), "a closed pool took a job"


def test_a_job_that_raises_does_not_stop_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    pool, done = Pool(1, "test"), threading.Event()

    def wrong() -> None:
        raise RuntimeError("a defect")

    pool.submit(wrong)
    pool.submit(done.set)
    assert done.wait(LONG_S)
    pool.close()


def test_a_short_last_request_waits_for_the_next_range_but_not_at_the_end() -> None:
    opened = Opened()
    ahead, file = opened.view.read_ahead, opened.open(b"big")
    assert ahead is not None
    # Frames of 1 MiB, eight to a pack: in 11 MiB from the start one whole run and three frames that others can join.
    requests, end = ahead.plan(file, 0, 11 * MIB, to_the_end=False)
    assert [len(numbers) for numbers in requests] == [8]
    assert end == 8 * MIB
    requests, end = ahead.plan(file, 0, 11 * MIB, to_the_end=True)
    assert [len(numbers) for numbers in requests] == [8, 3]
    assert end == 11 * MIB
    # A range that is one short request is not put off: somebody is about to want it.
    requests, end = ahead.plan(file, 8 * MIB, 11 * MIB, to_the_end=False)
    assert [len(numbers) for numbers in requests] == [3]
    opened.view.close()
