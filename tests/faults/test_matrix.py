"""Every fault at every kind of request of pack, mount-read, pull and cp.

Each cell of the table is done three times.  With nothing tried again and nothing renewed, the raw fault surfaces as
what the table says, and no request more than without it is made for nothing.  The same work without the fault then
goes through in the same place: a failure is not remembered.  In a new place, with tries and renewals on, the work
succeeds under the fault, its result is right, the requests are few, and nothing is left behind.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.faults.selection import Cell, all_cells, pairs_of, pairwise
from tests.faults.table import FATAL, HANDLED, POINTS, Point, expected
from tests.faults.work import CHUNK_BYTES, Inputs, Place, place
from tonne.errors import TonneError
from tonne.testing.faults import Fault

# What a fault may cost at most: a handful of tries, or a blob that is sent again from its start.
MORE_REQUESTS_MAX = 16


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        cells = all_cells()
        if not metafunc.config.getoption("--all-faults"):
            cells = pairwise(cells)
        metafunc.parametrize("cell", cells, ids=str)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs.create(tmp_path_factory.mktemp("inputs"))


class Clean:
    """What an operation asks when nothing goes wrong, but for what provokes the requests of a point."""

    def __init__(self, inputs: Inputs, folder: Path) -> None:
        self._inputs = inputs
        self._folder = folder
        self.requests = cache(self._requests)

    def _requests(self, operation: str, redirect: bool, provoked: str) -> Place:
        name = f"{operation}-{redirect}-{provoked}"
        with place(self._inputs, self._folder / name, operation, redirect=redirect) as found:
            if provoked:
                found.registry.faults.add(*_provoking(POINTS[provoked]))
            found.run(insist=True, hasty=False)
            found.check_result()
            found.check_leftovers(0)
        return found


@pytest.fixture(scope="module")
def clean(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    return Clean(inputs, tmp_path_factory.mktemp("clean"))


def _provoking(point: Point) -> list[Fault]:
    return [Fault(kind, action) for kind, action in point.provoked]


def _inject(found: Place, cell: Cell, nth: int, *, raw: bool) -> Fault:
    point = POINTS[cell.point]
    fault = point.fault(cell.fault, nth, raw=raw)
    found.registry.faults.add(*_provoking(point), fault)
    return fault


def _check_hit(found: Place, fault: Fault) -> int:
    """How often the fault happened; never is a test of nothing."""
    hit = [record for record in found.registry.requests if record.fault is fault]
    assert hit, "the fault met no request"
    assert all(idle is not fault for idle, _ in found.registry.faults.idle), "the fault had no effect"
    return len(hit)


def _attempt(found: Place, cell: Cell, *, insist: bool) -> TonneError | None:
    try:
        found.run(insist=insist, hasty=POINTS[cell.point].faults[cell.fault].stalls)
    except TonneError as error:
        return error
    return None


def _check_outcome(found: Place, error: TonneError | None, code: str) -> None:
    if code == HANDLED:
        if error is not None:
            raise error
        found.check_result()
    else:
        assert error is not None, f"nothing was raised, where {code} is expected"
        assert (error.code, str(error)) == (code, str(error))
        assert error.where


def test_a_cell(cell: Cell, inputs: Inputs, clean: Clean, tmp_path: Path) -> None:
    point = POINTS[cell.point]
    before = clean.requests(cell.operation, point.redirect, cell.point if point.provoked else "")
    counted = sum(point.counts(cell.fault, record.request) for record in before.registry.requests)
    assert counted, "the operation makes no such request"
    nth = (counted + 1) // 2 if cell.late else 1
    asked = len(before.registry.requests)
    code = expected(*cell[:3])

    with place(inputs, tmp_path / "raw", cell.operation, redirect=point.redirect) as found:
        fault = _inject(found, cell, nth, raw=True)
        _check_outcome(found, _attempt(found, cell, insist=False), code)
        _check_hit(found, fault)
        assert len(found.registry.requests) <= asked + MORE_REQUESTS_MAX
        if code != HANDLED:
            found.registry.faults.clear()
            found.run(insist=True, hasty=False)
            found.check_result()

    with place(inputs, tmp_path / "insisting", cell.operation, redirect=point.redirect) as found:
        fault = _inject(found, cell, nth, raw=False)
        error = _attempt(found, cell, insist=True)
        _check_outcome(found, error, code if cell.fault in FATAL else HANDLED)
        hits = _check_hit(found, fault)
        assert len(found.registry.requests) <= asked + MORE_REQUESTS_MAX
        if error is None:
            # Who never heard of a session cannot end it, nor who is not allowed to.
            unheard = cell.point in ("upload-start", "blob-mount") or (cell.point, cell.fault) == (
                "upload-cancel",
                "403",
            )
            found.check_leftovers(hits if unheard else 0)
            if cell.operation == "pack":
                assert found.digest() == before.digest()


def test_the_selection_has_every_pair() -> None:
    cells = all_cells()
    chosen = pairwise(cells)
    assert set().union(*map(pairs_of, chosen)) == set().union(*map(pairs_of, cells))
    assert len(chosen) < len(cells) / 2
    assert len(set(chosen)) == len(chosen)


def test_the_work_is_of_several_requests(clean: Clean) -> None:
    """What the cells rely on: chunks, mounts, pages and runs of frames, several of each."""
    for operation in ("pack", "cp"):
        asked = clean.requests(operation, False, "").registry
        patches = asked.asked("upload-patch")
        assert len(patches) >= 3
        assert max(record.received_bytes for record in patches) == CHUNK_BYTES
        assert {record.status for record in asked.asked("blob-mount")} >= {201}
    for operation in ("read", "pull"):
        asked = clean.requests(operation, False, "").registry
        assert len([record for record in asked.asked("blob-get") if record.range is not None]) >= 6
