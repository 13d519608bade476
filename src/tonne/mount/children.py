"""Ending processes that were started here, in a time that is known."""

from __future__ import annotations

import contextlib
import subprocess

END_WAIT_S = 5.0  # for a process that was told to end, before it is killed
KILL_WAIT_S = 5.0  # for one that was killed: a process that hangs in the kernel is not gone at once


def ended_within(child: subprocess.Popen[bytes], wait_s: float) -> bool:
    """Wait for a process to end; whether it has."""
    try:
        child.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def end(child: subprocess.Popen[bytes], wait_s: float = END_WAIT_S) -> None:
    """Tell a process to end, kill it if it does not, and let go of it if even that does not help."""
    # One that runs with other rights, as fusermount3 does, may not be ours to end.
    with contextlib.suppress(PermissionError):
        child.terminate()
        if not ended_within(child, wait_s):
            child.kill()
    if not ended_within(child, KILL_WAIT_S):
        let_go(child)


def let_go(child: subprocess.Popen[bytes]) -> None:
    """It goes on without us; so nobody is to wait for it, and Python is not to warn that nobody did."""
    child.returncode = 0
