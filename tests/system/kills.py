"""kill -9 of a verb at a chosen moment, and what a registry or a folder holds after it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.system.command import Tonne
from tonne.testing.processes import DebianRegistry
from tonne.testing.registry import FaultRegistry

MIB = 1024 * 1024
LIMIT_S = 240.0
POLL_S = 0.002
STILL_S = 0.3  # nothing changed for so long: what was on its way has come
LANES = 4


def make_model(folder: Path, shards: int = 4, shard_bytes: int = 40 * MIB) -> Path:
    """Shards that do not pack, and small files."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(5)
    for shard in range(shards):
        (folder / f"shard-{shard}").write_bytes(noise.bytes(shard_bytes))
    (folder / "parts").mkdir()
    for place in range(30):
        (folder / "parts" / f"{place}.json").write_text(f'{{"place": {place}}}' * place)
    return folder


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: at a share of the bytes, or at a share of the time that an uninterrupted run took."""

    share: float
    by_bytes: bool

    def __str__(self) -> str:
        return f"{self.share:.3f} of the {'bytes' if self.by_bytes else 'time'}"


def moments(seed: int, count: int) -> Iterator[Moment]:
    """Random ones, spread over the whole: in turn by bytes, which hits while bytes move however slow the machine is,
    and by time, which hits what comes before and after them too."""
    chance = random.Random(seed)
    halves = (count + 1) // 2
    for turn in range(count):
        share = (turn // 2 + chance.random()) / halves
        yield Moment(0.02 + 0.93 * share, True) if turn % 2 == 0 else Moment(share, False)


class Killer:
    """Starts verbs and kills them; temporary files go to a folder of its own, so that they can be counted."""

    def __init__(self, tonne: Tonne, temporary: Path) -> None:
        self.tonne = tonne
        self.temporary = temporary
        temporary.mkdir()

    def kill(self, moment: Moment, took_s: float, total: int, moved: Callable[[], int], *words: object) -> bool:
        """Kill the verb, a process group, at a moment; False when it had ended before that.

        `moved`: how many of the `total` bytes were moved until now.
        """
        process = subprocess.Popen(
            self.tonne.arguments(*words),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )
        began_s = time.monotonic()
        try:
            while process.poll() is None:
                assert time.monotonic() - began_s < LIMIT_S
                if moved() >= moment.share * total if moment.by_bytes else _since(began_s) >= moment.share * took_s:
                    break
                time.sleep(POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        _, told = process.communicate(timeout=LIMIT_S)
        assert process.returncode in (0, -signal.SIGKILL), told[-2000:]
        return process.returncode == -signal.SIGKILL

    def leftovers(self) -> list[Path]:
        """Temporary files, and what the cache holds of work that is done."""
        found = list(self.temporary.rglob("*"))
        for name in ("pack", "copy"):
            found += (self.tonne.cache / name).rglob("*")
        return found + [path for path in self.tonne.cache.rglob("*") if path.suffix in (".new", ".tmp")]


def _since(began_s: float) -> float:
    return time.monotonic() - began_s


def settled(count: Callable[[], int]) -> int:
    """The count, once it does not change any more: a server reads on what a dead client had sent."""
    end_s = time.monotonic() + LIMIT_S
    last, since_s = count(), time.monotonic()
    while time.monotonic() - since_s < STILL_S:
        assert time.monotonic() < end_s
        time.sleep(0.02)
        now = count()
        if now != last:
            last, since_s = now, time.monotonic()
    return last


# --- what registries hold ---


def held_by(registry: FaultRegistry, repository: str) -> int:
    """Bytes of a repository's blobs, and of uploads on their way there."""
    uploads = [upload for upload in registry.contents.uploads() if upload.repository == repository]
    sizes = [upload.size_bytes for upload in uploads if not upload.gone]
    for digest in registry.contents.digests(repository):
        content = registry.contents.blob(repository, digest)
        assert content is not None
        sizes.append(content.size_bytes)
    return sum(sizes)


def forgotten_uploads(registry: FaultRegistry, repository: str) -> list[int]:
    """The bytes of each upload that is in progress, but for those of which nobody alive was told: a process that dies
    before the answer to its POST, or before it can note it, leaves an empty one, which registries remove in time."""
    used = {record.subject for record in registry.requests if record.kind.startswith("upload-") and record.subject}
    uploads = [upload for upload in registry.contents.uploads() if upload.repository == repository]
    unknown = [upload for upload in uploads if upload.id not in used and not upload.size_bytes]
    assert len(unknown) <= LANES, "more than can have been on their way"
    return [upload.size_bytes for upload in uploads if upload not in unknown]


def received(registry: FaultRegistry, repository: str, since: int = 0) -> int:
    """Body bytes that came for blobs in a repository, from the `since`-th record on."""
    kinds = ("upload-start", "upload-patch", "upload-finish")
    return sum(
        record.received_bytes
        for record in registry.requests[since:]
        if record.repository == repository and record.kind in kinds
    )


def fetched(registry: FaultRegistry, since: int = 0) -> int:
    """Body bytes of blobs that were sent to clients, from the `since`-th record on."""
    return sum(record.sent_bytes for record in registry.requests[since:] if record.kind == "blob-get")


class DebianFiles:
    """What Debian's docker-registry has of one repository on its disk."""

    def __init__(self, registry: DebianRegistry, repository: str) -> None:
        root = registry.data / "docker" / "registry" / "v2"
        self._blobs = root / "blobs" / "sha256"
        self._repository = root / "repositories" / repository
        self._log = registry.log

    def stored(self) -> int:
        """Bytes of its blobs."""
        links = (self._repository / "_layers" / "sha256").glob("*/link")
        names = [path.parent.name for path in links]
        return sum(_size(self._blobs / name[:2] / name / "data") for name in names)

    def uploads(self) -> dict[str, int]:
        """Bytes of each session that is open.  What a committed one leaves is an empty folder of hashes."""
        folders = (self._repository / "_uploads").glob("*")
        return {path.name: _size(path / "data") for path in folders if (path / "startedat").exists()}

    def moved(self) -> int:
        return self.stored() + sum(self.uploads().values())

    def forgotten_uploads(self) -> list[str]:
        """Sessions that a client could have gone on with or cancelled, and did not.

        Not those for which it asked and got 404: so this registry answers when a PATCH was cut or its answer was lost,
        then to all that is asked of them, and removes their files when they are a week old.  Nor those of which nobody
        alive was told.
        """
        lines = self._log.read_text(errors="replace").splitlines()
        ended = "\n".join(line for line in lines if '"GET /v2' in line and 'HTTP/1.1" 404' in line)
        used = "\n".join(line for line in lines if '"PATCH /v2' in line or '"PUT /v2' in line)
        return [name for name, size in self.uploads().items() if name not in ended and (size or name in used)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
