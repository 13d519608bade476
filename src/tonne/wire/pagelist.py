"""A list of pages, sorted by first key: which page holds a key, and where it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tonne.errors import CorruptIndex
from tonne.model import Codec
from tonne.wire.page import PAGE_BYTES, PAGE_BYTES_MAX, RawPage
from tonne.wire.record import PAGE, Records, records

_CODECS = (int(Codec.RAW), int(Codec.ZSTD))


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where a stored page is in the pages blob, and what it must be.  Lengths and offsets in bytes."""

    key_a: int
    key_b: int
    offset: int
    stored_bytes: int
    raw_bytes: int
    records: int
    codec: int
    digest: bytes
    name: bytes


class PageList:
    """Pages of one part in key order, or pages of such lists.  Immutable; every address in it is within bounds."""

    __slots__ = ("_heap", "_key_a", "_key_b", "table")

    def __init__(self, table: Records, heap: bytes, pages_bytes: int, item_bytes: int, what: str) -> None:
        """`item_bytes`: the length of a record of the pages that are listed."""
        self.table = table
        self._heap = heap
        self._key_a = np.ascontiguousarray(table["key_a"])
        self._key_b = np.ascontiguousarray(table["key_b"])
        self._check(pages_bytes, item_bytes, what)

    def _check(self, pages_bytes: int, item_bytes: int, what: str) -> None:
        table = self.table
        stored = table["stored_bytes"].astype(np.uint64)
        wrong = (
            (table["offset"] > pages_bytes)
            | (table["offset"] + stored > pages_bytes)
            | (stored == 0)
            | (stored > PAGE_BYTES_MAX)
            | (table["raw_bytes"] > PAGE_BYTES_MAX)
            | (table["records"] == 0)
            | (table["records"].astype(np.uint64) * np.uint64(item_bytes) > table["raw_bytes"])
            | ~np.isin(table["codec"], _CODECS)
            | (table["name_offset"].astype(np.uint64) + table["name_bytes"] > len(self._heap))
        )
        a, b = self._key_a, self._key_b
        ordered = (a[1:] > a[:-1]) | ((a[1:] == a[:-1]) & (b[1:] > b[:-1]))
        ordered &= table["offset"][1:] >= (table["offset"] + stored)[:-1]
        if bool(np.any(wrong)) or not bool(np.all(ordered)):
            raise CorruptIndex("a list of pages breaks the format", where=what)

    def __len__(self) -> int:
        return len(self.table)

    def name(self, place: int) -> bytes:
        row = self.table[place]
        start = int(row["name_offset"])
        return self._heap[start : start + int(row["name_bytes"])]

    def address(self, place: int) -> PageAddress:
        row = self.table[place]
        return PageAddress(
            key_a=int(row["key_a"]),
            key_b=int(row["key_b"]),
            offset=int(row["offset"]),
            stored_bytes=int(row["stored_bytes"]),
            raw_bytes=int(row["raw_bytes"]),
            records=int(row["records"]),
            codec=int(row["codec"]),
            digest=row["digest"].tobytes(),
            name=self.name(place),
        )

    def find(self, key: int) -> int:
        """The last page whose first key is at most `key` (frames, contents); -1 when all begin later."""
        return int(np.searchsorted(self._key_a, np.uint64(key), "right")) - 1

    def find_pair(self, a: int, b: int) -> int:
        """The last page whose first key pair is at most (a, b) (extents); -1 when all begin later."""
        low = int(np.searchsorted(self._key_a, np.uint64(a), "left"))
        high = int(np.searchsorted(self._key_a, np.uint64(a), "right"))
        return low + int(np.searchsorted(self._key_b[low:high], np.uint64(b), "right")) - 1

    def find_number(self, number: int) -> int:
        """The page of the tree that holds the entry of that number; -1 when all begin later."""
        return int(np.searchsorted(self._key_b, np.uint64(number), "right")) - 1

    def find_name(self, parent: int, name: bytes) -> int:
        """The last page of the tree whose first (parent, name) is at most the given one; -1 when all begin later."""
        low = int(np.searchsorted(self._key_a, np.uint64(parent), "left"))
        high = int(np.searchsorted(self._key_a, np.uint64(parent), "right"))
        while low < high:
            middle = (low + high) // 2
            if self.name(middle) <= name:
                low = middle + 1
            else:
                high = middle
        return low - 1


def encode_list(rows: Sequence[PageAddress]) -> tuple[bytes, bytes]:
    """Records and heap of a list."""
    table = np.zeros(len(rows), PAGE)
    heap = bytearray()
    for record, row in zip(table, rows, strict=True):
        record["key_a"], record["key_b"], record["offset"] = row.key_a, row.key_b, row.offset
        record["stored_bytes"], record["raw_bytes"] = row.stored_bytes, row.raw_bytes
        record["records"], record["codec"] = row.records, row.codec
        record["name_offset"], record["name_bytes"] = len(heap), len(row.name)
        record["digest"] = np.void(row.digest)
        heap += row.name
    return table.tobytes(), bytes(heap)


def list_pages(rows: Sequence[PageAddress], page_bytes: int = PAGE_BYTES) -> Iterator[RawPage]:
    """Cut a list that is too long for the root into pages of its own."""
    batch: list[PageAddress] = []
    size = 0
    for row in rows:
        need = PAGE.itemsize + len(row.name)
        if batch and size + need > page_bytes:
            yield _list_page(batch)
            batch, size = [], 0
        batch.append(row)
        size += need
    if batch:
        yield _list_page(batch)


def _list_page(rows: Sequence[PageAddress]) -> RawPage:
    table, heap = encode_list(rows)
    return RawPage(rows[0].key_a, rows[0].key_b, len(rows), table + heap, rows[0].name)


def parse_list(data: bytes | memoryview, count: int, pages_bytes: int, item_bytes: int, what: str) -> PageList:
    """A list page, or a list in the root: `count` records and the heap behind them.

    What is listed has records of `item_bytes`, and lies in a pages blob of `pages_bytes`.
    """
    table = records(data, PAGE, count, what)
    return PageList(table, bytes(data[count * PAGE.itemsize :]), pages_bytes, item_bytes, what)


def check_page(records_in_page: int, record: np.dtype[Any], data: bytes, what: str) -> None:
    """A page of a fixed-size part must be exactly its records."""
    if records_in_page * record.itemsize != len(data):
        raise CorruptIndex("an index page does not hold what its list says", where=what)
