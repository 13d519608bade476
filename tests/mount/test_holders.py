"""Who holds a mount, found in a /proc that is made by hand, and in the real one."""

from __future__ import annotations

import os
from pathlib import Path

from tonne.mount.holders import Holder, holders
from tonne.mount.table import Mounted

MOUNT = Mounted(77, "0:47", b"/mnt/model", "fuse.tonne", "ref")


def process(proc: Path, pid: int, command: str = "cat\0file\0") -> Path:
    folder = proc / str(pid)
    for name in ("fd", "fdinfo"):
        (folder / name).mkdir(parents=True)
    (folder / "cmdline").write_text(command)
    (folder / "comm").write_text("kernel-name\n")
    (folder / "maps").write_text("7f00-7f01 r--p 00000000 fe:00 12 /usr/lib/libc.so\n7f02-7f03 rw-p 00000000 00:00 0\n")
    for name, target in (("cwd", "/"), ("root", "/"), ("exe", "/usr/bin/cat")):
        (folder / name).symlink_to(target)
    return folder


def test_each_way_to_hold_it(tmp_path: Path) -> None:
    process(tmp_path, 1)
    in_folder = process(tmp_path, 2, "bash\0")
    (in_folder / "cwd").unlink()
    (in_folder / "cwd").symlink_to("/mnt/model/a")
    beside = process(tmp_path, 3)
    (beside / "cwd").unlink()
    (beside / "cwd").symlink_to("/mnt/model-2")
    opened = process(tmp_path, 4)
    (opened / "fdinfo" / "5").write_text("pos:\t0\nflags:\t0100000\nmnt_id:\t77\nino:\t3\n")
    (opened / "fd" / "5").symlink_to("/mnt/model/weights")
    other = process(tmp_path, 5)
    (other / "fdinfo" / "5").write_text("pos:\t0\nflags:\t0100000\nmnt_id:\t777\nino:\t3\n")
    mapped = process(tmp_path, 6, "")
    (mapped / "maps").write_text("7f00-7f01 r--s 00000000 00:2f 12 /seen from another root/x\n")
    top = process(tmp_path, 10)
    (top / "cwd").unlink()
    (top / "cwd").symlink_to("/mnt/model")
    (tmp_path / "self").mkdir()
    (tmp_path / "7").mkdir()  # has ended meanwhile
    assert holders(MOUNT, tmp_path) == [
        Holder(2, "bash", "working folder /mnt/model/a"),
        Holder(4, "cat file", "open file /mnt/model/weights"),
        Holder(6, "kernel-name", "mapped file /seen from another root/x"),
        Holder(10, "cat file", "working folder /mnt/model"),
    ]


def test_our_own_process_is_left_out(tmp_path: Path) -> None:
    here = process(tmp_path, os.getpid())
    (here / "cwd").unlink()
    (here / "cwd").symlink_to("/mnt/model")
    assert holders(MOUNT, tmp_path) == []


def test_the_real_proc_is_understood() -> None:
    nobody = Mounted(999_999_999, "4095:1048575", b"/no/such/mount", "fuse.tonne", "ref")
    assert holders(nobody) == []
