"""The log of a mount process: where it is, and how it stays short."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tonne.clock import SYSTEM_CLOCK, Clock
from tonne.errors import TonneError

LOG_BYTES_MAX = 4 * 1024 * 1024  # a log that is larger makes way for a new one; the one before it is kept
LINES_A_MINUTE = 6  # of one code of errors; more tell a reader of the log nothing that the count does not
MINUTE_S = 60.0


def log_path(cache: Path, point: Path) -> Path:
    """Where the log for mounts at `point` is."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", point.name)[:40]
    return cache / "mounts" / f"{readable}-{hashlib.sha256(os.fsencode(point)).hexdigest()[:8]}.log"


def log_file(cache: Path, point: Path) -> Path | None:
    """The log for mounts at `point`, in a folder that is made if need be; None when the cache cannot be written."""
    path = log_path(cache, point)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(_old(path))
        with path.open("ab"):
            return path
    except OSError:
        return None


def logger_to_stderr(file: Path | None = None, bytes_max: int = LOG_BYTES_MAX) -> logging.Logger:
    """A logger of its own that writes dated lines to standard error.

    Where that is `file`, it makes way for a new one whenever it has become larger than `bytes_max`.
    """
    logger = logging.Logger("tonne.mount", logging.INFO)
    ours = file is not None and _goes_to(file)
    handler = _Renewed(file, bytes_max) if file is not None and ours else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    return logger


def _goes_to(file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), file.stat())
    except (OSError, ValueError):
        return False


class _Renewed(logging.StreamHandler[TextIO]):
    """Writes to standard error, and puts a new file behind both outputs when that has grown: what libfuse and
    fusermount3 say goes there too.  Its lock is logging's."""

    def __init__(self, file: Path, bytes_max: int) -> None:
        super().__init__(sys.stderr)
        self._file = file
        self._bytes_max = bytes_max

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        try:
            if os.fstat(sys.stderr.fileno()).st_size > self._bytes_max:
                self._renew()
        except OSError:
            pass  # the disk is full or read-only: what is there is written on

    def _renew(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it
            self._file.replace(_old(self._file))
        with self._file.open("ab") as new:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(new.fileno(), stream.fileno())


def _old(file: Path) -> Path:
    return file.with_suffix(".log.old")


@dataclass(slots=True)
class _Minute:
    """What was told of one code since `began_s`, and how many more there were."""

    began_s: float
    texts: set[str] = field(default_factory=set)
    more: int = 0


class Quiet:
    """Tells errors so that a log stays short: `LINES_A_MINUTE` of each code, each text once, and how many more there
    were.  A loader that tries a thousand times, or a weekend without the registry, leaves a page, not a book.

    Any thread may call.  `_minutes`, by code, is guarded by `_lock`.
    """

    def __init__(self, log: logging.Logger, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._minutes: dict[str, _Minute] = {}

    def tell(self, error: TonneError) -> None:
        text = f"{error} [{error.code}]"
        if self._is_news(error.code, text):
            self._log.warning("%s", text)

    def defect(self, error: Exception) -> None:
        """An error that should not be, with its traceback."""
        if self._is_news(TonneError.code, repr(error)):
            self._log.error("a defect in tonne", exc_info=error)

    def close(self) -> None:
        """Tell what was not told.  May be followed by more errors."""
        self._end(lambda minute: True)

    def _is_news(self, code: str, text: str) -> bool:
        now_s = self._clock.now_s()
        self._end(lambda minute: now_s - minute.began_s >= MINUTE_S)
        with self._lock:
            minute = self._minutes.setdefault(code, _Minute(now_s))
            if text in minute.texts or len(minute.texts) >= LINES_A_MINUTE:
                minute.more += 1
                return False
            minute.texts.add(text)
            return True

    def _end(self, over: Callable[[_Minute], bool]) -> None:
        now_s = self._clock.now_s()
        with self._lock:
            ended = [(code, minute) for code, minute in self._minutes.items() if over(minute)]
            for code, _ in ended:
                del self._minutes[code]
        for code, minute in ended:
            if minute.more:
                self._log.warning("%d more of [%s] in %.0f s", minute.more, code, now_s - minute.began_s)
