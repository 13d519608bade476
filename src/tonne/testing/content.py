"""Content that is computed from a seed and an offset, so that any byte of any file can be checked without keeping it.

Word *n* (8 bytes, little endian) of the content of a seed is SplitMix64's output for the counter *n* (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014).  It does not compress, and no two offsets look alike.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

WORD_BYTES: Final = 8
_BLOCK_WORDS = 1 << 14  # 128 KiB: what a pass reads is still in the core's cache when the next pass wants it
_MASK = (1 << 64) - 1
_STEP, _FIRST, _SECOND = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_COUNT = np.arange(_BLOCK_WORDS, dtype=np.uint64)

Words = npt.NDArray[np.uint64]


def _mixed(value: int) -> int:
    """A seed spread over 64 bits, so that neighbouring seeds have nothing in common."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def _fill_words(seed: int, first: int, out: Words) -> None:
    """Words `first` and following; the counter wraps at 2^64."""
    scratch = np.empty(min(_BLOCK_WORDS, len(out)), np.uint64)
    for start in range(0, len(out), _BLOCK_WORDS):
        words = out[start : start + _BLOCK_WORDS]
        other = scratch[: len(words)]
        np.add(_COUNT[: len(words)], np.uint64((first + start) & _MASK), out=words)
        np.multiply(words, _STEP, out=words)
        np.add(words, np.uint64(_mixed(seed)), out=words)
        for shift, factor in ((30, _FIRST), (27, _SECOND)):
            np.right_shift(words, np.uint64(shift), out=other)
            np.bitwise_xor(words, other, out=words)
            np.multiply(words, factor, out=words)
        np.right_shift(words, np.uint64(31), out=other)
        np.bitwise_xor(words, other, out=words)


def fill(seed: int, offset: int, out: memoryview | bytearray) -> None:
    """Fill `out` (contiguous, writable) with the bytes from `offset`, below 2^63.

    Reentrant.  About 1 GiB/s a thread; NumPy releases the GIL for each pass over a block.
    """
    view = memoryview(out).cast("B")
    if offset < 0 or offset + view.nbytes > 1 << 63:
        raise ValueError("an offset is from 0 to 2^63")
    skip = offset % WORD_BYTES
    words = np.empty(-(-(skip + view.nbytes) // WORD_BYTES), "<u8")
    _fill_words(seed, offset // WORD_BYTES, words)
    view[:] = words.view(np.uint8).data[skip : skip + view.nbytes]


def content(seed: int, offset: int, length: int) -> bytearray:
    """`length` bytes from `offset` of the content of `seed`."""
    out = bytearray(length)
    fill(seed, offset, out)
    return out
