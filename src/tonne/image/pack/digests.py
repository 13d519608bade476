"""Where a digest was seen: some 12 bytes for each, so that millions fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.uint32]

TAIL_MAX = 65536  # digests added since the last merge: a Python dict of some 10 MB


class DigestTable:
    """Digests to numbers, by the first eight bytes; the caller compares whole digests.

    A sorted table and a small dict of what was added since.  One thread at a time.  Of two digests that share eight
    bytes (for BLAKE3: never, unless someone spent 2^32 hashes on it) only the first added later than the table is kept:
    the other is not found, so its content is stored again, which is right if not thrifty.
    """

    def __init__(self) -> None:
        self._keys: Keys = np.zeros(0, np.uint64)
        self._values: Values = np.zeros(0, np.uint32)
        self._tail: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._keys) + len(self._tail)

    def extend(self, keys: Keys, values: Values) -> None:
        """Add many at once, side by side, those that are to be preferred first."""
        self._merge(keys, values)

    def add(self, digest: bytes, value: int) -> None:
        self._tail.setdefault(key_of(digest), value)
        if len(self._tail) >= TAIL_MAX:
            tail, self._tail = self._tail, {}
            count = len(tail)
            self._merge(np.fromiter(tail.keys(), np.uint64, count), np.fromiter(tail.values(), np.uint32, count))

    def _merge(self, keys: Keys, values: Values) -> None:
        keys = np.concatenate([self._keys, keys])
        order = np.argsort(keys, kind="stable")  # stable: what was there first stays first
        self._keys = keys[order]
        self._values = np.concatenate([self._values, values])[order]

    def find(self, digest: bytes) -> Iterator[int]:
        """Numbers whose digest begins as `digest` does, the preferred first."""
        key = key_of(digest)
        if len(self._keys):
            wanted = np.uint64(key)
            place = int(self._keys.searchsorted(wanted))
            while place < len(self._keys) and self._keys[place] == wanted:
                yield int(self._values[place])
                place += 1
        found = self._tail.get(key)
        if found is not None:
            yield found


def key_of(digest: bytes) -> int:
    """The first eight bytes as a number."""
    return int.from_bytes(digest[:8], "little")


def keys_of(digests: npt.NDArray[np.void]) -> Keys:
    """The same for an array of 32-byte digests."""
    flat = np.ascontiguousarray(digests).view(np.uint8).reshape(len(digests), 32)
    return np.ascontiguousarray(flat[:, :8]).view("<u8").reshape(len(digests)).astype(np.uint64)
