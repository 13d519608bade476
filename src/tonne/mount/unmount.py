"""Taking a mount away, and waiting until its process has ended."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tonne.durable import local_error
from tonne.errors import LocalFailure, MountBusy, NoFuse, NotMounted
from tonne.mount.children import end, ended_within
from tonne.mount.holders import holders
from tonne.mount.table import Mounted, mount_at
from tonne.quoting import shown

_MNT_DETACH = 2  # linux/mount.h
ANSWER_WAIT_S = 2.0  # for the mount process to say who it is
END_WAIT_S = 30.0  # for it to write its records and end
UNMOUNT_WAIT_S = 30.0  # for the unmount itself: the kernel may wait for a mount that does not answer
_STATE_NAME = "user.tonne.mount"  # of tonne.mount.fuse, which cannot be imported where pyfuse3 is not installed
_SHOWN_MAX = 8  # processes named in a message
_SAID_BYTES_MAX = 4096  # of what fusermount3 says

T = TypeVar("T")


def unmount(point: Path, lazy: bool = False) -> int | None:
    """Unmount the tonne mount at `point`; returns the process that served it, if it still lived.

    `NotMounted` when there is none; `MountBusy` with the processes that use it, unless `lazy`: then it vanishes at
    once, and they keep what they have open.  A mount whose process died is cleared away.
    """
    mounted = mount_at(point)
    if mounted is None or not mounted.is_ours:
        why = "nothing is mounted there" if mounted is None else f"it is a mount of {mounted.kind}"
        raise NotMounted("there is no tonne mount", where=str(point), why=why)
    pid = serving(mounted)
    process = _handle_of(pid) if pid is not None else None
    try:
        _unmount(mounted, lazy, pid)
        # With `lazy` the process lives as long as the files that are open.
        if process is not None and not lazy:
            select.select([process], [], [], END_WAIT_S)
    finally:
        if process is not None:
            os.close(process)
    return pid


def serving(mounted: Mounted) -> int | None:
    """The process that serves a mount, by its own word; None when it does not answer."""

    def ask() -> int | None:
        try:
            return int(json.loads(os.getxattr(mounted.point, _STATE_NAME))["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    return _in_time(ask, ANSWER_WAIT_S)


def _in_time(work: Callable[[], T], wait_s: float) -> T | None:
    """What `work` returns; None when it takes longer: it is left in a thread, as a call that hangs cannot be ended."""
    done: list[T] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(wait_s)
    return done[0] if done else None


def _handle_of(pid: int) -> int | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        # The number may be of another namespace, and mean another process here.
        return os.pidfd_open(pid) if b"mount" in command else None
    except OSError:
        return None


def _unmount(mounted: Mounted, lazy: bool, pid: int | None) -> None:
    point = shown(mounted.point)
    failed = _as_root(mounted, lazy) if os.geteuid() == 0 else _as_user(mounted, lazy)
    if failed is None:
        raise LocalFailure(
            "unmounting does not end",
            where=point,
            why=f"within {UNMOUNT_WAIT_S:g} s",
            todo=f"end what serves it: kill -9 {pid or 'PID'}" if lazy else f"tonne umount --lazy {point}",
        )
    if not failed:
        return
    if "busy" in failed:
        raise _busy(mounted)
    raise LocalFailure("cannot unmount", where=point, why=failed, todo="try it as the user who mounted it")


# Both return what stands against it, empty when it is done, and None when there is no answer in time.


def _as_root(mounted: Mounted, lazy: bool) -> str | None:
    number = _in_time(lambda: _umount2(mounted.point, _MNT_DETACH if lazy else 0), UNMOUNT_WAIT_S)
    if number is None:
        return None
    return "busy" if number == errno.EBUSY else os.strerror(number) if number else ""


def _umount2(point: bytes, flags: int) -> int:
    """umount2(2); the number of the error, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return 0 if libc.umount2(ctypes.c_char_p(point), flags) == 0 else ctypes.get_errno()


def _as_user(mounted: Mounted, lazy: bool) -> str | None:
    program = shutil.which("fusermount3")
    if program is None:
        raise NoFuse("users other than root unmount through fusermount3, which is not there", todo="apt install fuse3")
    words = [program, "-u", *(["-z"] if lazy else []), "--", os.fsdecode(mounted.point)]
    with tempfile.TemporaryFile() as said:
        try:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        except OSError as error:
            raise local_error(error, "fusermount3 cannot be run", program, reading=True) from error
        if not ended_within(child, UNMOUNT_WAIT_S):
            end(child)
            return None
        said.seek(0)
        text = said.read(_SAID_BYTES_MAX).decode("utf-8", "replace").strip().lower()
    return "" if child.returncode == 0 else text or f"status {child.returncode}"


def _busy(mounted: Mounted) -> MountBusy:
    found = _in_time(lambda: holders(mounted), UNMOUNT_WAIT_S) or []
    if not found:
        why = "none of them can be seen by this user or from this container"
    else:
        first = [f"{holder.pid} ({holder.command}: {holder.uses})" for holder in found[:_SHOWN_MAX]]
        more = f", and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
        why = ", ".join(first) + more
    return MountBusy(
        "processes use the mount",
        where=shown(mounted.point),
        why=why,
        pids=" ".join(str(holder.pid) for holder in found),
    )
