"""The log of a mount process: where it is, and how it stays short."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import threading
from pathlib import Path

from tonne.errors import TonneError

LOG_BYTES_MAX = 4 * 1024 * 1024  # a log that is larger when a mount begins makes way for a new one


def log_file(cache: Path, point: Path) -> Path | None:
    """The log for mounts at `point`, in a folder that is made if need be; None when the cache cannot be written."""
    folder = cache / "mounts"
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", point.name)[:40]
    path = folder / f"{readable}-{hashlib.sha256(os.fsencode(point)).hexdigest()[:8]}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.old"))
        with path.open("ab"):
            return path
    except OSError:
        return None


def logger_to_stderr() -> logging.Logger:
    """A logger of its own that writes dated lines to standard error."""
    logger = logging.Logger("tonne.mount", logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    return logger


class Quiet:
    """Tells an error once, and how often it came again when another one comes: a loader that tries a thousand times
    leaves a line, not a book.  Any thread may call."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._last = ""
        self._again = 0

    def tell(self, error: TonneError) -> None:
        text = f"{error} [{error.code}]"
        with self._lock:
            if text == self._last:
                self._again += 1
                return
            again, self._again, self._last = self._again, 0, text
        if again:
            self._log.warning("that came %d more times", again)
        self._log.warning("%s", text)
