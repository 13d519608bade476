"""What there is to say of an image without reading its content: for `inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tonne.clock import Deadline
from tonne.image.opening import Image
from tonne.model import Digest
from tonne.wire.oci import Config
from tonne.wire.root import Pack, Root


@dataclass(frozen=True, slots=True)
class ImageReport:
    """Taken from manifest, root and config; costs one small read beyond opening.  Lengths in bytes.

    `stored_bytes`: all packs; `used_bytes`: the frames in them that files of the image use; `index_bytes`: root and
    pages.
    """

    digest: Digest
    config: Config
    root: Root
    annotations: dict[str, str]
    stored_bytes: int
    used_bytes: int
    index_bytes: int

    def document(self) -> dict[str, Any]:
        """All of it as a JSON-ready mapping, with every pack."""
        totals = self.root.totals
        return {
            "digest": str(self.digest),
            "formatVersion": 1,
            "features": {"incompatible": self.root.incompatible, "compatible": self.root.compatible},
            "contentBytes": totals.content_bytes,
            "storedBytes": self.stored_bytes,
            "usedBytes": self.used_bytes,
            "indexBytes": self.index_bytes,
            "entries": totals.entries,
            "files": totals.files,
            "frames": self.root.frames,
            "indexDepth": self.root.depth,
            "encoder": self.config.encoder,
            "options": dict(self.config.options),
            "bases": [str(digest) for digest in self.config.bases],
            "new": {
                "frames": self.config.new_frames,
                "contentBytes": self.config.new_content_bytes,
                "storedBytes": self.config.new_stored_bytes,
            },
            "annotations": self.annotations,
            "packs": [_pack_document(pack) for pack in self.root.packs],
        }


def _pack_document(pack: Pack) -> dict[str, Any]:
    return {
        "digest": str(pack.digest),
        "kind": pack.kind.name.lower(),
        "sizeBytes": pack.size_bytes,
        "usedBytes": pack.used_bytes,
        "firstFrame": pack.first_frame,
        "frames": pack.frames,
    }


def report_of(image: Image, deadline: Deadline) -> ImageReport:
    """Describe an open image."""
    root = image.index.root
    return ImageReport(
        digest=image.digest,
        config=image.config(deadline),
        root=root,
        annotations=dict(image.manifest.annotations),
        stored_bytes=sum(pack.size_bytes for pack in root.packs),
        used_bytes=sum(pack.used_bytes for pack in root.packs),
        index_bytes=image.manifest.root.size_bytes + image.manifest.pages.size_bytes,
    )
