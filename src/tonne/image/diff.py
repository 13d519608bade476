"""Two images compared: names and contents from the trees, shared bytes from the packs.  No content is read."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tonne.clock import Deadline
from tonne.image.index import Index
from tonne.model import Entry
from tonne.model.entry import ROOT_INODE
from tonne.wire.record import NO_FRAME
from tonne.wire.root import Part


class Change(enum.Enum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that differs; `old` or `new` is None where it is not there.

    Changed is: another type, content, link target or mode.  Owners and times alone are no difference, since packing the
    same files on another machine changes them.
    """

    change: Change
    path: bytes
    old: Entry | None
    new: Entry | None


def differences(old: Index, new: Index, deadline: Deadline) -> Iterator[Difference]:
    """Every path that differs, folders before what is in them, names in byte order.

    Memory depends on the depth of the trees, not on their size.
    """
    yield from _folders(old, new, old.entry(ROOT_INODE, deadline), new.entry(ROOT_INODE, deadline), b"", deadline)


def _folders(
    old: Index, new: Index, left: Entry | None, right: Entry | None, path: bytes, deadline: Deadline
) -> Iterator[Difference]:
    lefts = old.children(left, deadline) if left is not None and left.is_dir else iter(())
    rights = new.children(right, deadline) if right is not None and right.is_dir else iter(())
    a, b = next(lefts, None), next(rights, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a.name < b.name):
            assert a is not None
            pair: tuple[Entry | None, Entry | None] = (a, None)
            a = next(lefts, None)
        elif a is None or b.name < a.name:
            pair = (None, b)
            b = next(rights, None)
        else:
            pair = (a, b)
            a, b = next(lefts, None), next(rights, None)
        yield from _pair(old, new, pair[0], pair[1], path, deadline)


def _pair(
    old: Index, new: Index, left: Entry | None, right: Entry | None, above: bytes, deadline: Deadline
) -> Iterator[Difference]:
    entry = left or right
    assert entry is not None
    path = above + b"/" + entry.name if above else entry.name
    if left is None or right is None:
        yield Difference(Change.ADDED if left is None else Change.REMOVED, path, left, right)
    elif _key(left) != _key(right):
        yield Difference(Change.CHANGED, path, left, right)
    if (left is not None and left.is_dir) or (right is not None and right.is_dir):
        yield from _folders(old, new, left, right, path, deadline)


def _key(entry: Entry) -> tuple[object, ...]:
    return entry.mode, entry.digest, entry.target, entry.size_bytes if entry.is_file else 0


@dataclass(frozen=True, slots=True)
class Sharing:
    """Stored bytes of the frames that each image uses, and of those that both use."""

    old_bytes: int
    new_bytes: int
    shared_bytes: int


def sharing(old: Index, new: Index, deadline: Deadline) -> Sharing:
    """How much of what is stored serves both images: frames of packs that both list and both use.

    Reads the extents of both, and the frames of one, if they have a pack in common; takes a byte for each frame.
    """
    old_bytes = sum(pack.used_bytes for pack in old.root.packs)
    new_bytes = sum(pack.used_bytes for pack in new.root.packs)
    first_in_new = {pack.digest: pack.first_frame for pack in new.root.packs}
    common = [(pack, first_in_new[pack.digest]) for pack in old.root.packs if pack.digest in first_in_new]
    if not common:
        return Sharing(old_bytes, new_bytes, 0)
    old_used, new_used = _used(old, deadline), _used(new, deadline)
    both = np.zeros(len(old_used), np.bool_)
    for pack, other in common:
        mine = slice(pack.first_frame, pack.first_frame + pack.frames)
        both[mine] = old_used[mine] & new_used[other : other + pack.frames]
    shared, at = 0, 0
    for table in old.tables(Part.FRAMES, deadline):
        shared += int(table["stored_bytes"][both[at : at + len(table)]].sum(dtype=np.uint64))
        at += len(table)
    return Sharing(old_bytes, new_bytes, shared)


def _used(index: Index, deadline: Deadline) -> npt.NDArray[np.bool_]:
    used = np.zeros(index.counted(Part.FRAMES, deadline) + 1, np.bool_)
    if index.has_part(Part.EXTENTS):
        for table in index.tables(Part.EXTENTS, deadline):
            numbers = table["frame"]
            used[numbers[(numbers != NO_FRAME) & (numbers < len(used))]] = True
    return used[:-1]
