"""The kernel's table of mounts, as this process sees it.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tonne.errors import LocalFailure

FUSE_TYPE = "fuse.tonne"
_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mounted:
    """One mount.  `device` is st_dev's MAJOR:MINOR, `number` the mount's id, `source` what findmnt shows first."""

    number: int
    device: str
    point: bytes
    kind: str
    source: str

    @property
    def is_ours(self) -> bool:
        return self.kind == FUSE_TYPE


def parse_mounts(data: bytes) -> Iterator[Mounted]:
    """The lines of a mountinfo file; those that are not understood are left out."""
    # Not `splitlines`: a carriage return in a name is not escaped.
    for line in data.split(b"\n"):
        front, separator, back = line.partition(b" - ")
        fields, tail = front.split(b" "), back.split(b" ")
        if not separator or len(fields) < 6 or len(tail) < 2 or not fields[0].isdigit():
            continue
        yield Mounted(
            int(fields[0]),
            fields[2].decode("ascii", "replace"),
            _unescape(fields[4]),
            _unescape(tail[0]).decode("utf-8", "replace"),
            _unescape(tail[1]).decode("utf-8", "replace"),
        )


def _unescape(field: bytes) -> bytes:
    # A space, tab, newline or backslash in a name stands there as three octal digits.
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field)


def mounts() -> list[Mounted]:
    """All mounts, in the order in which they were made."""
    try:
        return list(parse_mounts(Path("/proc/self/mountinfo").read_bytes()))
    except OSError as error:
        raise LocalFailure(
            "the table of mounts cannot be read", where="/proc/self/mountinfo", why=error.strerror or ""
        ) from None


def mount_at(point: str | os.PathLike[str]) -> Mounted | None:
    """The topmost mount whose mount point is exactly this path, links resolved; a stale one is found too."""
    # What is mounted may hang for whoever looks at it, so first only the folders above are.
    there = mounts()
    above, name = os.path.split(os.fsencode(point).rstrip(b"/"))
    if name not in (b"", b".", b".."):
        found = _topmost(there, os.path.join(os.path.realpath(above), name))
        if found is not None:
            return found
    # Not `resolve(strict=True)`: a mount whose process has died cannot be looked into.
    return _topmost(there, os.path.realpath(os.fsencode(point)))


def _topmost(there: list[Mounted], point: bytes) -> Mounted | None:
    return next((mounted for mounted in reversed(there) if mounted.point == point), None)
