"""Who uses a mount: open files, mappings, working folders.

Source: proc(5): fd, fdinfo (``mnt_id``), maps (device), cwd, root, exe.  Nothing in the mount itself is looked at, so a
mount that does not answer cannot hang this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tonne.mount.table import Mounted

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, its command, and the first thing that it uses, such as ``open file /mnt/a``."""

    pid: int
    command: str
    uses: str


def holders(mounted: Mounted, proc: Path = PROC) -> list[Holder]:
    """The processes that keep a mount busy, as far as this user may see them; our own is left out."""
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            uses = next(_uses(folder, mounted), None)
            if uses is not None:
                found.append(Holder(int(folder.name), _command(folder), uses))
    return sorted(found, key=lambda holder: holder.pid)


def _uses(folder: Path, mounted: Mounted) -> Iterator[str]:
    for name, what in (("cwd", "working folder"), ("root", "root folder"), ("exe", "program")):
        target = _target(folder / name)
        if target is not None and _within(target, mounted.point):
            yield f"{what} {os.fsdecode(target)}"
    for number in _names(folder / "fdinfo"):
        if f"mnt_id:\t{mounted.number}\n" in _text(folder / "fdinfo" / number):
            target = _target(folder / "fd" / number)
            yield f"open file {os.fsdecode(target or b'?')}"
    # A mapping keeps a file in use after its descriptor was closed.
    for line in _text(folder / "maps").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and _device(fields[3]) == mounted.device:
            yield f"mapped file {fields[5]}"


def _device(field: str) -> str:
    """``00:2f`` of maps, in hexadecimal, as mountinfo writes it, in decimal."""
    major, _, minor = field.partition(":")
    return f"{int(major, 16)}:{int(minor, 16)}"


def _within(path: bytes, point: bytes) -> bool:
    return path == point or path.startswith(point.rstrip(b"/") + b"/")


def _command(folder: Path) -> str:
    words = _text(folder / "cmdline").split("\0")
    text = " ".join(word for word in words if word) or _text(folder / "comm").strip()
    return text[:120] or "?"


# Processes end while we look, and others' are not shown to everyone: what cannot be read is not there.


def _target(link: Path) -> bytes | None:
    try:
        return os.readlink(os.fsencode(link))
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
