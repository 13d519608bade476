"""Progress as people see it: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TextIO

from tonne.cli.amounts import amount, printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LINE_EVERY_S = 5.0  # between plain lines; a log of an hour stays readable


class Bars:
    """A `tonne.progress.Progress`.  Any thread may call; `close` ends the drawing and may be followed by more of it."""

    def __init__(self, stream: TextIO, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._lock = threading.Lock()
        self._rich: RichProgress | None = None
        self._task: TaskID | None = None
        self._fancy = not quiet and stream.isatty()
        self._what = ""
        self._total: int | None = None
        self._done = 0
        self._shown_s = 0.0
        self._began_s = 0.0

    def begin(self, what: str, total_bytes: int | None = None) -> None:
        with self._lock:
            self._finish()
            self._what, self._total, self._done = what, total_bytes, 0
            self._began_s = self._shown_s = time.monotonic()
            if self._fancy:
                self._rich = self._bar()
                self._task = self._rich.add_task(what, total=total_bytes)
                self._rich.start()

    def advance(self, size_bytes: int) -> None:
        with self._lock:
            self._done += size_bytes
            if self._rich is not None and self._task is not None:
                self._rich.update(self._task, completed=self._done)
            elif not self._quiet and self._what and time.monotonic() - self._shown_s >= LINE_EVERY_S:
                self._line()

    def say(self, line: str) -> None:
        line = printable(line)
        with self._lock:
            if self._quiet:
                return
            if self._rich is not None:
                self._rich.console.print(line, markup=False, highlight=False)
            else:
                print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """End the stage that is drawn.  Idempotent."""
        with self._lock:
            self._finish()

    def _finish(self) -> None:
        if self._rich is not None:
            self._rich.stop()
            self._rich = self._task = None
        self._what = ""

    def _bar(self) -> RichProgress:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        return RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
        )

    def _line(self) -> None:
        self._shown_s = time.monotonic()
        of = (
            f" of {amount(self._total)} ({100 * self._done // max(self._total, 1)} %)"
            if self._total is not None
            else ""
        )
        speed = self._done / max(self._shown_s - self._began_s, 1e-9)
        print(f"{self._what}: {amount(self._done)}{of}, {amount(int(speed))}/s", file=self._stream, flush=True)
