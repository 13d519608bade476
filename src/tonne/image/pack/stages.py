"""The threads of one pass: reader, hashing and encoding, lanes, and the decider in the calling thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tonne.errors import Interrupted
from tonne.image.pack.base import Bases
from tonne.image.pack.decide import Decider
from tonne.image.pack.flow import Flow
from tonne.image.pack.journal import Journal, SentPack
from tonne.image.pack.lane import Lane
from tonne.image.pack.ledger import Ledger
from tonne.image.pack.options import LANES
from tonne.image.pack.reader import Reader
from tonne.image.pack.remake import Remaker
from tonne.image.pack.tree import ScannedTree
from tonne.model.frame import FRAME_BYTES
from tonne.source.seam import Sink, SinkFacts

SLOTS_FIRST = 8  # frames under way: a run of a lane
SLOTS_A_THREAD = 4  # more for each thread that encodes
THREADS_MAX = 16  # by themselves: 7 GB/s of weights, more than a reader gives
SLOTS_MAX = 32  # 128 MiB of content, and at most as much of encoded frames
SLOT_BYTES = 2 * FRAME_BYTES  # content, and what it is encoded to
UNDER_WAY_BYTES_MAX = 384 * 1024 * 1024  # slots and the lanes' chunks; a command has 512 MiB, for tables and code too
# A chunk that is cut in the middle costs its whole session at some registries (distribution 2.8), so after a failure
# those under way may arrive; who pressed Ctrl-C waits less.
GRACE_S = 5.0
GRACE_INTERRUPTED_S = 1.0
END_WAIT_S = 1.0  # after that, for threads that are told by deadlines that are over


def slots_for(threads: int, chunk_bytes: int) -> int:
    """How many frames may be under way beside a chunk for each lane."""
    room = (UNDER_WAY_BYTES_MAX - LANES * chunk_bytes) // SLOT_BYTES
    return max(SLOTS_FIRST, min(SLOTS_MAX, SLOTS_FIRST + SLOTS_A_THREAD * threads, room))


def thread_count(wanted: int | None) -> int:
    """Threads that hash and encode: as many as cores that we may use, within reason."""
    return wanted or min(THREADS_MAX, len(os.sched_getaffinity(0)))


class Pass:
    """One pass over the source.  `run` once, from one thread.

    `ended` False after `run` raised means that a thread still hangs in a call and may touch tables: they must stay
    open.
    """

    def __init__(
        self,
        tree: ScannedTree,
        ledger: Ledger,
        bases: Bases,
        sink: Sink,
        facts: SinkFacts,
        flow: Flow,
        journal: Journal,
        sent: Sequence[SentPack],
        pack_bytes: int,
        level: int,
        threads: int,
        advance: Callable[[int], None],
    ) -> None:
        self._tree = tree
        self._ledger = ledger
        self._bases = bases
        self._flow = flow
        self._level = level
        self._threads = threads
        self._advance = advance
        self.remaker = Remaker(tree, ledger, flow, level)
        self.ended = True
        self.new_content_bytes = 0

        def lane(number: int) -> Lane:
            mine = [pack for pack in sent if pack.lane == number]
            return Lane(number, sink, facts, flow, journal, self.remaker.stored, pack_bytes, mine, advance)

        self._lane = lane

    def run(self) -> list[SentPack]:
        """Pack everything; the new packs, those of earlier runs included.  Raises the first failure of any thread."""
        flow = self._flow
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="tonne-encode")
        lanes: list[Lane] = []
        reading: threading.Thread | None = None
        try:
            lanes = [self._lane(number) for number in range(LANES)]
            decider = Decider(self._ledger, self._bases, lanes, flow, pool, self._level, self._advance)
            reader = Reader(
                self._tree,
                self._ledger,
                self._bases.find_small,
                flow,
                pool,
                decider.take,
                self._advance,
            )
            reading = threading.Thread(target=_guard, args=(flow, reader, decider), name="tonne-read", daemon=True)
            reading.start()
            decider.run()
            for each in lanes:
                each.end()
            packs = [pack for each in lanes for pack in each.join()]
            reading.join()
            self.new_content_bytes = decider.new_content_bytes
            return packs
        except BaseException as error:
            flow.fail(error)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for each in lanes:
                each.end()
            threads = [each.thread for each in lanes] + ([reading] if reading is not None else [])
            stopped = isinstance(flow.failure, (KeyboardInterrupt, Interrupted))
            self.ended = all_ended(threads, GRACE_INTERRUPTED_S if stopped else GRACE_S)
            if not self.ended:
                flow.abort()
                self.ended = all_ended(threads, END_WAIT_S)


def _guard(flow: Flow, reader: Reader, decider: Decider) -> None:
    try:
        reader.run()
        decider.take(None)
    except BaseException as error:
        flow.fail(error)


def all_ended(threads: Sequence[threading.Thread], wait_s: float) -> bool:
    """Wait that long in all; whether every thread has ended."""
    end_s = time.monotonic() + wait_s
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
