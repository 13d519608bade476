"""Reads through the mount, against the source folder and against curl."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from commands import shell, tonne
from contest import Contest, drop_caches
from tonne.testing.processes import DebianRegistry

READ_BYTES = 1024 * 1024
RANDOM_READS = 400
RANDOM_BYTES = 64 * 1024


def sequential(folder: Path) -> None:
    """Every file from start to end."""
    buffer = bytearray(READ_BYTES)
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def scattered(folder: Path) -> None:
    """The same random places in every run."""
    places = random.Random(5)
    files = sorted(folder.iterdir())
    for _ in range(RANDOM_READS):
        path = places.choice(files)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if not os.pread(descriptor, RANDOM_BYTES, places.randrange(path.stat().st_size - RANDOM_BYTES)):
                raise RuntimeError("nothing read")
        finally:
            os.close(descriptor)


def reading_sections(source: Path, registry: DebianRegistry, work: Path, runs: int) -> Iterator[Contest]:
    """Cold (nothing local), from the store (page cache empty), and warm (page cache full)."""
    reference = f"{registry.address}/bench/read:v1"
    tonne(work / "cache-pack", "pack", source, reference)
    point = work / "point"
    point.mkdir()
    size = sum(path.stat().st_size for path in source.iterdir())
    blobs = [path for path in registry.data.rglob("data") if path.stat().st_size > READ_BYTES]
    mounted = [False]

    def mount(cache: Path) -> None:
        unmount()
        tonne(cache, "mount", reference, point)
        mounted[0] = True

    def unmount() -> None:
        if mounted[0]:
            tonne(work / "cache", "umount", point)
            mounted[0] = False

    def cold() -> None:
        unmount()
        shutil.rmtree(work / "cache", ignore_errors=True)
        shutil.rmtree(work / "curl", ignore_errors=True)
        drop_caches()
        shell(f"cat {' '.join(map(str, blobs))} >/dev/null")
        mount(work / "cache")

    def stored() -> None:
        mount(work / "cache")
        drop_caches()

    def curl(to: str) -> None:
        for number, blob in enumerate(blobs):
            url = f"http://{registry.address}/v2/bench/read/blobs/sha256:{blob.parent.name}"
            shell(f"curl -sS -f -o {to} {url}".format(number=number))

    def curl_to_disk() -> None:
        """The bytes are as safe afterwards as they are in the store of a mount."""
        target = work / "curl"
        target.mkdir()
        curl(f"{target}/{{number}}")
        shell(f"sync {target}/*")

    try:
        for title, prepare, ways, aim in (
            (
                "Sequential read, cold",
                cold,
                {
                    "curl to /dev/null": lambda: curl("/dev/null"),
                    "curl to disk, synced": curl_to_disk,
                    "source folder on ext4, cold": lambda: sequential(source),
                    "tonne mount": lambda: sequential(point),
                },
                "Aim: tonne mount at least 0.5 of curl.",
            ),
            (
                "Sequential read, from the store",
                stored,
                {"source folder on ext4, cold": lambda: sequential(source), "tonne mount": lambda: sequential(point)},
                "",
            ),
            (
                "Sequential read, warm",
                lambda: None,
                {"source folder on ext4, warm": lambda: sequential(source), "tonne mount": lambda: sequential(point)},
                "",
            ),
            (
                "Random reads of 64 KiB, cold",
                cold,
                {"source folder on ext4, cold": lambda: scattered(source), "tonne mount": lambda: scattered(point)},
                "",
            ),
            (
                "Random reads of 64 KiB, warm",
                lambda: None,
                {"source folder on ext4, warm": lambda: scattered(source), "tonne mount": lambda: scattered(point)},
                "",
            ),
        ):
            if title.endswith("warm"):
                sequential(point)
                sequential(source)
            moved = RANDOM_READS * RANDOM_BYTES if title.startswith("Random") else size
            contest = Contest(
                title,
                f"{size / 1024**3:.1f} GiB in four files, content stored raw, one thread.",
                moved,
                ways,
                prepare,
                sync=False,
                aim=aim,
            )
            contest.run(runs)
            yield contest
    finally:
        unmount()
