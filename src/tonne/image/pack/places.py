"""The rule by which new frames go to lanes and packs (docs/format.md, "Packs"): pure arithmetic."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tonne.image.pack.options import LANE_RUN, LANES
from tonne.wire.pack import FRAMES_MAX, TRAILER_BYTES
from tonne.wire.record import FOOTER

N = TypeVar("N", int, npt.NDArray[np.int64])


def lane_of(n: N) -> N:
    """Which lane the new frame `n` goes to."""
    return n // LANE_RUN % LANES


def ordinal_of(n: N) -> N:
    """Its place among the frames of that lane."""
    return n // (LANE_RUN * LANES) * LANE_RUN + n % LANE_RUN


def n_of(lane: int, ordinal: int) -> int:
    """The frame at a place of a lane."""
    return ordinal // LANE_RUN * LANE_RUN * LANES + lane * LANE_RUN + ordinal % LANE_RUN


def pack_bytes_of(count: int, frames_bytes: int) -> int:
    """The length of a pack: that many frames, of that length together, and the footer."""
    return frames_bytes + count * FOOTER.itemsize + TRAILER_BYTES


def pack_takes(count: int, present_bytes: int, stored_bytes: int, pack_bytes: int) -> bool:
    """Whether a frame of `stored_bytes` still fits a pack that has `count` and would end at `present_bytes` now; the
    first always does."""
    return count == 0 or (present_bytes + stored_bytes + FOOTER.itemsize <= pack_bytes and count < FRAMES_MAX)
