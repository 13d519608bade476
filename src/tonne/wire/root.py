"""The index's root: totals, feature bits, the pack table, and a list of pages for each part (docs/format.md, "Root").

The root is pinned by the manifest's SHA-256; everything else of the index is pinned by the BLAKE3s in it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tonne.errors import CorruptIndex, UnknownVersion
from tonne.model import Blob, Digest, blake3_of
from tonne.wire.pack import FRAMES_MAX
from tonne.wire.page import RawPage
from tonne.wire.pagelist import PageAddress, PageList, encode_list, list_pages, parse_list
from tonne.wire.record import CONTENT, EXTENT, FRAME, NUMBER_MAX, PACK, PAGE, PART, TREE, Records, records
from tonne.wire.stored import store_page

MAGIC = b"TONNEIDX"
VERSION = 1
ROOT_BYTES_TARGET = 256 * 1024  # a root that would be larger lists pages of lists; keeps a mount's first fetch small
ROOT_BYTES_MAX = (
    4 * 1024 * 1024
)  # the most that is read; 4,000 packs of 96 bytes and both kinds of lists fit many times
INCOMPATIBLE_KNOWN = 0
_HEADER = struct.Struct("<8sHBxIQQQQQQIIII48x")
assert _HEADER.size == 128


class Part(enum.IntEnum):
    """The index's tables.  Unknown ones are ignored: what must not be ignored has a feature bit."""

    TREE = 1
    EXTENTS = 2
    FRAMES = 3
    CONTENTS = 4
    CHUNKS = 5


RECORD_OF = {Part.TREE: TREE, Part.EXTENTS: EXTENT, Part.FRAMES: FRAME, Part.CONTENTS: CONTENT}


class PackKind(enum.IntEnum):
    """Whose bytes a pack is.  Nothing here reads the other kinds that the format names."""

    OURS = 1


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack as the root lists it.  `used_bytes`: stored bytes of its frames that this image's files use."""

    digest: Digest
    size_bytes: int
    first_frame: int
    frames: int
    used_bytes: int
    kind: PackKind = PackKind.OURS
    salt: bytes = bytes(16)

    @property
    def blob(self) -> Blob:
        return Blob(self.digest, self.size_bytes)


@dataclass(frozen=True, slots=True)
class Totals:
    """What the whole image amounts to.  `content_bytes` counts each file once, hard links not again."""

    content_bytes: int
    entries: int
    files: int


@dataclass(frozen=True, slots=True)
class PartList:
    """The list of one part: of its pages at depth 1, of its list pages at depth 2."""

    records: int
    pages: PageList


@dataclass(frozen=True, slots=True)
class Root:
    """A parsed root."""

    depth: int
    totals: Totals
    pages_bytes: int
    packs: tuple[Pack, ...]
    parts: dict[Part, PartList]
    compatible: int = 0
    incompatible: int = 0

    @property
    def frames(self) -> int:
        return self.parts[Part.FRAMES].records if Part.FRAMES in self.parts else 0


