"""What an image's tree holds: entries, and the extents that say where a file's bytes are."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

NAME_BYTES_MAX = 255  # Linux NAME_MAX; longer names cannot exist on the systems that we mount on
TARGET_BYTES_MAX = 4095  # PATH_MAX less the NUL: what symlink(2) takes
ROOT_INODE = 1  # as FUSE has it


class Kind(enum.IntEnum):
    """File types, with the value that they have in the S_IFMT bits of st_mode."""

    DIRECTORY = 0o040000
    FILE = 0o100000
    SYMLINK = 0o120000


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in the tree.

    Inodes count from 1 (the root) breadth-first, names of a folder in byte order, so the entry's place in the tree
    part is its `number`; a hard link is a further entry with a number of its own and the `inode` of its first name.
    """

    number: int
    parent: int
    inode: int
    name: bytes
    kind: Kind
    permissions: int  # 12 bits: rwx, set-id, sticky
    uid: int
    gid: int
    mtime_ns: int
    size_bytes: int  # of a file's content or a symlink's target; 0 for folders
    links: int = 1  # st_nlink
    first_child: int = 0  # number of the first entry of a folder; 0 when empty or no folder
    children: int = 0
    digest: bytes = b""  # BLAKE3 of a file's bytes, 32 bytes; empty for others
    target: bytes = b""  # of a symlink
    xattrs: tuple[tuple[bytes, bytes], ...] = field(default=())  # sorted by name

    @property
    def mode(self) -> int:
        """st_mode: type and permissions."""
        return int(self.kind) | self.permissions

    @property
    def is_dir(self) -> bool:
        return self.kind is Kind.DIRECTORY

    @property
    def is_file(self) -> bool:
        return self.kind is Kind.FILE


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of a file's bytes.  `frame` is None for a hole: `length` bytes of zeros that are stored nowhere."""

    file_offset: int
    length: int
    frame: int | None
    frame_offset: int = 0

    @property
    def end(self) -> int:
        return self.file_offset + self.length
