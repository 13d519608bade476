"""Which symbolic links would lead out of an image."""

from __future__ import annotations

import os


def within(path: bytes, folder: bytes) -> bool:
    """Whether `path` is `folder` or below it; both real and absolute."""
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def leaves(folder: bytes, root: bytes, target: bytes) -> bool:
    """Whether a link in `folder` (real path, within `root`) leads out of `root` as it will stand in an image.

    An absolute target does, wherever it points to here: the image is mounted elsewhere.  So does a way that goes up
    above the root and comes back in, as the root has another name there.
    """
    if target.startswith(b"/"):
        return True
    depth = len([part for part in folder[len(root) :].split(b"/") if part])
    for part in target.split(b"/"):
        if part == b"..":
            depth -= 1
            if depth < 0:
                return True
        elif part not in (b"", b"."):
            depth += 1
    return not within(os.path.realpath(os.path.join(folder, target)), root)
