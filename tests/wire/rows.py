"""Values as records: the reverse of `tonne.wire.page.extents_of` and `frame_of`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tonne.model import Extent, Frame
from tonne.wire.record import FRAME, NO_FRAME, Records


def extent_record(inode: int, extent: Extent) -> tuple[int, int, int, int, int]:
    """An extent as a record's fields.  A hole's length takes the frame offset's field as its upper 32 bits."""
    if extent.frame is None:
        return inode, extent.length & 0xFFFFFFFF, extent.file_offset, NO_FRAME, extent.length >> 32
    return inode, extent.length, extent.file_offset, extent.frame, extent.frame_offset


def frame_table(frames: Sequence[Frame]) -> Records:
    table = np.zeros(len(frames), FRAME)
    for row, frame in zip(table, frames, strict=True):
        row["pack"], row["stored_bytes"], row["offset"] = frame.pack, frame.stored_bytes, frame.offset
        row["raw_bytes"], row["codec"], row["parameters"] = frame.raw_bytes, frame.codec, frame.parameters
        row["base"] = NO_FRAME if frame.base is None else frame.base
        row["base_offset"] = frame.base_offset
        row["digest"] = np.void(frame.digest)
    return table
