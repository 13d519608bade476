"""Which cells of the matrix a run looks at: all of them, or a selection in which every pair of values still occurs."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

from tests.faults.table import OPERATIONS, POINTS


class Cell(NamedTuple):
    """One fault at one request of one operation; `late`: at a request in the middle of its kind, not at the first."""

    operation: str
    point: str
    fault: str
    late: bool

    def __str__(self) -> str:
        return f"{self.operation}-{self.point}-{self.fault}-{'late' if self.late else 'first'}".replace(" ", "_")


def all_cells() -> list[Cell]:
    return [
        Cell(operation, point, fault, late)
        for operation, points in OPERATIONS.items()
        for point in points
        for fault in POINTS[point].faults
        for late in (False, True)
    ]


def pairs_of(cell: Cell) -> set[tuple[tuple[int, object], ...]]:
    """Every two values of a cell, with the places at which they stand."""
    return set(combinations(enumerate(cell), 2))


def pairwise(cells: list[Cell]) -> list[Cell]:
    """Cells of which the pairs are those of all: greedily, the one that brings most first."""
    chosen: list[Cell] = []
    missing = set().union(*(pairs_of(cell) for cell in cells))
    left = {cell: pairs_of(cell) for cell in cells}
    while missing:
        best = max(left, key=lambda cell: len(left[cell] & missing))
        chosen.append(best)
        missing -= left.pop(best)
    return sorted(chosen)
