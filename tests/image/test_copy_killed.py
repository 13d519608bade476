"""kill -9 and Ctrl-C at any moment of a copy to a real registry and back to a layout."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.image.cuts import cut
from tests.image.sketch import Made, make, write_layout
from tonne.testing.processes import DebianRegistry

TREE = """
    level 0
    lanes 3
    file large seed:1:90000000
    file small text:one
"""


@pytest.fixture(scope="module")
def made() -> Made:
    return make(TREE)


def command(cache: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "tonne", "--cache", str(cache), "-q", "--json", *words]


def locked(folder: Path, pid: int) -> bool:
    """Whether the process holds a journal, so that it is inside its work; looked up, since trying would disturb it."""
    try:
        inodes = {str(path.stat().st_ino) for path in folder.glob("*.lock")}
    except FileNotFoundError:  # done and removed meanwhile
        return False
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[4] == str(pid) and words[5].rpartition(":")[2] in inodes:
            return True
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("where", ["registry", "layout"])
def test_a_killed_copy_goes_on(
    made: Made,
    tmp_path: Path,
    docker_registry: Callable[..., DebianRegistry],
    number: signal.Signals,
    where: str,
) -> None:
    write_layout(tmp_path / "source", {"v1": made})
    source, cache = f"oci:{tmp_path}/source:v1", tmp_path / "cache"
    folders = [tmp_path / "target0"]
    registry = docker_registry().address
    if where == "layout":
        # Layouts on one disk are linked; so this one comes from a registry.
        first = f"{registry}/a/b:v1"
        subprocess.run(command(cache, "cp", source, first), check=True, stdout=subprocess.DEVNULL, timeout=120)
        source = first

    def target() -> str:
        return f"{registry}/a/{folders[-1].name}:v2" if where == "registry" else f"oci:{folders[-1]}:v2"

    def start() -> subprocess.Popen[bytes]:
        words = command(cache, "cp", source, target())
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        limit_s = time.monotonic() + 30
        while process.poll() is None and not locked(cache / "copy", process.pid):
            assert time.monotonic() < limit_s
            time.sleep(0.002)
        return process

    def anew() -> None:
        """Elsewhere, where nothing is."""
        folders.append(tmp_path / f"target{len(folders)}")

    cut(2, number, start, anew, random.Random(f"{number} {where}"))
    done = subprocess.run(command(cache, "cp", source, target()), check=True, capture_output=True, timeout=120)
    assert json.loads(done.stdout)["digest"] == str(made.document.digest)
    assert not (cache / "copy").exists()
    done = subprocess.run(command(cache, "verify", "--packs", target()), check=True, capture_output=True, timeout=120)
    assert json.loads(done.stdout)["good"] is True
    if where == "layout":
        left = [path.name for path in folders[-1].rglob("*") if path.is_file()]
        assert set(left) <= {digest.hex for digest in [*made.blobs, made.document.digest]} | {
            "oci-layout", "index.json", "lock", ".lock", ".tonne-lock",
        }  # fmt: skip
