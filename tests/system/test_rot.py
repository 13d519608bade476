"""Bits that flip in the cache or on the wire never reach a reader, and are made good."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.system.command import Tonne
from tests.system.kills import MIB, fetched
from tests.system.trees import Facts, differences, facts_of
from tonne.settings import Settings
from tonne.testing.faults import Fault, WrongBytes
from tonne.testing.registry import FaultRegistry

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.usefixtures("needs_fuse")]

FLIPS = 30
FRAME_BYTES = 4 * MIB
NOISE_BYTES = Settings().read.decoded_cache_bytes + 20 * MIB + 5  # a mount cannot keep all of it in memory


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of a file of the cache."""

    path: Path
    offset: int

    @property
    def blob(self) -> str:
        """The digest that it belongs to."""
        name = self.path.parent.name if self.path.name == "data" else self.path.name
        return name.replace("-", ":", 1)

    def value(self) -> int:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(1)[0]

    def flip(self, bit: int) -> None:
        """As a disk does it: neither length nor times tell."""
        state = self.path.stat()
        value = self.value() ^ (1 << bit)
        with open(self.path, "r+b") as file:
            file.seek(self.offset)
            file.write(bytes([value]))
        os.utime(self.path, ns=(state.st_atime_ns, state.st_mtime_ns))


