"""Packing against `tar | zstd` to the same registry."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from commands import shell, tonne
from contest import Contest
from tonne.testing.processes import DebianRegistry

# One PATCH of a stream, hashed on the way, and a PUT: the least that a push of a tar can be.
_TAR = r"""
location_of() { tr -d '\r' | sed -n 's/^[Ll]ocation: //p'; }
location=$(curl -sS -X POST -D - -o /dev/null "http://$ADDRESS/v2/$NAME/blobs/uploads/" | location_of)
mkfifo "$WORK/fifo"
sha256sum <"$WORK/fifo" >"$WORK/sum" &
location=$(tar -C "$SOURCE" -c . | zstd -q -3 -T2 | tee "$WORK/fifo" |
    curl -sS -X PATCH -H 'Content-Type: application/octet-stream' -T - -D - -o /dev/null "$location" |
    location_of)
wait
digest=$(cut -d' ' -f1 "$WORK/sum")
rm "$WORK/fifo" "$WORK/sum"
curl -sS -f -X PUT "$location&digest=sha256:$digest"
"""


def pack_contest(source: Path, registry: DebianRegistry, work: Path, runs: int) -> Contest:
    """Each run packs to a repository of its own, so that nothing is found there."""
    number = itertools.count()

    def by_tar() -> None:
        shell(_TAR, ADDRESS=registry.address, NAME=f"tar/{next(number)}", SOURCE=source, WORK=work)

    def by_tonne() -> None:
        tonne(work / "cache", "pack", source, f"{registry.address}/tonne/{next(number)}:v1")

    def prepare() -> None:
        shutil.rmtree(work / "cache", ignore_errors=True)
        shutil.rmtree(registry.data, ignore_errors=True)
        shell(f"find {source} -type f -exec cat {{}} + >/dev/null")

    size = sum(path.stat().st_size for path in source.iterdir())
    contest = Contest(
        title="Pack bf16 weights into docker-registry",
        note=f"{size / 1024**3:.1f} GiB of Gaussian bf16 weights, source in the page cache. The first way is `tar`, "
        "`zstd -3 -T2`, `sha256sum` and `curl` in one pipe, with no file between.",
        size_bytes=size,
        ways={"tar, zstd -3 -T2, curl": by_tar, "tonne pack": by_tonne},
        prepare=prepare,
        aim="Aim: at least 1.0.",
    )
    contest.run(runs)
    return contest
