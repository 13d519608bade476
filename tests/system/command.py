"""The command `tonne` as a user runs it: a process of its own, with a cache of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class Tonne:
    """Runs verbs with one cache folder."""

    cache: Path

    def arguments(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "tonne", "--cache", str(self.cache), *map(str, words)]

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        """A verb that the caller waits for, or kills."""
        return subprocess.Popen(self.arguments(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        """A verb that must end with that exit status."""
        done = subprocess.run(self.arguments(*words), capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == status, (
            f"{words}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return done

    def json(self, *words: object) -> dict[str, Any]:
        """A verb's result."""
        result: dict[str, Any] = json.loads(self.run("--json", *words).stdout)
        return result

    def error(self, *words: object) -> dict[str, Any]:
        """The error of a verb that must fail."""
        done = subprocess.run(self.arguments("--json", *words), capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode != 0, f"{words} should have failed:\n{done.stdout[-2000:]}"
        found: dict[str, Any] = json.loads(done.stderr.strip().splitlines()[-1])["error"]
        return found

    @contextlib.contextmanager
    def mounted(self, reference: str, point: Path, *options: object) -> Iterator[dict[str, Any]]:
        """Mounted for the time of the `with`; gives the result of `tonne mount`."""
        point.mkdir(parents=True, exist_ok=True)
        result = self.json("mount", reference, point, *options)
        try:
            yield result
        finally:
            self.run("umount", point)