class Stage:
    """An image with frames that pack and some that do not, in a registry that counts, and a command with a cache."""

    def __init__(self, folder: Path, registry: FaultRegistry) -> None:
        self.source = folder / "source"
        self.source.mkdir()
        noise = np.random.default_rng(8)
        (self.source / "noise").write_bytes(noise.bytes(NOISE_BYTES))
        (self.source / "text").write_bytes(b"".join(b"%08d\n" % n for n in range(1_500_000)))
        for number in range(300):
            (self.source / f"small-{number:03}").write_bytes(noise.bytes(number * 17))
        self.registry = registry
        self.reference = f"{registry.address}/rot/image:v1"
        self.tonne = Tonne(folder / "cache")
        self.point = folder / "mounted"
        packing = Tonne(folder / "cache-of-pack")
        self.digest = packing.json("pack", self.source, self.reference, "--pack-size", "16MiB")["digest"]
        self.expected: dict[bytes, Facts] = facts_of(self.source)

    def check_all(self, *options: object) -> int:
        """Mount, compare everything, unmount; the bytes that were fetched."""
        since = len(self.registry.requests)
        with self.tonne.mounted(self.reference, self.point, *options):
            assert differences(self.expected, facts_of(self.point)) == []
        return fetched(self.registry, since)

    def blobs(self) -> list[Path]:
        return sorted((self.tonne.cache / "blobs").glob("*/data"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with FaultRegistry(folder=tmp_path / "registry") as registry:
        yield Stage(tmp_path, registry)


def random_places(stage: Stage, paths: list[Path], count: int, chance: random.Random) -> list[Place]:
    """Bytes that the cache holds of these blobs, each equally likely, but at least one of each; no byte twice."""
    ranges: list[tuple[Path, int, int]] = []
    for path in paths:
        for record in stage.registry.asked("blob-get", subject=Place(path, 0).blob):
            ranges.append((path, *(record.range or (0, record.sent_bytes))))
    first = [chance.choice([item for item in ranges if item[0] == path]) for path in paths]
    chosen = first + chance.choices(ranges, [end - start for _, start, end in ranges], k=count - len(first))
    return list(dict.fromkeys(Place(path, chance.randrange(start, end)) for path, start, end in chosen))


def asked_for(stage: Stage, place: Place, since: int) -> bool:
    """Whether a byte was asked of the registry."""
    for record in stage.registry.requests[since:]:
        if record.kind == "blob-get" and record.subject == place.blob:
            start, end = record.range or (0, record.sent_bytes)
            if start <= place.offset < end:
                return True
    return False


@pytest.mark.parametrize("seed", [1, 2])
def test_rot_in_cached_frames_and_pages(stage: Stage, seed: int) -> None:
    chance = random.Random(seed)
    assert stage.check_all() > NOISE_BYTES
    assert stage.check_all() == 0, "all of it is in the cache"
    assert len(stage.blobs()) >= 4, "pages, and packs"
    places = random_places(stage, stage.blobs(), FLIPS, chance)
    assert len(places) > FLIPS // 2
    before = {place: place.value() for place in places}
    for place in places:
        place.flip(chance.randrange(8))
    assert all(place.value() != before[place] for place in places)
    since = len(stage.registry.requests)
    got = stage.check_all()
    needless = [place for place in places if not asked_for(stage, place, since)]
    assert needless == [], "a flip that nobody noticed"
    assert got < len(places) * 2 * FRAME_BYTES, "more was fetched than the bad frames"
    assert all(place.value() == before[place] for place in places), "the cache is not healed"
    assert stage.check_all() == 0, "the cache is healed"


def test_rot_in_cached_documents(stage: Stage) -> None:
    chance = random.Random(3)
    # By digest: then the manifest is read from the cache too.
    stage.reference = f"{stage.reference.rpartition(':')[0]}@{stage.digest}"
    stage.check_all()
    documents = [path for path in (stage.tonne.cache / "documents").glob("*") if path.is_file()]
    assert len(documents) >= 2, "manifest and root"
    for path in documents:
        place = Place(path, chance.randrange(path.stat().st_size))
        right = place.value()
        place.flip(chance.randrange(8))
        assert place.value() != right
        since = len(stage.registry.requests)
        stage.check_all()
        again = [record for record in stage.registry.requests[since:] if record.subject == place.blob]
        assert again, "nobody noticed"
        assert place.value() == right, "healed"
    assert stage.check_all() == 0


def test_rot_under_a_mount(stage: Stage) -> None:
    """A frame that was right when it was read first rots before it is read again."""
    chance = random.Random(4)
    with stage.tonne.mounted(stage.reference, stage.point):
        assert differences(stage.expected, facts_of(stage.point)) == []
        packs = [path for path in stage.blobs() if path.stat().st_size > MIB]
        places = random_places(stage, packs, 12, chance)
        before = {place: place.value() for place in places}
        for place in places:
            place.flip(chance.randrange(8))
        for name in ("noise", "text"):
            with open(stage.point / name, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        since = len(stage.registry.requests)
        assert differences(stage.expected, facts_of(stage.point)) == []
        met = [place for place in places if asked_for(stage, place, since)]
    # The rest was in memory still; it is read from the disk now.
    stage.check_all()
    assert all(asked_for(stage, place, since) for place in places), "a flip that nobody noticed"
    assert met, "all of it was in memory"
    assert {place: place.value() for place in places} == before


# --- the wire ---


def test_wrong_bytes_on_the_wire(stage: Stage, tmp_path: Path) -> None:
    """Now and then, anywhere: readers and pulls see nothing of it."""
    chance = random.Random(5)
    for nth in (1, 3, 5, 7, 9):  # so that the attempts of one request do not all fail
        offset = chance.choice([0, -1, chance.randrange(100), -chance.randrange(1, 100)])
        stage.registry.faults.add(Fault("blob-get", WrongBytes(offset, chance.randrange(8)), nth=nth))
    assert stage.check_all() > NOISE_BYTES
    fired = len(stage.registry.faults.fired)
    assert fired > 3, "hardly a byte was wrong"
    assert stage.check_all("--no-cache") > 60 * MIB
    for nth in (1, 3, 5):
        stage.registry.faults.add(Fault("blob-get", WrongBytes(-1), nth=nth))
    Tonne(tmp_path / "other").run("pull", stage.reference, tmp_path / "pulled")
    assert differences(stage.expected, facts_of(tmp_path / "pulled")) == []
    assert len(stage.registry.faults.fired) > fired, "no byte of the pull was wrong"


def test_always_wrong_is_an_error_and_nothing_else(stage: Stage) -> None:
    words = ("--attempts", 2, "--no-cache", "mount", stage.reference, stage.point)
    stage.point.mkdir()
    stage.tonne.run(*words)
    try:
        stage.registry.faults.add(Fault("blob-get", WrongBytes(1000), times=None))
        for name in ("noise", "text", "small-299"):
            with open(stage.point / name, "rb", buffering=0) as file, pytest.raises(OSError) as caught:
                file.read(100)
            assert caught.value.errno == errno.EIO
        assert stage.registry.faults.fired
        stage.registry.faults.clear()
        assert differences(stage.expected, facts_of(stage.point)) == [], "a failure is not remembered"
    finally:
        stage.tonne.run("umount", stage.point)
