"""The rule by which new frames go to lanes (docs/format.md, "Packs"): pure arithmetic."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tonne.image.pack.options import LANE_RUN, LANES

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
