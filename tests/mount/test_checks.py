"""What stands in the way of a mount is told, with what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonne.errors import BadMountPoint, NoFuse
from tonne.mount import checks
from tonne.mount.checks import check_fuse, check_point, may_allow_other


def test_a_good_mount_point(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert check_point(tmp_path / "link") == (tmp_path / "real").resolve()


def test_bad_mount_points(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "broken").symlink_to("nowhere")
    for name, words in (
        ("missing", "does not exist"),
        ("broken", "does not exist"),
        ("file", "no folder"),
        ("file/x", "no folder"),
        ("full", "not empty"),
    ):
        with pytest.raises(BadMountPoint, match=words) as caught:
            check_point(tmp_path / name)
        assert caught.value.next
    with pytest.raises(BadMountPoint, match="mounted there already"):
        check_point(Path("/proc"))


def test_a_missing_device_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoFuse, match="not there") as caught:
        check_fuse(tmp_path / "fuse", uid=0)
    assert "--device /dev/fuse" in caught.value.next


def test_a_device_that_does_not_open_is_told(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "fuse")
    with pytest.raises(NoFuse, match="cannot be opened"):
        check_fuse(tmp_path / "fuse", uid=0)


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    with pytest.raises(NoFuse) as caught:
        check_fuse(uid=0)
    assert "pip install 'tonne[fuse]'" in caught.value.next
    assert "libfuse3-dev" in caught.value.next


def test_users_need_fusermount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fuse").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    check_fuse(tmp_path / "fuse", uid=0)
    with pytest.raises(NoFuse, match="fusermount3") as caught:
        check_fuse(tmp_path / "fuse", uid=1000)
    assert "apt install fuse3" in caught.value.next


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("user_allow_other\n", True),
        ("# comment\n  user_allow_other  \n", True),
        ("#user_allow_other\n", False),
        ("mount_max = 10\n", False),
        ("user_allow_other_things\n", False),
        ("", False),
    ],
)
def test_who_may_let_others_in(tmp_path: Path, text: str, allowed: bool) -> None:
    conf = tmp_path / "fuse.conf"
    conf.write_text(text)
    assert may_allow_other(conf, uid=1000) is allowed
    assert may_allow_other(conf, uid=0) is True
    assert may_allow_other(tmp_path / "missing", uid=1000) is False
