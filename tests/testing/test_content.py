from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.testing.content import content, fill


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 62), st.integers(0, 5000), st.integers(0, 5000))
def test_a_part_is_the_same_wherever_the_read_began(seed: int, offset: int, skip: int, length: int) -> None:
    assert content(seed, offset, skip + length)[skip:] == content(seed, offset + skip, length)


def test_the_words_are_splitmix64s() -> None:
    """Against arithmetic in plain integers, across the border of a block and near 2^63."""
    mask = (1 << 64) - 1

    def finish(value: int) -> int:
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & mask
        return value ^ value >> 31

    start = finish((7 + 0x9E3779B97F4A7C15) & mask)
    for word in (0, 1, 16383, 16384, (1 << 60) - 1):
        expected = finish((start + word * 0x9E3779B97F4A7C15) & mask)
        assert content(7, word * 8, 8) == expected.to_bytes(8, "little")
    assert content(7, 0, 40000 * 8)[16384 * 8 :][:8] == content(7, 16384 * 8, 8)


def test_no_two_seeds_and_no_two_offsets_are_alike() -> None:
    blocks = {bytes(content(seed, block * 64, 64)) for seed in range(30) for block in range(30)}
    assert len(blocks) == 900


def test_bytes_are_evenly_spread() -> None:
    counts = np.bincount(np.frombuffer(content(1, 0, 1 << 20), np.uint8), minlength=256)
    assert counts.min() > 3700
    assert counts.max() < 4500


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), ((1 << 63) - 1, 2)])
def test_offsets_out_of_bounds_are_refused(offset: int, length: int) -> None:
    with pytest.raises(ValueError):
        fill(0, offset, bytearray(length))
