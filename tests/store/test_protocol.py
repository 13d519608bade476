"""Races and crashes of `HeldBlob` that chance seldom finds, one by one."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import random
from collections.abc import Sequence

import pytest

import tonne.store.log
from tests.store.memorydisk import MemoryFiles
from tests.store.test_crash import FOLDER, FRAMES, Process, VirtualClock, content
from tonne.errors import Locked
from tonne.model.frame import STRIPE_BYTES
from tonne.store.held import LOCK_WAIT_S
from tonne.store.ranges import ByteRanges


class World:
    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.clock = VirtualClock()

    def process(self) -> Process:
        return Process(self.files, self.clock)

    def after_power_failures(self, count: int) -> list[Process]:
        found = []
        for seed in (None, *range(count)):
            files = copy.deepcopy(self.files)
            files.lose_power(None if seed is None else random.Random(seed))
            found.append(Process(files, self.clock))
        return found


@pytest.fixture
def world() -> World:
    return World()


def write(process: Process, *frames: int) -> None:
    for frame in frames:
        process.held.write(FRAMES[frame][0], memoryview(content(frame)))


def held(process: Process) -> set[int]:
    """The frames that a process holds; all it claims is right."""
    found = set()
    for frame, (offset, length) in enumerate(FRAMES):
        out = bytearray(length)
        if process.held.read(offset, memoryview(out)):
            assert bytes(out) == content(frame)
            found.add(frame)
    return found


def punch(process: Process, stripe: int) -> None:
    process.held.punch(ByteRanges.one(stripe * STRIPE_BYTES, STRIPE_BYTES))


def at(process: Process, call: str, then: object) -> None:
    """Once, before the process's next call of that name."""

    def before(name: str) -> None:
        if name == call:
            process.disk.before = None
            assert callable(then)
            then()

    process.disk.before = before


def test_what_one_writes_the_other_reads(world: World) -> None:
    one, two = world.process(), world.process()
    assert held(two) == set()
    write(one, 0, 4)
    assert held(two) == {0, 4}
    two.held.drop(*FRAMES[0])
    assert held(one) == {4}


def test_asking_makes_no_files(world: World) -> None:
    process = world.process()
    assert held(process) == set()
    process.held.drop(0, 10)
    process.held.sync()
    punch(process, 0)
    assert world.files.names == {}


