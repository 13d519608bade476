"""What is packed and read: weights as models have them, and content that no coder makes smaller."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

BLOCK_BYTES = 64 * 1024 * 1024
FILES = 4


def raw_model(folder: Path, size_bytes: int) -> Path:
    """Random bytes in four files: stored as they are, so that bytes moved are equal for every tool."""
    return _files(folder, size_bytes, lambda random, count: random.bytes(count))


def weights_model(folder: Path, size_bytes: int) -> Path:
    """Gaussian bf16 weights in four files."""

    def block(random: np.random.Generator, count: int) -> bytes:
        weights = random.standard_normal(count // 2, dtype=np.float32) * np.float32(0.03)
        return (weights.view(np.uint32) >> 16).astype("<u2").tobytes()

    return _files(folder, size_bytes, block)


def _files(folder: Path, size_bytes: int, block: object) -> Path:
    assert callable(block)
    folder.mkdir(parents=True)
    for number in range(FILES):
        random = np.random.default_rng(number)
        left = size_bytes // FILES
        with (folder / f"part-{number}.bin").open("wb") as file:
            while left:
                count = min(left, BLOCK_BYTES)
                file.write(block(random, count))
                left -= count
            file.flush()
            os.fsync(file.fileno())
    return folder
