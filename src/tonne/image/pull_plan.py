"""Which entries of an image a pull makes, and whether its tree may be made at all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tonne.clock import Deadline
from tonne.errors import CorruptIndex, UnsafePath
from tonne.image.index import Index
from tonne.image.match import Selection
from tonne.model import Entry
from tonne.model.entry import ROOT_INODE
from tonne.wire.root import Part

_PATHS_KEPT_MAX = 20_000  # folders of which the path is kept; names come folder by folder, so few are needed at once


class Paths:
    """Paths of entries, relative to the root.  One thread."""

    def __init__(self, index: Index, deadline: Deadline) -> None:
        self._index = index
        self._deadline = deadline
        self._folders: dict[int, bytes] = {ROOT_INODE: b""}

    def folder(self, number: int) -> bytes:
        """The path of a folder by its entry number; empty for the root."""
        path = self._folders.get(number)
        if path is None:
            path = self.of(self._index.entry(number, self._deadline))
            if len(self._folders) >= _PATHS_KEPT_MAX:
                self._folders = {ROOT_INODE: b""}
            self._folders[number] = path
        return path

    def of(self, entry: Entry) -> bytes:
        """The path of an entry."""
        if entry.number == ROOT_INODE:
            return b""
        above = self.folder(entry.parent)
        return above + b"/" + entry.name if above else entry.name


@dataclass(slots=True)
class Plan:
    """What a pull makes.  Arrays are indexed by entry number and take a byte an entry.

    `wanted`: entries to be made.  `first_name`: for files of which the first name is not wanted but a later one is, the
    number of that one, by inode.  `content_bytes` counts every file once.
    """

    wanted: npt.NDArray[np.bool_]
    first_name: dict[int, int] = field(default_factory=dict)
    files: int = 0
    entries: int = 0
    content_bytes: int = 0

    def takes_inode(self, inode: int) -> bool:
        """Whether any name of the file is wanted."""
        return bool(self.wanted[inode]) or inode in self.first_name

    def needed(self, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """By inode: what is wanted under some name, and does not stand under that name already."""
        needed = self.wanted & ~present
        for inode, number in self.first_name.items():
            needed[inode] = not present[number]
        return needed

    def name_of(self, inode: int) -> int:
        """The entry that the file's content is made under; the others are linked to it."""
        return inode if self.wanted[inode] else self.first_name[inode]


def make_plan(index: Index, selection: Selection, deadline: Deadline) -> Plan:
    """Walk the tree once: select, count, and refuse trees that are none.

    `UnsafePath` for an entry below something that is no folder or a name that stands in a folder twice (with both, a
    path could be led through a symbolic link of the image), `CorruptIndex` for numbers that disagree.
    """
    count = index.counted(Part.TREE, deadline)
    plan = Plan(np.zeros(count + 1, np.bool_))
    folders = np.zeros(count + 1, np.bool_)
    included = np.zeros(count + 1, np.bool_)
    excluded = np.zeros(count + 1, np.bool_)
    parents = np.zeros(count + 1 if not selection.everything else 1, np.uint32)
    paths = Paths(index, deadline)
    before: Entry | None = None
    for entry in index.walk(deadline):
        number, parent = entry.number, entry.parent
        if number == ROOT_INODE:
            if not entry.is_dir:
                raise CorruptIndex("the image's root is no folder")
            folders[number] = plan.wanted[number] = True
            plan.entries += 1
            before = entry
            continue
        if not folders[parent]:
            raise UnsafePath("the image has an entry below one that is no folder", where=f"entry {number}")
        if before is not None and (before.parent, before.name) >= (parent, entry.name):
            raise UnsafePath("the image has a name twice, or names out of order", where=f"entry {number}")
        before = entry
        folders[number] = entry.is_dir
        if entry.inode != number:
            _check_link(index, entry, deadline)
        if selection.everything:
            plan.wanted[number] = True
        else:
            path = paths.of(entry)
            parents[number] = parent
            excluded[number] = excluded[parent] or selection.excludes(path, entry.is_dir)
            included[number] = included[parent] or selection.includes(path, entry.is_dir)
            if excluded[number] or not included[number]:
                continue
            while not plan.wanted[number]:
                plan.wanted[number] = True
                plan.entries += 1
                number = int(parents[number]) or ROOT_INODE
            plan.entries -= 1  # of the entry itself, which is counted below
        _count(plan, entry)
    return plan


def _count(plan: Plan, entry: Entry) -> None:
    plan.entries += 1
    if not entry.is_file:
        return
    if entry.inode != entry.number:
        if plan.takes_inode(entry.inode):
            return
        plan.first_name[entry.inode] = entry.number
    plan.files += 1
    plan.content_bytes += entry.size_bytes


def _check_link(index: Index, entry: Entry, deadline: Deadline) -> None:
    first = index.entry(entry.inode, deadline)
    same = replace(entry, number=first.number, parent=first.parent, name=first.name)
    if entry.is_dir or first.inode != first.number or first != same:
        raise CorruptIndex("a hard link does not agree with what it links to", where=f"entry {entry.number}")