@pytest.mark.parametrize("compacts", [False, True])
def test_a_sync_does_not_speak_of_bytes_that_came_while_it_ran(
    world: World, compacts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped, evicted and written again by others between our fdatasync and our record."""
    monkeypatch.setattr(tonne.store.log, "_COMPACT_BYTES_MIN", 0)
    monkeypatch.setattr(tonne.store.log, "_COMPACT_FACTOR", 0)
    one, two = world.process(), world.process()
    write(one, 5)
    held(two)

    def others() -> None:
        punch(two, 2)
        write(two, 5)
        if compacts:
            assert two.held.compact()

    # The lock is taken after the fdatasync.
    at(one, "lock", others)
    one.held.sync()
    assert held(one) == {5}
    for after in world.after_power_failures(20):
        held(after)


def test_a_sync_after_a_compaction_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tonne.store.log, "_COMPACT_BYTES_MIN", 0)
    monkeypatch.setattr(tonne.store.log, "_COMPACT_FACTOR", 0)
    one = world.process()
    write(one, 0)
    one.held.sync()
    assert one.held.compact()
    write(one, 2)
    one.held.sync()
    for after in world.after_power_failures(20):
        assert held(after) == {0, 2}


def test_a_sync_under_which_another_compacts_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the new log does not show is whether the bytes that were synced are those that it speaks of."""
    monkeypatch.setattr(tonne.store.log, "_COMPACT_BYTES_MIN", 0)
    monkeypatch.setattr(tonne.store.log, "_COMPACT_FACTOR", 0)
    one, two = world.process(), world.process()
    write(one, 0)
    held(two)
    at(one, "fdatasync", two.held.compact)
    one.held.sync()
    assert one.held.unsynced_bytes() == 0
    for after in world.after_power_failures(20):
        assert held(after) == {0}


def test_a_forgotten_blob_does_not_come_back_around_a_new_one(world: World) -> None:
    one = world.process()
    write(one, 0, 1, 2, 3)
    one.held.sync()
    one.held.forget()
    assert world.files.names == {}
    write(one, 4)
    for after in world.after_power_failures(300):
        assert held(after) <= {0, 1, 2, 3, 4}
        write(after, 6)
        held(after)


def test_a_blob_forgotten_by_another_is_begun_anew(world: World) -> None:
    one, two = world.process(), world.process()
    write(one, 0, 3)
    assert held(two) == {0, 3}
    two.held.forget()
    assert held(one) == set()
    write(one, 4)
    assert held(one) == held(two) == held(world.process()) == {4}


def test_a_sync_of_a_blob_that_another_forgot_is_no_error(world: World) -> None:
    one, two = world.process(), world.process()
    write(one, 0, 3)
    two.held.forget()
    one.held.sync()
    assert one.held.unsynced_bytes() == 0
    assert held(one) == set()
    write(two, 4)
    one.held.sync()
    assert held(one) == {4}


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("is_writing", [False, True])
def test_a_blob_forgotten_and_begun_anew_while_it_is_opened(world: World, call: int, is_writing: bool) -> None:
    """The old data must not be read by the new log."""
    one, two = world.process(), world.process()
    write(two, 0, 5)
    left = call

    def before(name: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            two.held.forget()
            write(two, 3, 5, 6)

    one.disk.before = before
    if is_writing:
        write(one, 4)
    held(one)
    assert held(one) - {4} == held(two) - {4} == {3, 5, 6}


@pytest.mark.parametrize("call", range(12))
def test_a_blob_begun_anew_while_it_is_forgotten(world: World, call: int) -> None:
    one, two, three = world.process(), world.process(), world.process()
    write(two, 0, 5)
    left = call

    def before(name: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            # Mostly it cannot have the lock, but it opens what is there, and makes what is not.
            with contextlib.suppress(Locked):
                write(one, 3)
            held(three)

    two.disk.before = before
    with contextlib.suppress(OSError):
        two.held.forget()
    if left >= 0:
        return
    write(one, 3, 5)  # 3 is a hole in the old data
    assert held(three) == held(one) == held(two)
    assert held(three) >= {3, 5}


def test_data_removed_by_hand(world: World) -> None:
    one = world.process()
    write(one, 0, 3)
    world.files.unlink(f"{FOLDER}/data")
    write(one, 4)
    assert held(one) == held(world.process())
    assert 4 in held(one)


def test_eviction_under_a_reader(world: World) -> None:
    one, two = world.process(), world.process()
    write(one, 5)
    out = bytearray(FRAMES[5][1])
    at(one, "preadv", lambda: punch(two, 2))
    assert not one.held.read(FRAMES[5][0], memoryview(out))
    assert held(one) == set()


def test_eviction_and_return_under_a_reader(world: World) -> None:
    """The bytes were a hole when they were read, and are there again when the log is looked at."""
    one, two = world.process(), world.process()
    write(one, 5)
    out = bytearray(FRAMES[5][1])
    real = one.disk.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        one.disk.preadv = real  # type: ignore[method-assign]
        punch(two, 2)
        count = real(descriptor, buffers, offset)
        write(two, 5)
        return count

    one.disk.preadv = preadv  # type: ignore[method-assign]
    assert one.held.read(FRAMES[5][0], memoryview(out))
    assert out == content(5)


def test_eviction_frees_blocks_and_says_how_many(world: World) -> None:
    one = world.process()
    write(one, 5, 0)
    assert one.held.punch(ByteRanges.one(2 * STRIPE_BYTES, STRIPE_BYTES)) == 4 * 512
    assert len(world.files.names[f"{FOLDER}/data"].blocks) == 2
    assert held(one) == {0}


def test_a_lock_that_is_not_given_back_is_an_error_in_time(world: World) -> None:
    one, two = world.process(), world.process()
    write(one, 0)

    def others() -> None:
        before_s = world.clock.now_s()
        with pytest.raises(Locked):
            write(two, 4)
        assert LOCK_WAIT_S <= world.clock.now_s() - before_s < LOCK_WAIT_S + 1

    # While one holds the lock.
    at(one, "pwrite", others)
    write(one, 3)
    assert held(two) == {0, 3}
    write(two, 4)
    assert held(one) == {0, 3, 4}


def test_a_failed_sync_gives_the_claim_up(world: World) -> None:
    one = world.process()
    write(one, 0)
    one.held.sync()
    write(one, 4)

    def fail() -> None:
        raise OSError(errno.EIO, "the disk")

    at(one, "fdatasync", fail)
    with pytest.raises(OSError, match="the disk"):
        one.held.sync()
    assert held(one) == held(world.process()) == {0}
    write(one, 4)
    one.held.sync()
    assert held(one) == {0, 4}


def test_what_a_killed_process_wrote_becomes_durable_with_the_next(world: World) -> None:
    one = world.process()
    write(one, 0, 3)
    one.disk.kill()
    two = world.process()
    assert held(two) == {0, 3}
    two.held.sync()
    for after in world.after_power_failures(5):
        assert held(after) == {0, 3}


def test_a_short_data_file_is_not_believed(world: World) -> None:
    one = world.process()
    write(one, 0, 3, 5)
    data = world.files.names[f"{FOLDER}/data"]
    data.size = STRIPE_BYTES
    two = world.process()
    assert held(two) == {0}
    write(two, 6)  # the file grows beyond what was cut
    assert held(world.process()) == {0, 6}


@pytest.mark.parametrize("cut", [1, 31])
def test_a_torn_record_is_written_over(world: World, cut: int) -> None:
    one = world.process()
    write(one, 0, 3)
    log = world.files.names[f"{FOLDER}/records"]
    log.size -= cut
    two = world.process()
    assert held(two) == {0}
    write(two, 4)
    assert held(world.process()) == {0, 4}


def test_garbage_for_records(world: World) -> None:
    one = world.process()
    write(one, 0, 3)
    log = world.files.names[f"{FOLDER}/records"]
    log.blocks[0] = random.Random(1).randbytes(512)
    log.size = 500
    assert held(world.process()) == set()
    write(world.process(), 4)
    assert held(world.process()) == {4}


def test_replaced_files_are_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tonne.store.log, "_COMPACT_BYTES_MIN", 0)
    monkeypatch.setattr(tonne.store.log, "_COMPACT_FACTOR", 0)
    one, two = world.process(), world.process()
    write(one, 0)
    for _ in range(5):
        assert one.held.compact()
        assert held(two) == {0}
    one.held.close_retired()
    two.held.close_retired()
    assert one.disk.open_count() == two.disk.open_count() == 3
    one.held.close()
    assert one.disk.open_count() == 0


def test_a_folder_that_cannot_be_written_is_read(world: World) -> None:
    one = world.process()
    write(one, 0)
    two = world.process()
    real_open = two.disk.open

    def read_only(path: str, flags: int) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, "read-only", path)
        return real_open(path, flags)

    two.disk.open = read_only  # type: ignore[method-assign]
    assert held(two) == {0}
    two.held.sync()
    two.held.drop(*FRAMES[0])
    assert held(two) == set()
    assert held(one) == {0}
