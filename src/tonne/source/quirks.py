"""What is known of particular registries, as data.

Each row names hosts by shell patterns; the first that matches counts.  Sizes are the smaller of what vendors document
and what users report: a pack that is refused after an hour costs more than one that is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tonne.settings import GIB, MIB
from tonne.source.seam import SinkFacts


@dataclass(frozen=True, slots=True)
class Quirk:
    """Hosts by pattern, what holds for them, and the reason."""

    hosts: tuple[str, ...]
    facts: SinkFacts
    reason: str


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        ("*.azurecr.io", "*.azurecr.cn", "*.azurecr.us"),
        SinkFacts(chunk_bytes=16 * MIB, chunk_bytes_max=19 * MIB, blob_bytes_max=200 * GIB),
        "documented: layers of 200 GiB; requests over about 20 MB were answered 413",
    ),
    Quirk(
        ("*.dkr.ecr.*.amazonaws.com", "*.dkr.ecr.*.amazonaws.com.cn", "*.dkr-ecr.*.on.aws"),
        SinkFacts(chunked=False, blob_bytes_max=40_000_000_000),
        "the bodies of second and later PATCHes were dropped; 4,200 parts of 10 MiB are the ceiling",
    ),
    Quirk(
        ("public.ecr.aws",),
        SinkFacts(chunked=False, blob_bytes_max=10_000 * MIB),
        "documented: 10,000 MiB a layer",
    ),
    Quirk(
        ("ghcr.io",),
        SinkFacts(chunked=False, blob_bytes_max=10_000_000_000),
        "a PATCH over 4 MiB is answered 416, and its Range says 0; documented: 10 GB a layer",
    ),
    Quirk(
        ("*.pkg.dev", "gcr.io", "*.gcr.io"),
        SinkFacts(chunked=False, blob_bytes_max=10 * GIB),
        "no chunked uploads; about 10 GiB a layer",
    ),
    Quirk(
        ("docker.io", "index.docker.io", "registry-1.docker.io"),
        SinkFacts(blob_bytes_max=10_000_000_000),
        "about 10 GB in practice",
    ),
    Quirk(
        ("swr.*.myhuaweicloud.com", "*.myhuaweicloud.com"),
        SinkFacts(blob_bytes_max=10_000_000_000),
        "documented: 10 GB a layer",
    ),
)


def facts_of(host: str) -> SinkFacts:
    """What is known of the registry at `host` (a port is ignored); the defaults when nothing is."""
    bare = host.lower().rsplit(":", 1)[0] if host.rsplit(":", 1)[-1].isdigit() else host.lower()
    for quirk in QUIRKS:
        if any(fnmatchcase(bare, pattern) for pattern in quirk.hosts):
            return quirk.facts
    return SinkFacts()
