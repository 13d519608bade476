"""What a power cut may leave of a folder, from the steps that a `FaultyDisk` recorded.

The rules are POSIX's, stricter than any file system in use: data is there for certain after fsync or fdatasync of its
file, a name (made, renamed, removed) after fsync of its folder.  What was not synced is there or not, each write and
each name by itself; a write may be torn, or leave only the file's new length.  Folders are there as soon as they are
made.  A rename is never half done.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tonne.testing.disk import Step

Tree = dict[str, bytes]
"""Files by path, with what is in them."""

_NAMES = ("create", "rename", "unlink")
_DATA = ("pwrite", "punch", "truncate")


def files_below(folder: Path) -> Tree:
    """What is in a folder now: where the steps begin."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def after_power_cut(before: Mapping[str, bytes], steps: Sequence[Step], chance: random.Random) -> Tree:
    """One state that is allowed after all of `steps` were done and the power then failed.

    `before` is what was there, and synced, when the first step was done.  For a cut in the middle pass ``steps[:n]``.
    """
    names, inodes = _start(before, steps)
    data: dict[int, bytearray] = {inode: bytearray(content) for inode, content in inodes.items()}
    for place, step in enumerate(steps):
        later = steps[place + 1 :]
        if step.call in _NAMES:
            if _name_is_synced(step, later) or chance.random() < 0.5:
                _apply_name(names, step)
        elif step.call in _DATA:
            is_synced = any(sync.call in ("fsync", "fdatasync") and sync.inode == step.inode for sync in later)
            _apply_data(data.setdefault(step.inode, bytearray()), step, is_synced, chance)
    return {path: bytes(data.get(inode, b"")) for path, inode in sorted(names.items())}


def write_tree(tree: Mapping[str, bytes], old: Path, new: Path) -> None:
    """Put a state, whose paths are below `old`, into the folder `new`."""
    for path, content in tree.items():
        target = new / Path(path).relative_to(old)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _start(before: Mapping[str, bytes], steps: Sequence[Step]) -> tuple[dict[str, int], dict[int, bytes]]:
    """Names and contents at the first step; a file has the number of the first step that meets it."""
    names: dict[str, int] = {}
    made: set[int] = set()
    for step in steps:
        if step.call == "create":
            made.add(step.inode)
        path = step.old or step.path
        if step.inode and step.inode not in made and path in before and path not in names:
            names[path] = step.inode
            made.add(step.inode)
    spare = -1
    for path in before:
        if path not in names:
            names[path] = spare
            spare -= 1
    return names, {inode: before[path] for path, inode in names.items()}


def _name_is_synced(step: Step, later: Sequence[Step]) -> bool:
    folders = {os.path.dirname(step.path), os.path.dirname(step.old or step.path)}
    return any(sync.call == "fsync" and not sync.inode and sync.path in folders for sync in later)


def _apply_name(names: dict[str, int], step: Step) -> None:
    if step.call == "create":
        names[step.path] = step.inode
    elif step.call == "unlink":
        if names.get(step.path) == step.inode:
            del names[step.path]
    elif names.get(step.old) == step.inode:
        names[step.path] = names.pop(step.old)


def _apply_data(content: bytearray, step: Step, is_synced: bool, chance: random.Random) -> None:
    fate = "kept" if is_synced else chance.choice(("kept", "lost", "torn", "grown"))
    if fate == "lost":
        return
    if step.call == "truncate":
        content.clear()
    elif step.call == "punch":
        end = min(step.offset + step.length, len(content))
        content[step.offset : end] = bytes(max(0, end - step.offset))
    else:
        end = step.offset + len(step.data)
        content.extend(bytes(max(0, end - len(content))))
        kept = {"kept": len(step.data), "grown": 0, "torn": chance.randint(0, len(step.data))}[fate]
        content[step.offset : step.offset + kept] = step.data[:kept]
