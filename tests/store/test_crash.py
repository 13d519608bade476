"""The protocol of `HeldBlob` against a model: processes that interleave, fail, are killed, and lose power.

What must hold at every step: whatever a process says it holds is there and right.  And what must not be lost: what was
written is held until it is taken away, what was synced is held after a power failure.
"""

from __future__ import annotations

import copy
import errno
import random
import threading
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import tonne.store.log
from tests.store.memorydisk import Killed, MemoryDisk, MemoryFiles
from tonne.errors import Locked
from tonne.model import Digest
from tonne.model.frame import STRIPE_BYTES
from tonne.store.held import HeldBlob
from tonne.store.ranges import ByteRanges
from tonne.store.records import LogKey

DIGEST = Digest.of(b"the blob")
FOLDER = "/cache/blobs/one"
# (offset, length): neighbours, some across the border of two stripes, none in common.
FRAMES = [
    (0, 700),
    (700, 1500),
    (5000, 10),
    (STRIPE_BYTES - 300, 900),
    (STRIPE_BYTES + 600, 40),
    (2 * STRIPE_BYTES, 2000),
    (2 * STRIPE_BYTES + 9000, 1),
]
PROCESSES = 2

frames = st.integers(0, len(FRAMES) - 1)
processes = st.integers(0, PROCESSES - 1)


def content(frame: int) -> bytes:
    return random.Random(frame).randbytes(FRAMES[frame][1])


class VirtualClock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> None:
        self.at_s += seconds


class Process:
    def __init__(self, files: MemoryFiles, clock: VirtualClock) -> None:
        self.disk = MemoryDisk(files)
        self.held = HeldBlob(self.disk, FOLDER, LogKey.of(DIGEST, f"boot {files.boot}"), clock)
        self.unsynced: set[int] = set()  # written by it and to be synced by it
        self.forgot: set[int] = set()  # by it alone, since it could not record that


