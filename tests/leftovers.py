"""What a test leaves on the machine: processes and mounts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

# Set for each test, and inherited: so a daemon is found even after its parent ended.
MARK = "TONNE_TEST"

# What ends by itself (a mount's process after its umount) may take so long.
GRACE_S = 5.0

# Started by multiprocessing once for the whole life of a process.
_LASTING = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Processes by number with their command lines, and mount points, the newest first."""

    processes: dict[int, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.processes or self.mounts)

    def __str__(self) -> str:
        lines = [f"process {pid}: {command}" for pid, command in self.processes.items()]
        lines += [f"mount {path}" for path in self.mounts]
        return "\n".join(lines)

    def remove(self) -> None:
        """Ends and unmounts, so that the next test finds a clean machine. Never fails."""
        for path in self.mounts:
            # Lazily, for a mount whose process hangs.
            subprocess.run(["umount", "--lazy", path], check=False, stderr=subprocess.DEVNULL)
        for pid in self.processes:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def children() -> set[int]:
    """The processes that this one started and that are still there, zombies too."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in listing.read_text().split())
    return found


def mounts_below(folder: Path) -> list[str]:
    """The mount points in `folder`, the newest first."""
    below = f"{folder}{os.sep}"
    paths = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mountinfo:
        for line in mountinfo:
            # proc(5): the fifth field, with blanks and backslashes in octal.
            path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4])
            if path.startswith(below):
                paths.append(path)
    return paths[::-1]


@dataclass(frozen=True, slots=True)
class Before:
    """What was there before the test: fixtures of a wider scope keep servers and mounts."""

    children: set[int]
    mounts: list[str]

    @classmethod
    def now(cls, folder: Path) -> Before:
        return cls(children(), mounts_below(folder))


def left_behind(mark: str, before: Before, folder: Path, *, grace_s: float = GRACE_S) -> Leftovers:
    """What has come since `before` was taken and `mark` was set; waits a while for it to go."""
    deadline_s = time.monotonic() + grace_s
    while True:
        mounts = [path for path in mounts_below(folder) if path not in before.mounts]
        found = Leftovers(_processes(mark, before.children), mounts)
        if not found or time.monotonic() > deadline_s:
            return found
        time.sleep(0.05)


def _processes(mark: str, before: set[int]) -> dict[int, str]:
    pids = children() - before
    wanted = f"{MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        # Others' processes may not be read, and any may end.
        with contextlib.suppress(OSError):
            if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                pids.add(int(entry.name))
    found = {}
    for pid in sorted(pids - {os.getpid()}):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
            if not any(name in command for name in _LASTING):
                # A zombie has no command line.
                found[pid] = command.decode(errors="replace") or "ended, and nobody waited for it"
    return found
