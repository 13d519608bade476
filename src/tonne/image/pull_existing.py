"""What a target folder holds already: which of the image's entries stand there, and what does not belong."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tonne.clock import Deadline
from tonne.errors import TargetExists
from tonne.image.index import Index
from tonne.image.pull_plan import Paths, Plan
from tonne.image.pull_state import FOLDER
from tonne.image.pull_target import Target, text
from tonne.model import Entry, Kind

_NAMED_MAX = 3  # names in a message
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class Existing:
    """What was found.  `present`, by entry number: a file or link of that type, size and time stands there."""

    present: npt.NDArray[np.bool_]
    files: int = 0
    file_bytes: int = 0
    differing: list[bytes] = field(default_factory=list)
    differing_count: int = 0
    foreign: list[bytes] = field(default_factory=list)
    foreign_count: int = 0

    def check(self, target: Target) -> None:
        """Refuse a folder that holds something else; names the first few."""
        if not self.differing_count and not self.foreign_count:
            return
        count = self.differing_count + self.foreign_count
        names = ", ".join(text(name) for name in (self.differing + self.foreign)[:_NAMED_MAX])
        raise TargetExists(
            "the folder holds files that are not of this image",
            where=str(target.path),
            why=names + (f" and {count - _NAMED_MAX} more" if count > _NAMED_MAX else ""),
            todo="choose an empty folder; --force replaces what differs and leaves what the image does not have",
            differing=self.differing_count,
            foreign=self.foreign_count,
        )


def same_time(found_ns: int, wanted_ns: int) -> bool:
    """Whether a file's mtime is the entry's, as exactly as the file system keeps it (some keep whole seconds)."""
    return found_ns == wanted_ns or (found_ns % _SECOND_NS == 0 and found_ns == wanted_ns - wanted_ns % _SECOND_NS)


def look_for(target: Target, index: Index, plan: Plan, deadline: Deadline, strict: bool) -> Existing:
    """Compare the folder with the image, by type, size and mtime; contents are not read.

    With `strict`, also look for what the image does not have.
    """
    found = Existing(np.zeros(len(plan.wanted), np.bool_))
    paths = Paths(index, deadline)
    for entry in index.walk(deadline):
        if not plan.wanted[entry.number]:
            continue
        path = paths.of(entry)
        facts = target.look(path)
        if facts is None:
            continue
        if _same(entry, facts, target, path):
            found.present[entry.number] = True
            if entry.is_file and plan.name_of(entry.inode) == entry.number:
                found.files += 1
                found.file_bytes += entry.size_bytes
        else:
            found.differing_count += 1
            if len(found.differing) < _NAMED_MAX:
                found.differing.append(path)
    if strict:
        _look_for_foreign(target, index, index.entry(1, deadline), b"", found, deadline)
    return found


def _same(entry: Entry, facts: os.stat_result, target: Target, path: bytes) -> bool:
    if stat.S_IFMT(facts.st_mode) != int(entry.kind):
        return False
    if entry.kind is Kind.FILE:
        return facts.st_size == entry.size_bytes and same_time(facts.st_mtime_ns, entry.mtime_ns)
    if entry.kind is Kind.SYMLINK:
        parent, _, name = path.rpartition(b"/")
        return os.readlink(name, dir_fd=target.folder(parent)) == entry.target
    return True


def _look_for_foreign(
    target: Target, index: Index, folder: Entry, path: bytes, found: Existing, deadline: Deadline
) -> None:
    pending = [(folder, path)]
    while pending:
        above, where = pending.pop()
        for name in target.names(where):
            below = where + b"/" + name if where else name
            if below == FOLDER:
                continue
            entry = index.lookup(above, name, deadline)
            if entry is None:
                found.foreign_count += 1
                if len(found.foreign) < _NAMED_MAX:
                    found.foreign.append(below)
            elif entry.is_dir and (facts := target.look(below)) is not None and stat.S_ISDIR(facts.st_mode):
                pending.append((entry, below))