@dataclass(slots=True)
class IndexBuilder:
    """Turns pages into the pages blob and the root.  Pure: it returns bytes and keeps only the lists.

    Call `store` for each part, in the order of `Part`, and write what it yields; then `finish`, and write its tail.
    """

    root_bytes_target: int = ROOT_BYTES_TARGET
    _at: int = 0
    _lists: dict[Part, list[PageAddress]] = field(default_factory=dict)

    def store(self, part: Part, pages: Iterable[RawPage]) -> Iterator[bytes]:
        """Yield the stored bytes of each page, in order.  May be called again with the part's next pages."""
        rows = self._lists.setdefault(part, [])
        for page in pages:
            address, stored = self._place(page)
            rows.append(address)
            yield stored

    def add(self, part: Part, address: PageAddress) -> None:
        """List a page that was stored already (by a builder of computed images); `address.offset` must be the next."""
        if address.offset != self._at:
            raise ValueError("pages are added in the order of their offsets")
        self._lists.setdefault(part, []).append(address)
        self._at += address.stored_bytes

    def _place(self, page: RawPage) -> tuple[PageAddress, bytes]:
        codec, stored = store_page(page.data)
        address = PageAddress(
            page.key_a,
            page.key_b,
            self._at,
            len(stored),
            len(page.data),
            page.records,
            int(codec),
            blake3_of(stored),
            page.name,
        )
        self._at += len(stored)
        return address, stored

    def finish(self, totals: Totals, packs: Iterable[Pack]) -> tuple[bytes, bytes]:
        """The tail of the pages blob (list pages; empty at depth 1) and the root."""
        packs = list(packs)
        counts = {part: sum(row.records for row in rows) for part, rows in self._lists.items()}
        lists, depth, tail = self._lists, 1, b""
        if self._root_bytes(lists, len(packs)) > self.root_bytes_target:
            depth = 2
            pieces: list[bytes] = []
            outer: dict[Part, list[PageAddress]] = {}
            for part, rows in lists.items():
                outer[part] = []
                for page in list_pages(rows):
                    address, stored = self._place(page)
                    outer[part].append(address)
                    pieces.append(stored)
            lists, tail = outer, b"".join(pieces)
        return tail, self._encode(totals, packs, lists, counts, depth)

    @staticmethod
    def _root_bytes(lists: dict[Part, list[PageAddress]], packs: int) -> int:
        rows = sum(PAGE.itemsize + len(row.name) for rows in lists.values() for row in rows)
        return int(_HEADER.size + packs * PACK.itemsize + len(lists) * PART.itemsize + rows)

    def _encode(
        self,
        totals: Totals,
        packs: list[Pack],
        lists: dict[Part, list[PageAddress]],
        counts: dict[Part, int],
        depth: int,
    ) -> bytes:
        pack_table = np.zeros(len(packs), PACK)
        for row, pack in zip(pack_table, packs, strict=True):
            row["kind"], row["flags"], row["size"] = int(pack.kind), 1, pack.size_bytes
            row["first_frame"], row["frames"], row["used_bytes"] = pack.first_frame, pack.frames, pack.used_bytes
            row["digest"], row["salt"] = np.void(bytes.fromhex(pack.digest.hex)), np.void(pack.salt)
        packs_offset = _HEADER.size
        parts_offset = packs_offset + pack_table.nbytes
        at = parts_offset + len(lists) * PART.itemsize
        part_table = np.zeros(len(lists), PART)
        bodies: list[bytes] = []
        for row, (part, rows) in zip(part_table, lists.items(), strict=True):
            table, heap = encode_list(rows)
            row["part"], row["record_bytes"], row["records"] = int(part), RECORD_OF[part].itemsize, counts[part]
            row["list_offset"], row["list_records"], row["heap_bytes"] = at, len(rows), len(heap)
            bodies += [table, heap]
            at += len(table) + len(heap)
        header = _HEADER.pack(
            MAGIC,
            VERSION,
            depth,
            at,
            0,
            0,
            totals.content_bytes,
            totals.entries,
            totals.files,
            self._at,
            len(packs),
            len(lists),
            packs_offset,
            parts_offset,
        )
        return b"".join([header, pack_table.tobytes(), part_table.tobytes(), *bodies])


