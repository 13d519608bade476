"""Golden images: the text in golden/*.txt must give these bytes, for ever; ``python -m tests.wire.test_golden`` writes.

A change here is a change of the format: it needs a new version, or a proof that old readers read the new bytes.  Frames
are stored raw in them, and pages are compared before they are compressed, since libzstd may change.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from tests.image.sketch import Made, make, put
from tests.wire.rows import frame_table
from tonne.clock import Deadline
from tonne.image.opening import open_image
from tonne.model import Codec, blake3_of
from tonne.settings import Settings
from tonne.source.memory import MemoryRepository
from tonne.wire.oci import parse_config, parse_manifest
from tonne.wire.pack import TRAILER_BYTES, parse_footer, parse_trailer
from tonne.wire.record import FOOTER
from tonne.wire.root import Part, parse_root

FOLDER = Path(__file__).parent / "golden"
DIGESTS = FOLDER / "digests.json"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def image(name: str) -> Made:
    return make((FOLDER / f"{name}.txt").read_text())


def digests(made: Made) -> dict[str, str]:
    """What must not change: packs, config, and the index page by page as it is before compression."""
    root = parse_root(made.root)
    found = {"config": blake3_of(made.blobs[made.manifest.config.digest]).hex()}
    for place, pack in enumerate(made.packs):
        found[f"pack {place}"] = blake3_of(pack).hex()
    for part, listed in root.parts.items():
        table = listed.pages
        for place in range(len(table)):
            address = table.address(place)
            stored = made.pages[address.offset : address.offset + address.stored_bytes]
            raw = zstandard.ZstdDecompressor().decompress(stored) if address.codec == Codec.ZSTD else stored
            if root.depth == 1:
                found[f"{part.name.lower()} {place}"] = blake3_of(raw).hex()
    return found


def test_there_are_golden_images() -> None:
    assert len(NAMES) >= 4
    assert set(json.loads(DIGESTS.read_text())) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_as_they_were(name: str) -> None:
    assert digests(image(name)) == json.loads(DIGESTS.read_text())[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_image_reads_as_it_was_written(name: str) -> None:
    made = image(name)
    repository = MemoryRepository()
    put(repository, made)
    opened = open_image(repository, "v1", Settings(), Deadline())
    assert list(opened.index.walk(Deadline())) == made.entries
    for inode, extents in made.extents.items():
        assert opened.index.extents(inode, 0, extents[-1].end, Deadline()) == extents
    assert opened.index.frames(range(len(made.frames)), Deadline()) == made.frames
    assert parse_manifest(made.document.data, made.document.media_type, "here") == opened.manifest
    assert opened.manifest.encode() == made.document.data
    assert parse_config(made.blobs[made.manifest.config.digest], "here") == opened.config(Deadline())


@pytest.mark.parametrize("name", NAMES)
def test_the_frames_part_is_the_footers(name: str) -> None:
    """An index that was lost can be rebuilt: docs/format.md, "Packs"."""
    made = image(name)
    rows = []
    for place, data in enumerate(made.packs):
        trailer = parse_trailer(data[-TRAILER_BYTES:], len(data))
        footer = data[trailer.records_offset : trailer.records_offset + trailer.count * FOOTER.itemsize]
        frames, contents = parse_footer(footer, trailer, place)
        assert len(frames) == len(contents)
        rows.append(frames.tobytes())
    assert b"".join(rows) == frame_table(made.frames).tobytes()
    assert len(made.packs) == len(parse_root(made.root).packs)
    assert parse_root(made.root).parts[Part.FRAMES].records == len(made.frames)


if __name__ == "__main__":
    DIGESTS.write_text(json.dumps({name: digests(image(name)) for name in NAMES}, indent=1, sort_keys=True) + "\n")
