"""Memory for bytes under way, used again once nobody looks at it any more.

Fresh memory is zeroed by the kernel page by page as it is filled, which costs as much as receiving the bytes does.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from tonne.settings import MIB

LENT_BYTES_MIN = MIB  # smaller ones come from the allocator, which does well there
SPARE_BYTES_MAX = 16 * MIB  # kept for the next request, one of the largest; a mount has to stay under 200 MiB


class Buffers:
    """Lends memory for as long as a view of it lives.

    Any thread may call.  A buffer comes back when the last view of it goes, in whatever thread and moment that is, a
    garbage collection inside `take` included: so it goes into a deque, without a lock, and `take` looks there.
    """

    def __init__(self, spare_bytes_max: int = SPARE_BYTES_MAX) -> None:
        self._spare_bytes_max = spare_bytes_max
        self._lock = threading.Lock()
        self._back: deque[npt.NDArray[np.uint8]] = deque()
        self._spare: list[npt.NDArray[np.uint8]] = []  # the one that came back first is the first

    def take(self, size_bytes: int) -> memoryview:
        """Room for bytes that are about to come; holds rubbish."""
        if size_bytes < LENT_BYTES_MIN:
            return np.empty(size_bytes, np.uint8).data
        whole = self._reuse(size_bytes)
        if whole is None:
            # Not a bytearray: that writes zeros first, while NumPy leaves it untouched and asks for huge pages.
            whole = np.empty(-(-size_bytes // MIB) * MIB, np.uint8)
        lent: npt.NDArray[Any] = whole[:size_bytes]
        weakref.finalize(lent, self._back.append, whole).atexit = False
        return lent.data

    @property
    def spare_bytes(self) -> int:
        """What is kept for the next."""
        with self._lock:
            self._sort_in()
            return sum(whole.nbytes for whole in self._spare)

    def _reuse(self, size_bytes: int) -> npt.NDArray[np.uint8] | None:
        with self._lock:
            self._sort_in()
            fitting = [
                (whole.nbytes, at)
                for at, whole in enumerate(self._spare)
                if size_bytes <= whole.nbytes <= size_bytes + size_bytes // 4 + MIB
            ]
            return self._spare.pop(min(fitting)[1]) if fitting else None

    def _sort_in(self) -> None:
        while self._back:
            self._spare.append(self._back.popleft())
        held = sum(whole.nbytes for whole in self._spare)
        while held > self._spare_bytes_max:
            held -= self._spare.pop(0).nbytes
