"""Measure tonne beside the tools that a user would pick instead, and write docs/benchmarks.md.

Every comparison runs both sides in one run, by turns, several times, with sources and targets synced; what is
written is the median of each and the ratio of the medians. Absolute figures are of one small machine; read the ratios.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from contest import Report
from inputs import raw_model, weights_model
from memory import memory_section
from packing import pack_contest
from pulling import pull_contest
from reading import reading_sections
from tonne.testing.processes import DebianRegistry

MIB = 1024 * 1024
GIB = 1024 * MIB
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", choices=["pack", "pull", "read", "memory"], action="append", help="sections; default all"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each side")
    parser.add_argument("--pack-mib", type=int, default=2048, help="bf16 weights to pack")
    parser.add_argument("--pull-mib", type=int, default=8192, help="incompressible content to pull")
    parser.add_argument("--read-mib", type=int, default=2048, help="content to read through the mount")
    parser.add_argument("--memory-mib", type=int, default=20480, help="input for the memory figures")
    parser.add_argument("--folder", type=Path, help="where to work; needs four times the largest input")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page to write")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="tonne-bench-", dir=options.folder))
    sections: dict[str, Callable[[Report], None]] = {
        "pack": lambda report: _pack(report, work, options.pack_mib * MIB, options.runs),
        "pull": lambda report: _pull(report, work, options.pull_mib * MIB, options.runs),
        "read": lambda report: _read(report, work, options.read_mib * MIB, options.runs),
        "memory": lambda report: _memory(report, work, options.memory_mib * MIB),
    }
    report = Report()
    try:
        for name in options.only or list(sections):
            sections[name](report)
            report.write(options.output)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _pack(report: Report, work: Path, size_bytes: int, runs: int) -> None:
    source = weights_model(work / "weights", size_bytes)
    with DebianRegistry(work / "registry") as registry:
        report.add(pack_contest(source, registry, work, runs))
    _clear(work)


def _pull(report: Report, work: Path, size_bytes: int, runs: int) -> None:
    source = raw_model(work / "raw", size_bytes)
    with DebianRegistry(work / "registry") as registry:
        report.add(pull_contest(source, registry, work, runs))
    _clear(work)


def _read(report: Report, work: Path, size_bytes: int, runs: int) -> None:
    source = raw_model(work / "raw", size_bytes)
    with DebianRegistry(work / "registry") as registry:
        for contest in reading_sections(source, registry, work, runs):
            report.add(contest)
    _clear(work)


def _memory(report: Report, work: Path, size_bytes: int) -> None:
    source = raw_model(work / "raw", size_bytes)
    with DebianRegistry(work / "registry") as registry:
        report.add_text(memory_section(source, registry, work))
    _clear(work)


def _clear(work: Path) -> None:
    for item in work.iterdir():
        shutil.rmtree(item, ignore_errors=True)


if __name__ == "__main__":
    main()
