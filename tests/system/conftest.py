"""Fixtures of the tests that run the command against real parts."""

from __future__ import annotations

import pytest

MIB = 1024 * 1024


@pytest.fixture(scope="session")
def hard_tree(request: pytest.FixtureRequest) -> tuple[int, int]:
    """How many small files the hard tree has, and how many bytes its large file."""
    if request.config.getoption("--full-size"):
        return 100_000, 5 * 1024 * MIB
    return 2_000, 48 * MIB


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest) -> int:
    """How often a command is killed."""
    return 20 if request.config.getoption("--full-size") else 4
