"""kill -9 and Ctrl-C at any moment of a pull: the next one goes on, and nothing of the first is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.image.cuts import cut
from tests.image.sketch import Made, make, put, write_layout
from tests.image.test_pull import check_equal, pulled
from tonne.source.memory import Asked, MemoryRepository

SMALL = "\n".join(f"file s/{number:04} seed:s{number}:{100 + number * 7}" for number in range(1500))
TREE = f"""
    level 0
    frame 262144
    lanes 4
    dir s
    file large1 seed:1:60000000
    file large2 seed:2:30000000
    {SMALL}
"""
COMMAND = [sys.executable, "-m", "tonne", "--no-cache", "-q", "--json", "pull"]


@pytest.fixture(scope="module")
def made() -> Made:
    return make(TREE)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, made: Made) -> str:
    folder = tmp_path_factory.mktemp("killed") / "layout"
    write_layout(folder, {"v1": made})
    return f"oci:{folder}:v1"


def inode_of(path: Path) -> int:
    """0 when it is not there."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def started(reference: str, target: Path) -> subprocess.Popen[bytes]:
    """A pull that is inside its work: it has written its state."""
    state = target / ".tonne-pull" / "pull.json"
    before = inode_of(state)
    process = subprocess.Popen([*COMMAND, reference, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    limit_s = time.monotonic() + 30
    while process.poll() is None and inode_of(state) in (0, before):
        assert time.monotonic() < limit_s
        time.sleep(0.002)
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_pull_goes_on(made: Made, reference: str, tmp_path: Path, number: signal.Signals) -> None:
    target = tmp_path / "target"
    rolls = random.Random(int(number))
    cut(3, number, lambda: started(reference, target), lambda: shutil.rmtree(target), rolls)
    subprocess.run([*COMMAND, reference, str(target)], check=True, stdout=subprocess.DEVNULL, timeout=60)
    check_equal(made, target)
    subprocess.run([*COMMAND[:-1], "verify", reference, str(target)], check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_what_was_written_is_not_fetched_again(made: Made, tmp_path: Path) -> None:
    """In this process, so that the reads can be counted."""
    repository = MemoryRepository()
    put(repository, made)

    def interrupt(asked: Asked) -> None:
        if len(repository.asked) == 150:
            os.kill(os.getpid(), signal.SIGINT)

    repository.on_call = interrupt
    with pytest.raises(KeyboardInterrupt):
        pulled(repository, tmp_path)
    repository.on_call = None
    report = pulled(repository, tmp_path)
    check_equal(made, tmp_path)
    assert report.kept_bytes + report.found_bytes + report.made_bytes == report.content_bytes
    assert report.kept_bytes + report.found_bytes > 0
