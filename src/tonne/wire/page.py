"""Pages: 64 KiB of index, fetched and verified on their own (docs/format.md, "Pages").

A page of a fixed-size part is its records and nothing else.  A page of the tree, and of page lists, is its records
followed by a heap of names, link targets and attributes, which the records point into.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tonne.errors import CorruptIndex
from tonne.model import Entry, Extent, Frame, Kind
from tonne.model.entry import NAME_BYTES_MAX, TARGET_BYTES_MAX
from tonne.wire.record import EXTENT, NO_FRAME, TREE, Records, records

PAGE_BYTES = 64 * 1024
PAGE_BYTES_MAX = (
    1024 * 1024
)  # a record with very large attributes makes its page larger; nothing makes it larger than this
FILE_BYTES_MAX = 1 << 62  # offsets and sums of them stay within a signed 64-bit number
XATTRS_BYTES_MAX = 512 * 1024  # of one entry; ext4 and xfs hold at most 64 KiB a value
_XATTR_HEAD = struct.Struct("<HI")
_TREE_ROW = struct.Struct("<IIQqIIIIIIIIIIHH28x32s")  # `TREE`, written row by row: ten times as fast as through NumPy
assert _TREE_ROW.size == TREE.itemsize
_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class RawPage:
    """A page before it is stored: its first key, its record count and its bytes."""

    key_a: int
    key_b: int
    records: int
    data: bytes
    name: bytes = b""  # tree: the first record's name


def fixed_pages(table: Records, first: int = 0, page_bytes: int = PAGE_BYTES) -> Iterator[RawPage]:
    """Cut frames or contents, of which `table[0]` has the number `first`, into pages."""
    per_page = page_bytes // table.dtype.itemsize
    for start in range(0, len(table), per_page):
        part = table[start : start + per_page]
        yield RawPage(first + start, 0, len(part), part.tobytes())


def extent_pages(table: Records, page_bytes: int = PAGE_BYTES) -> Iterator[RawPage]:
    """Cut extents, sorted by inode and file offset, into pages."""
    per_page = page_bytes // EXTENT.itemsize
    for start in range(0, len(table), per_page):
        part = table[start : start + per_page]
        yield RawPage(int(part["inode"][0]), int(part["file_offset"][0]), len(part), part.tobytes())


def tree_pages(entries: Iterable[Entry], page_bytes: int = PAGE_BYTES) -> Iterator[RawPage]:
    """Cut entries, in the order of their numbers, into pages."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        xattrs = encode_xattrs(entry.xattrs)
        need = TREE.itemsize + len(entry.name) + len(entry.target) + len(xattrs)
        if batch and size + need > page_bytes:
            yield _tree_page(batch)
            batch, size = [], 0
        batch.append(entry)
        size += need
    if batch:
        yield _tree_page(batch)


def _tree_page(entries: Sequence[Entry]) -> RawPage:
    rows = bytearray()
    heap = bytearray()
    shared: dict[bytes, int] = {}
    for entry in entries:
        name_offset = len(heap)
        heap += entry.name
        target_offset = len(heap)
        heap += entry.target
        xattrs = encode_xattrs(entry.xattrs) if entry.xattrs else b""
        if xattrs not in shared:
            shared[xattrs] = len(heap)
            heap += xattrs
        rows += _TREE_ROW.pack(
            entry.parent,
            entry.inode,
            entry.size_bytes,
            entry.mtime_ns,
            entry.first_child,
            entry.children,
            entry.mode,
            entry.uid,
            entry.gid,
            entry.links,
            name_offset,
            target_offset,
            shared[xattrs],
            len(xattrs),
            len(entry.name),
            len(entry.target),
            entry.digest,
        )
    first = entries[0]
    return RawPage(first.parent, first.number, len(entries), bytes(rows + heap), first.name)


