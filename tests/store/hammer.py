"""One of several processes that use one store at once: ``python hammer.py FOLDER SEED SECONDS``.

Ends with status 0 when every read gave the right bytes; prints how many reads did.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

from tonne.clock import SystemClock
from tonne.errors import TonneError
from tonne.model import Blob, Digest
from tonne.model.frame import STRIPE_BYTES
from tonne.settings import CacheSettings
from tonne.store import Store

BLOBS = [Blob(Digest.of(b"%d" % n), 3 * STRIPE_BYTES) for n in range(3)]
# (offset, length), some across the border of stripes.
FRAMES = [(place * STRIPE_BYTES - 30_000 + n * 20_000, 20_000) for place in (1, 2) for n in range(6)]


def content(blob: int, frame: int) -> bytes:
    return random.Random(blob * 100 + frame).randbytes(FRAMES[frame][1])


CONTENTS = {(b, f): content(b, f) for b in range(len(BLOBS)) for f in range(len(FRAMES))}


class FastClock(SystemClock):
    """A wall clock on which what was used a moment ago was used long ago."""

    def wall_s(self) -> float:
        return time.time() * 100


def wrong_claims(store: Store) -> tuple[int, int]:
    """(frames that are held, frames of which the bytes are wrong)."""
    held = wrong = 0
    for b, blob in enumerate(BLOBS):
        for f, (offset, length) in enumerate(FRAMES):
            out = bytearray(length)
            if store.blob(blob).read(offset, memoryview(out)):
                held += 1
                wrong += bytes(out) != CONTENTS[b, f]
    return held, wrong


def work(store: Store, seed: int, end_s: float, results: list[tuple[int, int]]) -> None:
    chance = random.Random(seed)
    right = wrong = 0
    while time.monotonic() < end_s:
        b, f = chance.randrange(len(BLOBS)), chance.randrange(len(FRAMES))
        stored, (offset, length) = store.blob(BLOBS[b]), FRAMES[f]
        dice = chance.random()
        if dice < 0.45:
            out = bytearray(length)
            if stored.read(offset, memoryview(out)):
                if bytes(out) == CONTENTS[b, f]:
                    right += 1
                else:
                    wrong += 1
        elif dice < 0.9:
            stored.write(offset, memoryview(CONTENTS[b, f]))
        elif dice < 0.93:
            stored.drop(offset, length)
        elif dice < 0.96:
            stored.sync()
        else:
            store.evict(store.usage().total_bytes // 2 if dice < 0.99 else 0)
    results.append((right, wrong))


def main(folder: Path, seed: int, seconds: float) -> int:
    events: list[TonneError] = []
    results: list[tuple[int, int]] = []
    settings = CacheSettings(folder=folder, sync_bytes=100_000, sync_s=0.02)
    end_s = time.monotonic() + seconds
    with Store.open(settings, clock=FastClock(), on_event=events.append) as store:
        threads = [threading.Thread(target=work, args=(store, seed * 10 + n, end_s, results)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wrong = sum(result[1] for result in results)
    sys.stdout.write(
        f"{sum(result[0] for result in results)} right, {wrong} wrong, {[str(event) for event in events]}\n"
    )
    return 0 if len(results) == 2 and not wrong and not events else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
