"""Whether an image will fit the target, found out before gigabytes move."""

from __future__ import annotations

from tonne.errors import BadSettings, TooLarge
from tonne.image.pack.options import LANES, PACK_BYTES_FIRST, PACKS_AIM
from tonne.model.frame import FRAME_BYTES
from tonne.source.seam import SinkFacts

DESCRIPTOR_BYTES = 160  # of a pack in a manifest: 147, and some for sizes of more digits
MANIFEST_REST_BYTES = 4096  # everything else in it but annotations
PACK_BYTES_MIN = 2 * FRAME_BYTES  # a frame and its footer, with room


def choose_pack_bytes(content_bytes: int, wanted_bytes: int | None, facts: SinkFacts) -> int:
    """The size up to which packs are filled, footer included.

    `BadSettings` when `wanted_bytes` is too small, `TooLarge` when it is more than the target takes.
    """
    limit = facts.blob_bytes_max
    if wanted_bytes is not None:
        if wanted_bytes < PACK_BYTES_MIN:
            raise BadSettings("the pack size is too small", where=str(wanted_bytes), why=f"at least {PACK_BYTES_MIN}")
        if limit is not None and wanted_bytes > limit:
            raise TooLarge("the registry takes no blob of the pack size", limit_bytes=limit, pack_bytes=wanted_bytes)
        return wanted_bytes
    size = PACK_BYTES_FIRST
    while content_bytes > size * PACKS_AIM:
        size *= 2
    return size if limit is None else min(size, limit)


def check_manifest(
    content_bytes: int, pack_bytes: int, base_packs: int, annotations_bytes: int, facts: SinkFacts
) -> None:
    """Raise `TooLarge` when the manifest of an image that packs to nothing smaller would not be taken."""
    limit = facts.manifest_bytes_max
    packs = content_bytes // pack_bytes + LANES + base_packs
    size = packs * DESCRIPTOR_BYTES + MANIFEST_REST_BYTES + annotations_bytes
    if limit is not None and size > limit:
        raise TooLarge(
            "the manifest would be larger than the registry takes",
            why=f"{packs} packs need up to {size} bytes, {limit} are allowed",
            todo="choose a larger --pack-size, as far as the registry takes such blobs",
            limit_bytes=limit,
            pack_bytes=pack_bytes,
        )
