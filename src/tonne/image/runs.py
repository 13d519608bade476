"""From extents to requests: neighbouring frames are asked for together, decoded, and handed out by place.

A file's extents are followed in their order.  As frames are written in the order of the files, eight neighbours to a
pack, following the order is enough to find neighbours together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tonne.clock import Deadline
from tonne.codec.frames import Bytes, Decoder
from tonne.errors import CorruptIndex
from tonne.image.fetch import Fetcher, piece_of
from tonne.image.index import Index
from tonne.model import Codec, Entry, Extent, Frame, Kind, blake3_of
from tonne.source.seam import Priority
from tonne.wire.page import extents_of
from tonne.wire.root import Part

K = TypeVar("K")

USES_MAX = 4096  # places that one run serves; bounds what a worker holds when files are tiny


@dataclass(slots=True)
class Run(Generic[K]):
    """Frames that lie together in one pack, and the extents that need them, in their order.

    `uses` holds (whose, extent, place of its frame in `frames`); the place is None for a hole.
    """

    frames: list[Frame] = field(default_factory=list)
    uses: list[tuple[K, Extent, int | None]] = field(default_factory=list)
    stored_bytes: int = 0
    raw_bytes: int = 0

    @property
    def pack(self) -> int:
        return self.frames[0].pack


def runs_of(
    wanted: Iterable[tuple[K, Extent]], index: Index, request_bytes: int, deadline: Deadline
) -> Iterator[Run[K]]:
    """Cut extents, in their order, into runs of at most `request_bytes` stored and as much decoded, or of one frame."""
    run: Run[K] = Run()
    places: dict[int, int] = {}
    for whose, extent in wanted:
        if len(run.uses) >= USES_MAX:
            yield run
            run, places = Run(), {}
        if extent.frame is None:
            run.uses.append((whose, extent, None))
            continue
        place = places.get(extent.frame)
        if place is None:
            frame = index.frames([extent.frame], deadline)[0]
            if run.frames and not _joins(run, frame, request_bytes):
                yield run
                run, places = Run(), {}
            place = places[extent.frame] = len(run.frames)
            run.frames.append(frame)
            run.stored_bytes += frame.stored_bytes
            run.raw_bytes += frame.raw_bytes
        if extent.frame_offset + extent.length > run.frames[place].raw_bytes:
            raise CorruptIndex("an extent reaches beyond its frame", where=f"frame {extent.frame}")
        run.uses.append((whose, extent, place))
    if run.uses:
        yield run


def _joins(run: Run[K], frame: Frame, request_bytes: int) -> bool:
    last = run.frames[-1]
    return (
        (frame.pack, frame.offset) == (last.pack, last.end)
        and run.stored_bytes + frame.stored_bytes <= request_bytes
        and run.raw_bytes + frame.raw_bytes <= request_bytes
    )


class Contents:
    """Decoded frames of runs, checked against the index.  Any thread may call; each has a decoder of its own."""

    def __init__(self, fetcher: Fetcher, index: Index) -> None:
        self._fetcher = fetcher
        self._index = index
        self._packs = index.root.packs
        self._local = threading.local()

    def of(self, frames: list[Frame], deadline: Deadline) -> list[Bytes]:
        """The content of frames of one pack, fetched together, verified and decoded."""
        if not frames:
            return []
        blob = self._packs[frames[0].pack].blob
        pieces = [piece_of(frame) for frame in frames]
        stored = self._fetcher.pieces(blob, pieces, deadline, Priority.BACKGROUND)
        return [self._decode(frame, data, deadline) for frame, data in zip(frames, stored, strict=True)]

    def _decode(self, frame: Frame, stored: Bytes, deadline: Deadline) -> Bytes:
        decoder = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = Decoder()
        content: Bytes = decoder.decode(frame.codec, stored, frame.raw_bytes, frame.parameters)
        # What is stored raw is what was verified.  Else a decoder stands in between: its memory, its defects.
        if frame.codec != Codec.RAW and blake3_of(content) != self._index.content_digest(frame.number, deadline):
            raise CorruptIndex("a frame's content is not what the index says", where=f"frame {frame.number}")
        return content


def file_extents(index: Index, entry: Entry, deadline: Deadline, piece_bytes: int = 1 << 30) -> Iterator[Extent]:
    """All extents of a file in order, looked up a piece at a time, so that a file of any size takes little memory."""
    at = 0
    while at < entry.size_bytes:
        found = index.extents(entry.inode, at, min(at + piece_bytes, entry.size_bytes), deadline)
        for extent in found:
            if extent.file_offset >= at:
                yield extent
        at = found[-1].end
    if at != entry.size_bytes:
        raise CorruptIndex("a file's extents are longer than the file", where=f"inode {entry.inode}")


def all_files(
    index: Index, deadline: Deadline, needed: npt.NDArray[np.bool_] | None = None
) -> Iterator[tuple[Entry, Iterator[Extent]]]:
    """Every file that is not empty, once, by its first name, with its extents; both tables are read once, in order.

    With `needed`, a mask by inode, only those, and only the pages that hold their extents are read.  The extents are to
    be taken before the next file is; `CorruptIndex` when the tables disagree.
    """
    rows = _extents_by_inode(index, needed, deadline)
    ahead = next(rows, None)
    for entry in index.walk(deadline):
        if entry.kind is not Kind.FILE or entry.inode != entry.number or not entry.size_bytes:
            continue
        if needed is not None and not needed[entry.inode]:
            continue
        mine = _Mine(entry, rows, ahead)
        yield entry, mine
        for _ in mine:
            pass  # what the caller did not take
        ahead = mine.ahead
    if ahead is not None:
        raise CorruptIndex("the index has extents of a file that is not there", where=f"inode {ahead[0]}")


class _Mine:
    """The extents of one file out of the rows of all; checks that they cover the file exactly."""

    def __init__(self, entry: Entry, rows: Iterator[tuple[int, Extent]], ahead: tuple[int, Extent] | None) -> None:
        self._entry = entry
        self._rows = rows
        self._at = 0
        self.ahead = ahead

    def __iter__(self) -> _Mine:
        return self

    def __next__(self) -> Extent:
        if self._at == self._entry.size_bytes:
            raise StopIteration
        if self.ahead is None or self.ahead[0] != self._entry.inode:
            raise CorruptIndex("a file's extents do not cover it", where=f"inode {self._entry.inode}")
        extent = self.ahead[1]
        if extent.file_offset != self._at or extent.length == 0 or extent.end > self._entry.size_bytes:
            raise CorruptIndex("a file's extents leave a gap or overlap", where=f"inode {self._entry.inode}")
        self._at = extent.end
        self.ahead = next(self._rows, None)
        return extent


def _extents_by_inode(
    index: Index, needed: npt.NDArray[np.bool_] | None, deadline: Deadline
) -> Iterator[tuple[int, Extent]]:
    if not index.has_part(Part.EXTENTS):
        return
    tables = index.tables(Part.EXTENTS, deadline) if needed is None else index.extents_of_inodes(needed, deadline)
    for table in tables:
        yield from zip(table["inode"].tolist(), extents_of(table), strict=True)