def parse_root(data: bytes) -> Root:
    """The root's values; `CorruptIndex` when it breaks the format, `UnknownVersion` when it is newer than we are."""
    if len(data) < _HEADER.size:
        raise CorruptIndex("the index root is cut short")
    (
        magic,
        version,
        depth,
        root_bytes,
        incompatible,
        compatible,
        content_bytes,
        entries,
        files,
        pages_bytes,
        pack_count,
        part_count,
        packs_offset,
        parts_offset,
    ) = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptIndex("the index root does not begin as one")
    if version != VERSION:
        raise UnknownVersion("the image has a newer format", why=f"index version {version}; this tonne reads {VERSION}")
    if incompatible & ~INCOMPATIBLE_KNOWN:
        raise UnknownVersion(
            "the image uses features that this tonne does not know",
            why=f"feature bits {incompatible & ~INCOMPATIBLE_KNOWN:#x}",
        )
    if depth not in (1, 2) or root_bytes != len(data):
        raise CorruptIndex("the index root has the wrong length or depth")
    packs = _parse_packs(records(data, PACK, pack_count, "pack table", packs_offset))
    parts: dict[Part, PartList] = {}
    known = set(Part)
    seen: set[int] = set()
    for row in records(data, PART, part_count, "part table", parts_offset):
        number = int(row["part"])
        if number in seen:
            raise CorruptIndex("the index root lists a part twice", where=f"part {number}")
        seen.add(number)
        if number not in known or Part(number) not in RECORD_OF:
            continue  # a later tonne's; nothing that we need, or it would have a feature bit
        part = Part(number)
        parts[part] = _parse_part(data, row, part, depth, pages_bytes)
    frames = parts[Part.FRAMES].records if Part.FRAMES in parts else 0
    if frames != sum(pack.frames for pack in packs) or Part.TREE not in parts or parts[Part.TREE].records != entries:
        raise CorruptIndex("the totals of the index root disagree")
    if Part.CONTENTS in parts and parts[Part.CONTENTS].records != frames:
        raise CorruptIndex("the totals of the index root disagree", where="contents")
    return Root(depth, Totals(content_bytes, entries, files), pages_bytes, packs, parts, compatible, incompatible)


def _parse_packs(table: Records) -> tuple[Pack, ...]:
    packs: list[Pack] = []
    first = 0
    for row in table:
        kind = int(row["kind"])
        if kind not in set(PackKind):
            raise UnknownVersion("the image has packs of a kind that this tonne does not know", why=f"kind {kind}")
        if not int(row["flags"]) & 1:
            raise UnknownVersion("the image has packs without a digest, which this tonne cannot read")
        if int(row["key"]):
            raise UnknownVersion("the image has sealed packs, which this tonne cannot read", why=f"key {row['key']}")
        pack = Pack(
            digest=Digest("sha256", row["digest"].tobytes().hex()),
            size_bytes=int(row["size"]),
            first_frame=int(row["first_frame"]),
            frames=int(row["frames"]),
            used_bytes=int(row["used_bytes"]),
            kind=PackKind(kind),
            salt=row["salt"].tobytes(),
        )
        if pack.frames > FRAMES_MAX:
            raise CorruptIndex("a pack has more frames than it may have", where=str(pack.digest))
        if pack.first_frame != first or pack.first_frame + pack.frames > NUMBER_MAX:
            raise CorruptIndex("the pack table's frame numbers leave gaps")
        first += pack.frames
        packs.append(pack)
    return tuple(packs)


def _parse_part(data: bytes, row: np.void, part: Part, depth: int, pages_bytes: int) -> PartList:
    if int(row["record_bytes"]) != RECORD_OF[part].itemsize:
        raise UnknownVersion("the image has longer records than this tonne knows", where=part.name.lower())
    start, count = int(row["list_offset"]), int(row["list_records"])
    end = start + count * PAGE.itemsize + int(row["heap_bytes"])
    if end > len(data) or start > end:
        raise CorruptIndex("a list of pages is cut short", where=part.name.lower())
    item_bytes = RECORD_OF[part].itemsize if depth == 1 else PAGE.itemsize
    pages = parse_list(data[start:end], count, pages_bytes, item_bytes, part.name.lower())
    total = int(row["records"])
    if depth == 1 and int(pages.table["records"].sum(dtype=np.uint64)) != total:
        raise CorruptIndex("a part's pages do not add up to its records", where=part.name.lower())
    if total > NUMBER_MAX and part is not Part.EXTENTS:
        raise CorruptIndex("a part has more records than can be numbered", where=part.name.lower())
    return PartList(total, pages)