def encode_xattrs(xattrs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Attributes as the heap holds them: for each, u16 name length, u32 value length, name, value."""
    return b"".join(_XATTR_HEAD.pack(len(name), len(value)) + name + value for name, value in xattrs)


def decode_xattrs(data: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The reverse; `CorruptIndex` on anything that does not end where it must."""
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(data):
        if at + _XATTR_HEAD.size > len(data):
            raise CorruptIndex("attributes are cut short in the index")
        name_bytes, value_bytes = _XATTR_HEAD.unpack_from(data, at)
        at += _XATTR_HEAD.size
        end = at + name_bytes + value_bytes
        if not name_bytes or end > len(data):
            raise CorruptIndex("attributes are cut short in the index")
        found.append((data[at : at + name_bytes], data[at + name_bytes : end]))
        at = end
    return tuple(found)


class TreePage:
    """A page of the tree, read-only; entries are checked as they are taken out."""

    __slots__ = ("_data", "_heap", "first", "table")

    def __init__(self, data: bytes, count: int, first: int) -> None:
        """`first` is the number of the page's first entry, `count` how many it holds, both from the page list."""
        self._data = data
        self.table: Records = records(data, TREE, count, "tree page")
        self._heap = count * TREE.itemsize
        self.first = first

    def __len__(self) -> int:
        return len(self.table)

    def _take(self, offset: int, length: int) -> bytes:
        start = self._heap + offset
        if start + length > len(self._data):
            raise CorruptIndex("a string lies outside its page", where="tree page")
        return self._data[start : start + length]

    def name(self, row: int) -> bytes:
        values = _TREE_FIELDS.unpack_from(self._data, row * TREE.itemsize)
        return self._take(values[_NAME_OFFSET], values[_NAME_BYTES])

    def entry(self, number: int) -> Entry:
        """The entry of that number, which must be on this page; `CorruptIndex` when it breaks a rule of the format."""
        row = number - self.first
        if not 0 <= row < len(self.table):
            raise CorruptIndex("an entry is not on the page where the list says", where=f"entry {number}")
        # Not by way of NumPy, which takes ten times as long for the fields of a single record.
        at = row * TREE.itemsize
        values: dict[str, int] = dict(zip(_PLAIN_FIELDS, _TREE_FIELDS.unpack_from(self._data, at), strict=True))
        mode = values["mode"]
        kind = _KINDS.get(mode & 0o170000)
        name = self.name(row)
        if kind is None or mode & ~0o177777:
            raise CorruptIndex("an entry has an unknown type", where=f"entry {number}")
        root = number == 1
        if (not root and not valid_name(name)) or (root and name):
            raise CorruptIndex("an entry's name is not allowed", where=f"entry {number}", why=repr(name[:64]))
        if not 0 < values["inode"] <= number or (not root and not 0 < values["parent"] < number):
            raise CorruptIndex("an entry's numbers are out of order", where=f"entry {number}")
        if values["size"] > FILE_BYTES_MAX:
            raise CorruptIndex(
                "a file is larger than is allowed", where=f"entry {number}", why=f"{values['size']} bytes"
            )
        if values["target_bytes"] > TARGET_BYTES_MAX or values["xattrs_bytes"] > XATTRS_BYTES_MAX:
            raise CorruptIndex("an entry's link target or attributes are too long", where=f"entry {number}")
        target = self._take(values["target_offset"], values["target_bytes"])
        if (kind is Kind.SYMLINK) != bool(target) or b"\0" in target:
            raise CorruptIndex("an entry's link target is not allowed", where=f"entry {number}")
        children, first_child = values["children"], values["first_child"]
        if children and (kind is not Kind.DIRECTORY or first_child <= number):
            raise CorruptIndex("a folder's children are out of order", where=f"entry {number}")
        return Entry(
            number=number,
            parent=values["parent"],
            inode=values["inode"],
            name=name,
            kind=kind,
            permissions=mode & 0o7777,
            uid=values["uid"],
            gid=values["gid"],
            mtime_ns=values["mtime_ns"],
            size_bytes=values["size"],
            links=values["links"],
            first_child=first_child,
            children=children,
            digest=self._data[at + _DIGEST_OFFSET : at + TREE.itemsize] if kind is Kind.FILE else b"",
            target=target,
            xattrs=decode_xattrs(self._take(values["xattrs_offset"], values["xattrs_bytes"])),
        )


_PLAIN_FIELDS = tuple(name for name in (TREE.names or ()) if name not in ("reserved", "digest"))
_TREE_FIELDS = struct.Struct("<IIQqIIIIIIIIIIHH")  # the same, which stand first and without gaps
_NAME_OFFSET, _NAME_BYTES = _PLAIN_FIELDS.index("name_offset"), _PLAIN_FIELDS.index("name_bytes")
_DIGEST_OFFSET = TREE.itemsize - 32
assert _TREE_FIELDS.size == sum(TREE[name].itemsize for name in _PLAIN_FIELDS)


def valid_name(name: bytes) -> bool:
    """Whether a name may stand in a folder: not empty, ``.`` or ``..``, no slash or NUL, at most 255 bytes."""
    return 0 < len(name) <= NAME_BYTES_MAX and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def extents_of(table: Records) -> list[Extent]:
    """Records as values, in their order."""
    found = []
    for _, length, file_offset, frame, frame_offset in table.tolist():
        if frame == NO_FRAME:
            found.append(Extent(file_offset, length | frame_offset << 32, None))
        else:
            found.append(Extent(file_offset, length, frame, frame_offset))
    return found


def frame_of(number: int, record: Any) -> Frame:
    """One row of the frames part as a value."""
    base = int(record["base"])
    return Frame(
        number=number,
        pack=int(record["pack"]),
        offset=int(record["offset"]),
        stored_bytes=int(record["stored_bytes"]),
        raw_bytes=int(record["raw_bytes"]),
        codec=int(record["codec"]),
        digest=record["digest"].tobytes(),
        parameters=int(record["parameters"]),
        base=None if base == NO_FRAME else base,
        base_offset=int(record["base_offset"]),
    )
