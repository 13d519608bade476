"""The command as a process of its own, without a cache unless a test gives one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

COMMAND = [sys.executable, "-m", "tonne"]
LIMIT_S = 60.0


def run(*words: object, status: int = 0, cache: object = None) -> subprocess.CompletedProcess[bytes]:
    """Run it; it must end with that status, and must not show a traceback."""
    where = ["--cache", str(cache)] if cache is not None else ["--no-cache"]
    done = subprocess.run(
        [*COMMAND, *where, *(os.fsencode(word) if isinstance(word, str) else str(word) for word in words)],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    assert b"Traceback" not in done.stderr
    return done


def document(*words: object, status: int = 0) -> Any:
    """Run it with --json; what it printed."""
    return json.loads(run("--json", *words, status=status).stdout)


def error(*words: object, status: int) -> dict[str, Any]:
    """Run it with --json; the error that it must end with, which is the last line on stderr."""
    done = run("--json", *words, status=status)
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])["error"]
    return found
