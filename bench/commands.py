"""The commands that are measured: ours and those of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def tonne(cache: Path, *arguments: object) -> None:
    """Run the command, its progress and output thrown away."""
    subprocess.run(
        [sys.executable, "-m", "tonne", "--quiet", "--cache", str(cache), *map(str, arguments)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def tonne_json(cache: Path, *arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tonne", "--json", "--quiet", "--cache", str(cache), *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def shell(script: str, **variables: object) -> None:
    """A bash pipeline that fails when any part of it does."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True, env=environment, stdout=subprocess.DEVNULL)
