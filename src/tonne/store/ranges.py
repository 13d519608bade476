"""Sets of byte ranges: sorted, disjoint, as two NumPy arrays.  Pure.

Neighbours are one range, so that a blob that is held as a whole costs 16 bytes, however many frames it has.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]

_EMPTY: Offsets = np.empty(0, np.int64)


class ByteRanges:
    """A set of bytes of a file, by their offsets.  Immutable: every operation gives a new set, in O(size of both)."""

    __slots__ = ("ends", "starts")

    def __init__(self, starts: Offsets = _EMPTY, ends: Offsets = _EMPTY) -> None:
        """`starts` and `ends` (exclusive): int64 of the same shape (n,), in any order; they may overlap or be empty."""
        self.starts, self.ends = _merged(starts, ends)

    @classmethod
    def one(cls, offset: int, length: int) -> ByteRanges:
        return _of(np.array([offset], np.int64), np.array([offset + length], np.int64)) if length > 0 else NOTHING

    def __len__(self) -> int:
        """How many ranges, not bytes."""
        return len(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByteRanges):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    def __hash__(self) -> int:
        return hash((self.starts.tobytes(), self.ends.tobytes()))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(start, end) in order."""
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)

    def __repr__(self) -> str:
        return f"ByteRanges({list(self)})"

    @property
    def size_bytes(self) -> int:
        return int((self.ends - self.starts).sum())

    def __or__(self, other: ByteRanges) -> ByteRanges:
        if not len(other):
            return self
        if not len(self):
            return other
        if len(other) == 1:
            return self._with(int(other.starts[0]), int(other.ends[0]))
        return ByteRanges(np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends]))

    def __and__(self, other: ByteRanges) -> ByteRanges:
        if not len(self) or not len(other):
            return NOTHING
        points = np.concatenate([self.starts, other.starts, self.ends, other.ends])
        opening = np.ones(len(points), np.int64)
        opening[len(self) + len(other) :] = -1
        # At one point the ends come first: what only touches has nothing in common.
        order = np.lexsort((opening, points))
        points = points[order]
        both = np.flatnonzero(np.cumsum(opening[order])[:-1] == 2)
        return ByteRanges(points[both], points[both + 1])

    def __sub__(self, other: ByteRanges) -> ByteRanges:
        if not len(self) or not len(other):
            return self
        low = min(int(self.starts[0]), int(other.starts[0]))
        high = max(int(self.ends[-1]), int(other.ends[-1]))
        rest = ByteRanges(np.append(low, other.ends), np.append(other.starts, high))
        return self & rest

    def has(self, offset: int, length: int) -> bool:
        """Whether all of one range is in the set."""
        at = int(self.starts.searchsorted(offset, side="right")) - 1
        return length <= 0 or (at >= 0 and offset + length <= int(self.ends[at]))

    def _with(self, start: int, end: int) -> ByteRanges:
        """One more range: what a write does, so it is quick."""
        first = int(self.ends.searchsorted(start, side="left"))  # the first that touches or lies behind
        last = int(self.starts.searchsorted(end, side="right"))  # the first that lies behind and does not touch
        if first < last:
            start = min(start, int(self.starts[first]))
            end = max(end, int(self.ends[last - 1]))
            if last - first == 1 and start == self.starts[first] and end == self.ends[first]:
                return self
        return _of(_spliced(self.starts, first, last, start), _spliced(self.ends, first, last, end))


def _spliced(values: Offsets, first: int, last: int, value: int) -> Offsets:
    out = np.empty(len(values) - (last - first) + 1, np.int64)
    out[:first] = values[:first]
    out[first] = value
    out[first + 1 :] = values[last:]
    return out


def _of(starts: Offsets, ends: Offsets) -> ByteRanges:
    """From arrays that are sorted and disjoint already."""
    made = ByteRanges.__new__(ByteRanges)
    made.starts, made.ends = starts, ends
    return made


def _merged(starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    full = ends > starts
    if not full.all():
        starts, ends = starts[full], ends[full]
    if len(starts) < 2:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reach = np.maximum.accumulate(ends[order])
    gap = np.flatnonzero(starts[1:] > reach[:-1]) + 1
    return starts[np.append(0, gap)], reach[np.append(gap - 1, len(reach) - 1)]


NOTHING = ByteRanges()
