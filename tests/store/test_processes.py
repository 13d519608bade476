"""Several processes and threads on one store, some of them killed."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.store import hammer
from tonne.settings import CacheSettings
from tonne.store import Store
from tonne.testing.disk import FaultyDisk

SECONDS = 4.0


def start(folder: Path, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.hammer", str(folder), str(seed), str(SECONDS)]
    root = Path(__file__).parent.parent.parent
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)


def test_no_reader_sees_wrong_bytes(tmp_path: Path) -> None:
    chance = random.Random(5)
    lasting = [start(tmp_path, seed) for seed in range(2)]
    killed = 0
    end_s = time.monotonic() + SECONDS
    with contextlib.ExitStack() as ended:
        for process in lasting:
            ended.enter_context(process)
        while time.monotonic() < end_s:
            victim = ended.enter_context(start(tmp_path, 100 + killed))
            time.sleep(0.4 + 0.3 * chance.random())  # it takes a while to start
            victim.kill()
            assert victim.wait() == -signal.SIGKILL
            killed += 1
        for process in lasting:
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 0, output
            assert int(output.split(" ")[0]) > 50
    assert killed > 3
    with Store.open(CacheSettings(folder=tmp_path)) as store:
        _, wrong = hammer.wrong_claims(store)
        assert wrong == 0
        # It works on, and nothing is claimed that is not there after the next start of the machine.
        for b, blob in enumerate(hammer.BLOBS):
            for f, (offset, _) in enumerate(hammer.FRAMES):
                store.blob(blob).write(offset, memoryview(hammer.CONTENTS[b, f]))
        count = len(hammer.CONTENTS)
        assert hammer.wrong_claims(store) == (count, 0)
    restarted = FaultyDisk()
    restarted.boot = "another"
    with Store.open(CacheSettings(folder=tmp_path), restarted) as store:
        assert hammer.wrong_claims(store) == (count, 0)