Act = tuple[str, int]  # what to do, and with which frame or stripe
_KINDS = ["write"] * 6 + ["sync"] * 3 + ["punch"] * 2 + ["drop", "compact", "forget", "reopen"]
acts = st.tuples(st.sampled_from(_KINDS), frames)


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.files = MemoryFiles()
        self.clock = VirtualClock()
        self.processes = [Process(self.files, self.clock) for _ in range(PROCESSES)]
        self.present: set[int] = set()  # must be held by all
        self.power_failures = 0
        self.durable: set[int] = set()  # must be held after a power failure

    # --- what the model knows ---------------------------------------------------------------------------------------

    def touched(self, act: Act) -> set[int]:
        kind, number = act
        if kind in ("write", "drop"):
            return {number}
        if kind == "punch":
            start, end = number % 3 * STRIPE_BYTES, (number % 3 + 1) * STRIPE_BYTES
            return {n for n, (offset, length) in enumerate(FRAMES) if offset < end and offset + length > start}
        if kind == "forget":
            return set(range(len(FRAMES)))
        return set()

    def unsure(self, lost: set[int]) -> None:
        self.present -= lost
        self.durable -= lost
        for process in self.processes:
            process.unsynced -= lost

    def do(self, number: int, act: Act) -> None:
        """Let a process do something; the model follows.  Errors leave what the act concerns unsure."""
        process = self.processes[number]
        kind, subject = act
        touched = self.touched(act)
        try:
            if kind == "write":
                if process.held.write(FRAMES[subject][0], memoryview(content(subject))):
                    process.unsynced.add(subject)  # else it was there already, for another to sync
                self.present.add(subject)
                process.forgot.discard(subject)
                return
            if kind == "sync":
                syncing = set(process.unsynced)
                process.held.sync()
                # What was taken away, or written again by another, while it was synced is not in `unsynced` any more.
                self.durable |= syncing & process.unsynced & self.present
                process.unsynced -= syncing
                return
            # What is on its way out may be gone at any moment of the call.
            self.unsure(touched)
            if kind == "drop":
                process.held.drop(*FRAMES[subject])
            elif kind == "punch":
                process.held.punch(ByteRanges.one(subject % 3 * STRIPE_BYTES, STRIPE_BYTES))
            elif kind == "compact":
                process.held.compact()
            elif kind == "forget":
                process.held.forget()
            elif kind == "reopen":
                process.held.close()
                assert process.disk.open_count() == 0
                self.restart(number)
        except (OSError, Locked):
            self.unsure(touched)
            if kind == "drop":
                process.forgot |= touched
            if kind == "sync":
                process.forgot |= set(range(len(FRAMES)))
                # The disk failed: what was to be synced, what others left included, may be claimed no more.
                self.unsure(set(range(len(FRAMES))))

    def restart(self, number: int) -> None:
        self.processes[number] = Process(self.files, self.clock)

    # --- what happens -----------------------------------------------------------------------------------------------

    @rule(number=processes, act=acts)
    def act(self, number: int, act: Act) -> None:
        self.do(number, act)

    @rule(number=processes, act=acts, at=st.integers(0, 25), meanwhile=acts, by=processes)
    def act_while_another_acts(self, number: int, act: Act, at: int, meanwhile: Act, by: int) -> None:
        if by == number:
            return
        self.at_call(number, at, lambda: self.do(by, meanwhile))
        # What both are about is gone, or is there: the model cannot tell.
        self.do(number, act)
        self.quiet()
        both = self.touched(act) & self.touched(meanwhile)
        if act[0] == "write" or meanwhile[0] == "write":
            self.unsure(both)

    @rule(number=processes, act=acts, at=st.integers(0, 25))
    def kill(self, number: int, act: Act, at: int) -> None:
        process = self.processes[number]

        def die() -> None:
            process.disk.kill()

        touched = self.touched(act)
        self.at_call(number, at, die)
        try:
            self.do(number, act)
        except Killed:
            self.unsure(touched)
        process.disk.kill()
        self.restart(number)

    @rule(number=processes, act=acts, at=st.integers(0, 25), code=st.sampled_from([errno.ENOSPC, errno.EIO]))
    def fail(self, number: int, act: Act, at: int, code: int) -> None:
        def fail() -> None:
            raise OSError(code, "made to fail")

        self.at_call(number, at, fail)
        self.do(number, act)
        self.quiet()

    @rule(number=processes, act=acts, at=st.integers(0, 25))
    def lose_power_in_the_middle(self, number: int, act: Act, at: int) -> None:
        """Power fails in copies of the world; this one goes on."""
        durable = self.durable - self.touched(act)
        self.at_call(number, at, lambda: self.check_power_failure(durable))
        self.do(number, act)

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        for process in self.processes:
            process.disk.kill()
        self.files.lose_power(random.Random(seed))
        self.present = set(self.durable)
        for n in range(PROCESSES):
            self.restart(n)

    def at_call(self, number: int, at: int, then: Callable[[], None]) -> None:
        left = at

        def before(name: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                then()

        self.processes[number].disk.before = before

    def quiet(self) -> None:
        for process in self.processes:
            process.disk.before = None

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def what_is_held_is_right_and_what_must_be_is_held(self) -> None:
        if not hasattr(self, "processes"):
            return
        self.quiet()
        self.check_power_failure(self.durable)
        for number, process in enumerate(self.processes):
            self.check(process, self.present - process.forgot, f"process {number}")

    def check(self, process: Process, must: set[int], who: str) -> None:
        for frame, (offset, length) in enumerate(FRAMES):
            out = bytearray(length)
            if process.held.read(offset, memoryview(out)):
                assert bytes(out) == content(frame), f"{who} claims wrong bytes of frame {frame}"
            else:
                assert frame not in must, f"{who} has lost frame {frame}"

    def check_power_failure(self, durable: set[int]) -> None:
        self.power_failures += 2
        for chance in (None, random.Random(self.power_failures)):
            files = copy.deepcopy(self.files)
            files.lose_power(chance)
            process = Process(files, self.clock)
            self.check(process, durable, "after a power failure, a process")
            # What it writes next must not make a lie of what it did not believe.
            process.held.write(FRAMES[-1][0], memoryview(content(len(FRAMES) - 1)))
            again = Process(files, self.clock)
            self.check(again, durable, "after a power failure, the next process")


@pytest.fixture(autouse=True)
def compacts_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tonne.store.log, "_COMPACT_BYTES_MIN", 0)
    monkeypatch.setattr(tonne.store.log, "_COMPACT_FACTOR", 0)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],  # to explain takes longer than a test may
)
