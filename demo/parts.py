"""What the demo drives: the command `tonne`, and a server of computed content."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes  # noqa: F401  # registers bfloat16 with NumPy, for safetensors
import numpy as np
from safetensors import safe_open

from tonne.testing.computed import ComputedImage
from tonne.testing.registry import FaultRegistry

READ_BYTES = 4 * 1024 * 1024


class Tonne:
    """The command, with a cache folder of its own."""

    def __init__(self, cache: Path) -> None:
        self._base = [sys.executable, "-m", "tonne", "--cache", str(cache)]

    def run(self, *arguments: object) -> None:
        """Run a verb; its output is the user's to see."""
        subprocess.run([*self._base, *map(str, arguments)], check=True)

    def json(self, *arguments: object) -> dict[str, Any]:
        """Run a verb for its result."""
        done = subprocess.run([*self._base, "--json", *map(str, arguments)], check=True, stdout=subprocess.PIPE)
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    @contextlib.contextmanager
    def mounted(self, reference: str, point: Path) -> Iterator[int]:
        """Mount for the time of the `with`; gives the pid of the process that serves the mount."""
        pid = self.json("mount", reference, point)["pid"]
        try:
            yield pid
        finally:
            self.run("--quiet", "umount", point)


class Computed:
    """An image of computed content on loopback, and random reads of it that are compared with what they must be."""

    def __init__(self, size_bytes: int, files: int) -> None:
        self._image = ComputedImage(size_bytes, files)
        self._registry = FaultRegistry()

    def __enter__(self) -> Computed:
        self._registry.start()
        self.reference = self._registry.add_image("computed", "v1", self._image)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._registry.stop()

    def bytes_sent(self) -> int:
        return self._registry.bytes_sent

    def check_random_reads(self, point: Path, reads: int) -> tuple[int, int]:
        """Read 4 KiB at random places all over the image; how many were wrong, and how many bytes were read."""
        places = random.Random(1)
        wrong = total = 0
        for _ in range(reads):
            file = places.randrange(self._image.files)
            offset = places.randrange(self._image.file_bytes(file))
            with (point / self._image.path(file)).open("rb", buffering=0) as handle:
                data = os.pread(handle.fileno(), 4096, offset)
            wrong += data != self._image.expected(file, offset, 4096)
            total += len(data)
        return wrong, total


def compare_tensors(source: Path, mounted: Path, only_first: bool = False) -> Any:
    """Load tensors of a safetensors file from both places and compare their bits; the first's name, or how many."""
    with safe_open(source, framework="numpy") as ours, safe_open(mounted, framework="numpy") as theirs:
        names = list(ours.keys())
        if names != list(theirs.keys()):
            raise SystemExit(f"{mounted}: other tensors than in the source")
        for name in names[:1] if only_first else names:
            a, b = ours.get_tensor(name), theirs.get_tensor(name)
            if a.dtype != b.dtype or a.shape != b.shape or not np.array_equal(a.view(np.uint8), b.view(np.uint8)):
                raise SystemExit(f"{mounted}: tensor {name} differs from the source")
        return names[0] if only_first else len(names)


def read_all_s(folder: Path) -> tuple[int, float]:
    """Read every file once, in order; bytes and seconds."""
    buffer = bytearray(READ_BYTES)
    size = 0
    began = time.perf_counter()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    size += count
    return size, time.perf_counter() - began
