"""Records of what a blob's file holds: their bytes, and what a log of them says.  Pure.

A log is a file of records of 32 bytes, little endian, appended under the blob's lock:

    u64 check    of the rest, the record's place in the log, and the blob's digest
    u64 offset   of the range in the blob
    u64 length   of the range, not 0
    u64 kind and boot: the low byte is the kind, the rest the mark of the boot that wrote it

A record that does not pass its check is skipped, so what is torn, stale, or of another blob says nothing.  That is
safe: WRITTEN and DURABLE follow the data that they speak of, and a DROPPED is on the disk before data is taken away.

    WRITTEN   the data was written; true as long as the machine runs (same boot), since its page cache has it
    DURABLE   the data was synced to the disk; true after a restart too
    DROPPED   whatever was said before of this range is void
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tonne.model import Digest
from tonne.store.ranges import NOTHING, ByteRanges

RECORD_BYTES: Final = 32
WRITTEN: Final = 1
DURABLE: Final = 2
DROPPED: Final = 3

_END_MAX = 1 << 62  # far beyond any file; keeps sums within int64

Words = npt.NDArray[np.uint64]

# Odd numbers with about as many ones as zeros, from the golden ratio and the square roots of 2, 3 and 5.
_FACTORS_INT = (0x9E3779B97F4A7C15, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B)
_FACTORS = np.array(_FACTORS_INT, np.uint64)
_MASK = (1 << 64) - 1
_RECORD = struct.Struct("<4Q")
_SHIFTS = np.array([32, 29], np.uint64)
_BYTE = np.uint64(8)
_KIND = np.uint64(0xFF)


@dataclass(frozen=True, slots=True)
class LogKey:
    """What ties records to a blob and to a boot.  `salt` has shape (1,); `boot` is of 56 bits."""

    salt: Words
    boot: int

    @classmethod
    def of(cls, digest: Digest, boot_id: str) -> LogKey:
        salt = np.frombuffer(hashlib.sha256(f"tonne records {digest}".encode()).digest()[:8], "<u8")
        return cls(salt.astype(np.uint64), int.from_bytes(hashlib.sha256(boot_id.encode()).digest()[:7], "little"))


def encode_records(kind: int, ranges: ByteRanges, key: LogKey, place: int) -> bytes:
    """Records of one kind for each range, to be written as the `place`-th of the log and those after it."""
    if len(ranges) == 1:
        return _encode_one(kind, int(ranges.starts[0]), int(ranges.ends[0]), key, place)
    words = np.empty((len(ranges), 4), np.uint64)
    words[:, 1] = ranges.starts
    words[:, 2] = ranges.ends - ranges.starts
    words[:, 3] = (key.boot << 8) | kind
    words[:, 0] = _checks(words, key, place)
    return words.astype("<u8").tobytes()


def _encode_one(kind: int, start: int, end: int, key: LogKey, place: int) -> bytes:
    """What each write does: the same as `_checks`, ten times quicker for a single record."""
    words = (start, end - start, (key.boot << 8) | kind)
    mixed = (place * _FACTORS_INT[0] + int(key.salt[0])) & _MASK
    for word, factor in zip(words, _FACTORS_INT[1:], strict=True):
        mixed = (mixed ^ word) * factor & _MASK
        mixed = (mixed ^ mixed >> 32) * _FACTORS_INT[0] & _MASK
        mixed ^= mixed >> 29
    return _RECORD.pack(mixed, *words)


def _checks(words: Words, key: LogKey, place: int) -> Words:
    mixed: Words = np.arange(place, place + len(words), dtype=np.uint64) * _FACTORS[0] + key.salt
    for column, factor in zip((1, 2, 3), _FACTORS[1:], strict=True):
        mixed ^= words[:, column]
        mixed *= factor
        mixed ^= mixed >> _SHIFTS[0]
        mixed *= _FACTORS[0]
        mixed ^= mixed >> _SHIFTS[1]
    return mixed


@dataclass(frozen=True, slots=True)
class Claims:
    """What a log says.

    `held` is to be believed now; `durable`, a part of it, after a restart too.  `dropped` is all that the records read
    since `nothing_dropped` took away, whether or not it came back.
    """

    held: ByteRanges = NOTHING
    durable: ByteRanges = NOTHING
    dropped: ByteRanges = NOTHING

    def after(self, data: bytes | bytearray | memoryview, key: LogKey, place: int) -> Claims:
        """With the records in `data`, of which the first is the `place`-th of the log.  Part of a record is ignored."""
        count = len(data) // RECORD_BYTES
        words = np.frombuffer(data, "<u8", count * 4).reshape(count, 4).astype(np.uint64)
        kinds = words[:, 3] & _KIND
        good = words[:, 0] == _checks(words, key, place)
        good &= (words[:, 1] < _END_MAX) & (words[:, 2] > 0) & (words[:, 2] < _END_MAX)
        # WRITTEN of another boot says nothing.
        good &= (kinds == DURABLE) | (kinds == DROPPED) | ((kinds == WRITTEN) & (words[:, 3] >> _BYTE == key.boot))
        words, kinds = words[good], kinds[good].astype(np.int64)
        if not len(words):
            return self
        starts = words[:, 1].astype(np.int64)
        ends = starts + words[:, 2].astype(np.int64)
        held, durable, dropped = self.held, self.durable, self.dropped
        # The order matters only between what adds and what drops, so each run of either goes at once.
        turns = np.flatnonzero(np.diff(kinds == DROPPED)) + 1
        for first, last in zip([0, *turns.tolist()], [*turns.tolist(), len(kinds)], strict=True):
            run = slice(first, last)
            ranges = ByteRanges(starts[run], ends[run])
            if kinds[first] == DROPPED:
                held, durable, dropped = held - ranges, durable - ranges, dropped | ranges
            else:
                synced = kinds[run] == DURABLE
                held |= ranges
                durable |= ByteRanges(starts[run][synced], ends[run][synced])
        return Claims(held, durable, dropped)

    def with_records(self, kind: int, ranges: ByteRanges) -> Claims:
        """With records of one kind, of this boot, for each range: what `after` would make of their bytes."""
        if kind == DROPPED:
            return Claims(self.held - ranges, self.durable - ranges, self.dropped | ranges)
        durable = self.durable | ranges if kind == DURABLE else self.durable
        return Claims(self.held | ranges, durable, self.dropped)

    def nothing_dropped(self) -> Claims:
        """The same, with `dropped` empty."""
        return Claims(self.held, self.durable) if len(self.dropped) else self

    def within(self, size_bytes: int) -> Claims:
        """Without what lies behind the end of a file of this size."""
        file = ByteRanges.one(0, size_bytes)
        return Claims(self.held & file, self.durable & file, self.dropped)

    def log(self, key: LogKey) -> bytes:
        """The shortest log that says the same."""
        durable = encode_records(DURABLE, self.durable, key, 0)
        return durable + encode_records(WRITTEN, self.held - self.durable, key, len(self.durable))

    @property
    def log_bytes(self) -> int:
        """How long the shortest log is at most: each durable range may split a held one."""
        return RECORD_BYTES * (2 * len(self.durable) + len(self.held))
