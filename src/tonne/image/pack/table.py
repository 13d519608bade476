"""From provisional frame numbers to those of the image: the packs in their order (docs/format.md, "Packs")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tonne.image.pack.base import BasePack
from tonne.image.pack.journal import SentPack
from tonne.image.pack.ledger import BASE_BIT
from tonne.image.pack.options import LANES
from tonne.image.pack.places import lane_of, n_of, ordinal_of
from tonne.wire.record import NO_FRAME

Numbers = npt.NDArray[np.uint32]


class Numbering:
    """The order of the packs, and what each provisional number becomes.  Immutable.

    Packs of bases stand first, in the order of the bases; then new ones by the n of their first frame.
    """

    def __init__(self, bases: Sequence[BasePack], new: Sequence[SentPack]) -> None:
        self.bases = list(bases)
        self.new = sorted(new, key=lambda pack: n_of(pack.lane, pack.start))
        at = 0
        self.base_firsts: list[int] = []
        for base in self.bases:
            self.base_firsts.append(at)
            at += base.pack.frames
        self.new_firsts: list[int] = []
        for pack in self.new:
            self.new_firsts.append(at)
            at += pack.count
        self.frames = at
        self._base_ids = np.array([base.first_id for base in self.bases], np.int64)
        self._base_firsts = np.array(self.base_firsts, np.int64)
        self._lanes: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        for lane in range(LANES):
            mine = [
                (pack.start, first) for pack, first in zip(self.new, self.new_firsts, strict=True) if pack.lane == lane
            ]
            mine.sort()
            pairs = np.array(mine, np.int64).reshape(len(mine), 2)
            self._lanes.append((pairs[:, 0], pairs[:, 1]))

    def final(self, provisional: Numbers) -> Numbers:
        """The image's numbers; holes stay what they are."""
        given = provisional.astype(np.int64)
        result = given.copy()
        hole = given == NO_FRAME
        base = (given & BASE_BIT != 0) & ~hole
        if base.any():
            ids = given[base] & ~BASE_BIT
            place = np.searchsorted(self._base_ids, ids, "right") - 1
            result[base] = self._base_firsts[place] + ids - self._base_ids[place]
        new = ~base & ~hole
        lanes, ordinals = lane_of(given), ordinal_of(given)
        for lane, (starts, firsts) in enumerate(self._lanes):
            mine = new & (lanes == lane)
            if mine.any():
                place = np.searchsorted(starts, ordinals[mine], "right") - 1
                result[mine] = firsts[place] + ordinals[mine] - starts[place]
        return result.astype(np.uint32)
