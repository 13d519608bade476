"""The fixed-size records of an image, as NumPy dtypes: little endian, no implicit padding (docs/format.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tonne.errors import CorruptIndex

Records = npt.NDArray[Any]
"""A one-dimensional structured array of one of the dtypes below."""

NO_FRAME = 0xFFFFFFFF  # in an extent: a hole; as a frame's base: none
NUMBER_MAX = 0xFFFFFFFE  # of inodes, entries and frames: 2^32 - 2; 16 PiB of content in 4 MiB frames

TREE = np.dtype(
    [
        ("parent", "<u4"),
        ("inode", "<u4"),
        ("size", "<u8"),
        ("mtime_ns", "<i8"),
        ("first_child", "<u4"),
        ("children", "<u4"),
        ("mode", "<u4"),
        ("uid", "<u4"),
        ("gid", "<u4"),
        ("links", "<u4"),
        ("name_offset", "<u4"),
        ("target_offset", "<u4"),
        ("xattrs_offset", "<u4"),
        ("xattrs_bytes", "<u4"),
        ("name_bytes", "<u2"),
        ("target_bytes", "<u2"),
        ("reserved", "V28"),
        ("digest", "V32"),
    ]
)

EXTENT = np.dtype(
    [
        ("inode", "<u4"),
        ("length", "<u4"),
        ("file_offset", "<u8"),
        ("frame", "<u4"),
        ("frame_offset", "<u4"),
    ]
)

FRAME = np.dtype(
    [
        ("pack", "<u4"),
        ("stored_bytes", "<u4"),
        ("offset", "<u8"),
        ("raw_bytes", "<u4"),
        ("codec", "u1"),
        ("reserved", "u1"),
        ("parameters", "<u2"),
        ("base", "<u4"),
        ("base_offset", "<u4"),
        ("digest", "V32"),
    ]
)

CONTENT = np.dtype([("digest", "V32")])

FOOTER = np.dtype([("frame", FRAME), ("content", "V32")])
"""A frame as a pack's footer lists it: `pack` is 0, `content` is the BLAKE3 of the raw content."""

PAGE = np.dtype(
    [
        ("key_a", "<u8"),
        ("key_b", "<u8"),
        ("offset", "<u8"),
        ("stored_bytes", "<u4"),
        ("raw_bytes", "<u4"),
        ("records", "<u4"),
        ("name_offset", "<u4"),
        ("name_bytes", "<u2"),
        ("codec", "u1"),
        ("reserved", "V5"),
        ("digest", "V32"),
    ]
)
"""A page as a list names it: first key, place in the pages blob, BLAKE3 of the stored bytes."""

PACK = np.dtype(
    [
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("key", "<u4"),
        ("size", "<u8"),
        ("first_frame", "<u8"),
        ("frames", "<u4"),
        ("reserved", "V4"),
        ("digest", "V32"),
        ("salt", "V16"),
        ("used_bytes", "<u8"),
        ("reserved2", "V8"),
    ]
)

PART = np.dtype(
    [
        ("part", "<u2"),
        ("flags", "<u2"),
        ("record_bytes", "<u4"),
        ("records", "<u8"),
        ("list_offset", "<u4"),
        ("list_records", "<u4"),
        ("heap_bytes", "<u4"),
        ("reserved", "V4"),
    ]
)

assert (TREE.itemsize, EXTENT.itemsize, FRAME.itemsize, CONTENT.itemsize) == (128, 24, 64, 32)
assert (FOOTER.itemsize, PAGE.itemsize, PACK.itemsize, PART.itemsize) == (96, 80, 96, 32)


def records(
    data: bytes | bytearray | memoryview, dtype: np.dtype[Any], count: int, what: str, offset: int = 0
) -> Records:
    """View `count` records of `dtype` in `data` from `offset`, without copying; `CorruptIndex` when they do not fit."""
    if count < 0 or offset < 0 or offset + count * dtype.itemsize > len(data):
        raise CorruptIndex("an index table is cut short", where=what)
    return np.frombuffer(data, dtype=dtype, count=count, offset=offset)
