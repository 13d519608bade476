"""Taking a mount away, and waiting until its process has ended."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import shutil
import subprocess
import threading
from pathlib import Path

from tonne.errors import LocalFailure, MountBusy, NoFuse, NotMounted
from tonne.mount.holders import holders
from tonne.mount.table import Mounted, mount_at

_MNT_DETACH = 2  # linux/mount.h
ANSWER_WAIT_S = 2.0  # for the mount process to say who it is
END_WAIT_S = 30.0  # for it to write its records and end
_STATE_NAME = "user.tonne.mount"  # of tonne.mount.fuse, which cannot be imported where pyfuse3 is not installed
_SHOWN_MAX = 8  # processes named in a message


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
        _unmount(mounted, lazy)
        # With `lazy` the process lives as long as the files that are open.
        if process is not None and not lazy:
            select.select([process], [], [], END_WAIT_S)
    finally:
        if process is not None:
            os.close(process)
    return pid


def serving(mounted: Mounted) -> int | None:
    """The process that serves a mount, by its own word; None when it does not answer."""
    answer: list[int] = []

    def ask() -> None:
        try:
            answer.append(int(json.loads(os.getxattr(mounted.point, _STATE_NAME))["pid"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass

    # In a thread, since a mount that hangs would hang whoever asks.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_WAIT_S)
    return answer[0] if answer else None


def _handle_of(pid: int) -> int | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        # The number may be of another namespace, and mean another process here.
        return os.pidfd_open(pid) if b"mount" in command else None
    except OSError:
        return None


def _unmount(mounted: Mounted, lazy: bool) -> None:
    if os.geteuid() == 0:
        failed = _as_root(mounted, lazy)
    else:
        failed = _as_user(mounted, lazy)
    if failed is None:
        return
    if "busy" in failed:
        raise _busy(mounted)
    raise LocalFailure(
        "cannot unmount", where=os.fsdecode(mounted.point), why=failed, todo="try it as the user who mounted it"
    )


def _as_root(mounted: Mounted, lazy: bool) -> str | None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(ctypes.c_char_p(mounted.point), _MNT_DETACH if lazy else 0) == 0:
        return None
    number = ctypes.get_errno()
    return "busy" if number == errno.EBUSY else os.strerror(number)


def _as_user(mounted: Mounted, lazy: bool) -> str | None:
    program = shutil.which("fusermount3")
    if program is None:
        raise NoFuse("users other than root unmount through fusermount3, which is not there", todo="apt install fuse3")
    words = [program, "-u", *(["-z"] if lazy else []), "--", os.fsdecode(mounted.point)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    return None if done.returncode == 0 else (done.stderr.strip().lower() or f"status {done.returncode}")


def _busy(mounted: Mounted) -> MountBusy:
    found = holders(mounted)
    if not found:
        why = "none of them can be seen by this user or from this container"
    else:
        shown = [f"{holder.pid} ({holder.command}: {holder.uses})" for holder in found[:_SHOWN_MAX]]
        more = f", and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
        why = ", ".join(shown) + more
    return MountBusy(
        "processes use the mount",
        where=os.fsdecode(mounted.point),
        why=why,
        pids=" ".join(str(holder.pid) for holder in found),
    )
