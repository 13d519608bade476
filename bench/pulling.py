"""Pulling against curl, skopeo and oras."""

from __future__ import annotations

import shutil
from pathlib import Path

from commands import shell, tonne, tonne_json
from contest import Contest, drop_caches
from tonne.testing.processes import DebianRegistry


def pull_contest(source: Path, registry: DebianRegistry, work: Path, runs: int) -> Contest:
    """The same image by all; curl fetches its blobs one after the other, and four at a time."""
    reference = f"{registry.address}/bench/raw:v1"
    tonne(work / "cache-pack", "pack", source, reference)
    packs = [pack["digest"] for pack in tonne_json(work / "cache-pack", "inspect", reference)["packs"]]
    target = work / "target"
    urls = " ".join(f"http://{registry.address}/v2/bench/raw/blobs/{digest}" for digest in packs)

    def by_curl() -> None:
        target.mkdir()
        shell('cd "$TARGET"; for url in $URLS; do curl -sS -f -o "${url##*:}" "$url"; done', TARGET=target, URLS=urls)

    def by_curl_parallel() -> None:
        target.mkdir()
        shell(
            'cd "$TARGET"; printf "%s\\n" $URLS | xargs -P 4 -n 1 sh -c \'curl -sS -f -o "${0##*:}" "$0"\'',
            TARGET=target,
            URLS=urls,
        )

    def by_tonne() -> None:
        tonne(work / "cache-pull", "pull", reference, target)

    def by_skopeo() -> None:
        shell('skopeo copy -q --src-tls-verify=false "docker://$REF" "oci:$TARGET:v1"', REF=reference, TARGET=target)

    def by_oras() -> None:
        target.mkdir()
        shell(
            'cd "$TARGET"; oras copy --from-plain-http --to-oci-layout "$REF" layout:v1', REF=reference, TARGET=target
        )

    def prepare() -> None:
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(work / "cache-pull", ignore_errors=True)
        drop_caches()
        shell(f"find {registry.data} -name data -type f -exec cat {{}} + >/dev/null")

    ways = {
        "curl, one blob after the other": by_curl,
        "curl, four at a time": by_curl_parallel,
        "tonne pull": by_tonne,
        "skopeo copy": by_skopeo,
    }
    if shutil.which("oras"):
        ways["oras copy"] = by_oras
    size = sum(path.stat().st_size for path in source.iterdir())
    contest = Contest(
        title="Pull to disk from docker-registry",
        note=f"{size / 1024**3:.1f} GiB of content that is stored raw, in the registry's page cache; every byte ends "
        "on disk, synced. curl checks nothing; skopeo and oras check SHA-256; tonne checks the BLAKE3 of each frame, "
        "and writes files.",
        size_bytes=size,
        ways=ways,
        prepare=prepare,
        aim="Aim: tonne pull at least 0.7 of curl.",
    )
    contest.run(runs)
    return contest
