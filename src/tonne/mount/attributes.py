"""Entries as the kernel wants them: attributes, with owner and permissions as the mount has them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyfuse3

from tonne.image.view import Space
from tonne.model import Entry

FOREVER_S = 10 * 365 * 86400  # an image does not change, so neither do names and attributes
BLOCK_BYTES = 4096  # what st_blksize and statfs count in
_SECTOR_BYTES = 512  # what st_blocks counts in, whatever the block size


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns all files, where the image's own owners are of no use; None keeps those.

    `umask`: permission bits that are taken away.
    """

    uid: int | None = None
    gid: int | None = None
    umask: int = 0


def attributes_of(entry: Entry, owner: Owner) -> pyfuse3.EntryAttributes:
    """The attributes of an inode.  Holes count as blocks: telling would need a look at the extents of each file."""
    found = pyfuse3.EntryAttributes()
    found.st_ino = entry.inode
    found.generation = 0
    found.entry_timeout = found.attr_timeout = FOREVER_S
    found.st_mode = entry.mode & ~(0 if entry.target else owner.umask & 0o777)
    found.st_nlink = max(entry.links, 1)  # never 2 for a folder by guess: find believes it has no folders then
    found.st_uid = entry.uid if owner.uid is None else owner.uid
    found.st_gid = entry.gid if owner.gid is None else owner.gid
    found.st_rdev = 0
    found.st_size = entry.size_bytes
    found.st_blksize = BLOCK_BYTES
    found.st_blocks = -(-entry.size_bytes // _SECTOR_BYTES) if entry.is_file else 0
    found.st_atime_ns = found.st_mtime_ns = found.st_ctime_ns = entry.mtime_ns
    return found


def absent() -> pyfuse3.EntryAttributes:
    """What makes the kernel remember that there is no such name."""
    found = pyfuse3.EntryAttributes()
    found.st_ino = 0
    found.entry_timeout = FOREVER_S
    return found


def space_of(space: Space) -> pyfuse3.StatvfsData:
    """For statfs: all of it is used."""
    found = pyfuse3.StatvfsData()
    found.f_bsize = found.f_frsize = BLOCK_BYTES
    found.f_blocks = -(-space.content_bytes // BLOCK_BYTES)
    found.f_bfree = found.f_bavail = 0
    found.f_files = space.entries
    found.f_ffree = found.f_favail = 0
    found.f_namemax = os.pathconf("/", "PC_NAME_MAX")
    return found
