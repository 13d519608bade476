"""Unmounting where something does not answer: the real thing is in tests/system."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tonne.errors import LocalFailure
from tonne.mount import table, unmount
from tonne.mount.table import Mounted, mount_at


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    """Stands in the table of mounts, and is none."""
    found = Mounted(1, "0:1", os.fsencode(tmp_path.resolve() / "point"), "fuse.tonne", "x")
    monkeypatch.setattr(table, "mounts", lambda: [found])
    return found


def test_a_helper_that_does_not_end_is_given_up(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "fusermount3"
    program.write_text("#!/bin/sh\ntrap '' TERM\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(unmount, "UNMOUNT_WAIT_S", 0.5)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    began_s = time.monotonic()
    with pytest.raises(LocalFailure, match="does not end") as caught:
        unmount.unmount(tmp_path / "point")
    assert "--lazy" in caught.value.next
    assert time.monotonic() - began_s < 30


def test_a_system_call_that_does_not_return_is_given_up(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unmount, "UNMOUNT_WAIT_S", 0.5)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(unmount, "_umount2", lambda point, flags: threading.Event().wait(5) + 0)
    began_s = time.monotonic()
    with pytest.raises(LocalFailure, match="does not end"):
        unmount.unmount(tmp_path / "point")
    assert time.monotonic() - began_s < 4


def test_a_mount_point_is_found_without_asking_the_mount(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mounted may hang for whoever looks at it."""
    looked: list[bytes] = []
    real = os.lstat

    def lstat(path: str | bytes, **options: int | None) -> os.stat_result:
        looked.append(os.fsencode(path))
        return real(path, **options)

    (tmp_path / "link").symlink_to(".")
    monkeypatch.setattr("os.lstat", lstat)
    for point in (
        tmp_path / "point",
        tmp_path / "link" / "point",
        f"{tmp_path}/point/",
        f"{tmp_path}/link/../{tmp_path.name}/point",
    ):
        assert mount_at(point) == mounted, point
    assert mounted.point not in looked
