"""Ten terabytes, mounted: what it costs does not grow with the image."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.system.command import Tonne
from tonne.testing.computed import ComputedImage
from tonne.testing.registry import FaultRegistry

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.usefixtures("needs_fuse")]

MIB = 1024 * 1024
FILES = 400
MOUNT_S = 10.0  # on a machine that does much else; the demonstration shows what a quiet one takes


@pytest.fixture(scope="module")
def image() -> ComputedImage:
    return ComputedImage(10 * 10**12, FILES)


@pytest.fixture
def registry(image: ComputedImage) -> Iterator[tuple[FaultRegistry, str]]:
    with FaultRegistry() as running:
        running.add_image("computed/large", "v1", image)
        yield running, f"{running.address}/computed/large:v1"


def peak_bytes(pid: int) -> int:
    """The most memory that a process had at a time."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def read_at(path: Path, offset: int, length: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        return file.read(length)


@pytest.mark.timeout(600)
def test_ten_terabytes_cost_a_mount_almost_nothing(
    image: ComputedImage, registry: tuple[FaultRegistry, str], tmp_path: Path
) -> None:
    served, reference = registry
    tonne, point = Tonne(tmp_path / "cache"), tmp_path / "m"
    begin = time.monotonic()
    with tonne.mounted(reference, point) as mounted:
        assert time.monotonic() - begin < MOUNT_S
        assert served.bytes_sent <= MIB, "the mount fetched more than it needs"
        assert sum(path.stat().st_size for path in point.rglob("*.safetensors")) >= 10 * 10**12

        chance = random.Random(1)

        def check(_: int) -> None:
            file = chance.randrange(FILES)
            offset = chance.randrange(image.file_bytes(file))
            assert read_at(point / image.path(file), offset, 4096) == image.expected(file, offset, 4096)

        with ThreadPoolExecutor(16) as pool:
            for _ in pool.map(check, range(150)):
                pass
        # In order, too, which is where most is on its way at a time.
        for file in (0, FILES - 1):
            start = image.file_bytes(file) - 100 * MIB
            for at in range(start, image.file_bytes(file), 2 * MIB):
                assert read_at(point / image.path(file), at, 2 * MIB) == image.expected(file, at, 2 * MIB)
        assert peak_bytes(mounted["pid"]) < 200 * MIB
