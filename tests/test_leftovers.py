"""The audit that every test ends with sees what it should see."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.leftovers import MARK, Before, left_behind


@pytest.fixture
def before(tmp_path: Path) -> Before:
    return Before.now(tmp_path)


def test_nothing(before: Before, tmp_path: Path) -> None:
    assert not left_behind(os.environ[MARK], before, tmp_path)


def test_a_child(before: Before, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={}) as child:
        leftovers = left_behind(os.environ[MARK], before, tmp_path, grace_s=0)
        child.kill()
    assert leftovers.processes == {child.pid: "sleep 60"}


def test_a_daemon_whose_parent_ended(before: Before, tmp_path: Path) -> None:
    subprocess.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 &"], check=True)
    leftovers = left_behind(os.environ[MARK], before, tmp_path, grace_s=0)
    assert len(leftovers.processes) == 1
    leftovers.remove()
    assert not left_behind(os.environ[MARK], before, tmp_path)


def test_what_ends_by_itself_is_waited_for(before: Before, tmp_path: Path) -> None:
    subprocess.run(["sh", "-c", "sleep 0.3 >/dev/null 2>&1 &"], check=True)
    assert not left_behind(os.environ[MARK], before, tmp_path)


def test_a_mount(before: Before, tmp_path: Path) -> None:
    point = tmp_path / "a b"
    point.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", point], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user may not mount")
    leftovers = left_behind(os.environ[MARK], before, tmp_path, grace_s=0)
    assert leftovers.mounts == [str(point)]
    leftovers.remove()
    assert not os.path.ismount(point)
