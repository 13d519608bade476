"""A comparison of several ways to do one thing, run by turns."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

GIB = 1024**3

_HEAD = """# Benchmarks

Written by `./dev bench`. Each table is one run on one machine: the ways in it ran by turns, {runs}, with everything
synced to disk before the clock stopped; the figure is the median, the ratio is that of the medians to the first row.
Servers, clients and disk share the machine, so read ratios, not speeds.

Machine: {machine}. Date: {date}.
"""


@dataclass(slots=True)
class Contest:
    """One table. `ways` maps what is shown to a call that does the thing once; `prepare` runs before each, untimed."""

    title: str
    note: str
    size_bytes: int
    ways: dict[str, Callable[[], None]]
    prepare: Callable[[], None] = lambda: None
    sync: bool = True
    aim: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def run(self, runs: int) -> None:
        """All ways by turns, `runs` times."""
        for _ in range(runs):
            for name, way in self.ways.items():
                self.prepare()
                began = time.perf_counter()
                way()
                if self.sync:
                    os.sync()
                self.seconds.setdefault(name, []).append(time.perf_counter() - began)
                print(f"{self.title}: {name}: {self.seconds[name][-1]:.2f} s", file=sys.stderr, flush=True)

    def table(self) -> str:
        medians = {name: statistics.median(values) for name, values in self.seconds.items()}
        first = next(iter(medians.values()))
        lines = [
            f"## {self.title}",
            "",
            self.note,
            "",
            "| way | median | spread | GiB/s | speed against the first |",
            "|---|---|---|---|---|",
        ]
        for name, median in medians.items():
            values = self.seconds[name]
            lines.append(
                f"| {name} | {median:.2f} s | {min(values):.2f} to {max(values):.2f} | "
                f"{self.size_bytes / median / GIB:.2f} | {first / median:.2f} |"
            )
        if self.aim:
            lines += ["", self.aim]
        return "\n".join(lines) + "\n"


@dataclass(slots=True)
class Report:
    """The page, section after section."""

    runs: int = 0
    texts: list[str] = field(default_factory=list)

    def add(self, contest: Contest) -> None:
        self.runs = max(self.runs, *(len(values) for values in contest.seconds.values()))
        self.texts.append(contest.table())

    def add_text(self, text: str) -> None:
        self.texts.append(text)

    def write(self, page: Path) -> None:
        machine = (
            f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
        )
        head = _HEAD.format(runs=f"{self.runs} times each", machine=machine, date=datetime.date.today().isoformat())
        page.write_text("\n".join([head, *self.texts]))


def drop_caches() -> None:
    """Write everything out and empty the page cache, where we may."""
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        print("cannot drop the page cache; run as root for cold figures", file=sys.stderr)
