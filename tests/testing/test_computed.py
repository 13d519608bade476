"""Computed images: every byte of small ones, and the far ends of large ones."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from tonne.clock import Deadline
from tonne.image.opening import open_image
from tonne.image.view import View
from tonne.model import Blob, Digest, blake3_of, parse_reference
from tonne.settings import Settings
from tonne.source.compose import open_repository
from tonne.testing.computed import ComputedImage
from tonne.testing.computed_files import PERIOD, TAIL_BYTES, ComputedFiles
from tonne.testing.registry import FaultRegistry
from tonne.testing.registry_body import all_bytes
from tonne.wire.oci import MANIFEST_TYPE, ImageManifest, parse_config, parse_manifest
from tonne.wire.pack import TRAILER_BYTES, parse_footer, parse_trailer
from tonne.wire.record import FOOTER
from tonne.wire.root import Part, parse_root

NO_END = Deadline()


def small(files: int = 3, frames: int = 70, frame_bytes: int = 4096, pack_bytes: int = 40 * 4096) -> ComputedImage:
    """Several packs a file, each of whole periods."""
    return ComputedImage(files * (frames * frame_bytes + TAIL_BYTES), files, 5, pack_bytes, frame_bytes)


def blob(image: ComputedImage, wanted: Blob) -> bytes:
    found = image.blobs[wanted.digest]
    assert found.size_bytes == wanted.size_bytes
    return all_bytes(found)


def manifest_of(image: ComputedImage) -> ImageManifest:
    return parse_manifest(image.manifest, MANIFEST_TYPE, "computed")


SHAPES = st.builds(
    lambda files, size, frame, pack, seed: ComputedImage(files * size, files, seed, pack * frame, frame),
    st.integers(1, 120),
    st.integers(1, 120_000),
    st.sampled_from([512, 1000, 4096]),
    st.integers(1, 100),
    st.integers(0, 1 << 40),
)


@given(SHAPES)
@settings(max_examples=25)
def test_every_blob_has_its_digest_and_every_footer_its_frames(image: ComputedImage) -> None:
    manifest = manifest_of(image)
    assert Digest.of(image.manifest) == image.digest
    assert {item.digest for item in manifest.blobs} == set(image.blobs)
    assert len(manifest.packs) == len({item.digest for item in manifest.packs})
    root = parse_root(blob(image, manifest.root.blob))
    assert [(pack.digest, pack.size_bytes) for pack in root.packs] == [
        (item.digest, item.size_bytes) for item in manifest.packs
    ]
    for item in manifest.blobs:
        assert item.digest.matches(blob(image, item.blob))
    for number, pack in enumerate(root.packs):
        data = blob(image, pack.blob)
        trailer = parse_trailer(data[-TRAILER_BYTES:], len(data))
        assert (trailer.count, trailer.salt) == (pack.frames, pack.salt)
        body = data[trailer.records_offset : trailer.records_offset + trailer.count * FOOTER.itemsize]
        frames, _ = parse_footer(body, trailer, number)
        for row in frames:
            start = int(row["offset"])
            assert blake3_of(data[start : start + int(row["stored_bytes"])]) == row["digest"].tobytes()
    config = parse_config(blob(image, manifest.config.blob), "computed")
    assert (config.files, config.content_bytes) == (image.files, image.total_bytes)


@given(st.data())
@settings(max_examples=60)
def test_any_range_of_a_blob_is_that_part_of_it(data: st.DataObject) -> None:
    image = data.draw(st.sampled_from(IMAGES))
    found = data.draw(st.sampled_from(sorted(image.blobs.items())))[1]
    whole = all_bytes(found)
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(1, len(whole) - start))
    assert b"".join(bytes(piece) for piece in found.pieces(start, length)) == whole[start : start + length]


IMAGES = [small(), small(files=1, frames=1), small(files=120, frames=2)]


@pytest.fixture
def registry() -> Iterator[FaultRegistry]:
    with FaultRegistry() as found:
        yield found


def opened(registry: FaultRegistry, image: ComputedImage) -> View:
    """The image as a reader has it, straight from the registry."""
    reference = parse_reference(registry.add_image("computed/test", "v1", image))
    repository = open_repository(reference, Settings())
    return View(open_image(repository, reference.name, Settings(), NO_END), Settings(), ahead=False)


@pytest.mark.parametrize("image", IMAGES, ids=["packs", "one", "many-files"])
def test_the_index_leads_to_the_expected_bytes(registry: FaultRegistry, image: ComputedImage) -> None:
    view = opened(registry, image)
    for file in range(0, image.files, max(1, image.files // 7)):
        entry = view.resolve(image.path(file).encode(), NO_END)
        assert entry.size_bytes == image.file_bytes(file)
        whole = image.expected(file, 0, entry.size_bytes)
        assert entry.digest == blake3(whole).digest()
        reader = view.open(entry.inode, NO_END)
        assert bytes(reader.read(0, entry.size_bytes, NO_END)) == whole
        reader.close()
    view.close()


@given(st.integers(0, 119), st.integers(0, 60_000), st.integers(0, 60_000))
def test_a_part_of_the_expected_bytes_is_a_part_of_them(file: int, offset: int, length: int) -> None:
    files = ComputedFiles(120 * 45_000, 120, 3, 1000)
    whole = files.expected(file, 0, files.file_bytes(file))
    assert files.expected(file, offset, length) == whole[offset : offset + length]


def test_no_two_frames_of_a_period_and_no_two_tails_are_alike() -> None:
    files = ComputedFiles(20 * 1_000_000, 20, frame_bytes=4096)
    frames = {files.expected(0, number * 4096, 4096) for number in range(PERIOD)}
    assert len(frames) == PERIOD
    assert files.expected(0, PERIOD * 4096, 4096) == files.expected(0, 0, 4096)
    tails = {files.expected(file, files.frames_each * 4096, 100) for file in range(20)}
    assert len(tails) == 20
    assert files.total_bytes >= 20_000_000
    assert ComputedFiles(1000, 1, seed=2).expected(0, 0, 100) != ComputedFiles(1000, 1, seed=1).expected(0, 0, 100)


def test_the_files_can_be_written_to_compare_them(tmp_path: Path) -> None:
    image = small(files=2)
    image.write(tmp_path)
    for file in range(2):
        path = tmp_path / image.path(file)
        assert path.read_bytes() == image.expected(file, 0, image.file_bytes(file))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == image.total_bytes


@pytest.mark.parametrize(
    ("size_bytes", "files", "frame_bytes"),
    [(10, 11, 4096), (10, 0, 4096), (10, 1, 0), (10, 1, 1 << 23), (1 << 30, 100_001, 4096)],
)
def test_shapes_that_cannot_be(size_bytes: int, files: int, frame_bytes: int) -> None:
    with pytest.raises(ValueError):
        ComputedFiles(size_bytes, files, frame_bytes=frame_bytes)


@pytest.mark.slow
def test_many_terabytes(registry: FaultRegistry) -> None:
    """10 TB in 4,000 files, which needs 5 GB of hashing; offsets pass 2^31, and the index has a depth of 2."""
    image = ComputedImage(10**13, 4000)
    assert image.total_bytes >= 10**13
    view = opened(registry, image)
    root = parse_root(blob(image, manifest_of(image).root.blob))
    assert root.depth == 2
    assert root.parts[Part.FRAMES].records > 2_300_000
    chance = random.Random(11)
    for _ in range(12):
        file = chance.randrange(image.files)
        offset = chance.randrange(image.file_bytes(file) - 4096)
        reader = view.open(view.resolve(image.path(file).encode(), NO_END).inode, NO_END)
        assert bytes(reader.read(offset, 4096, NO_END)) == image.expected(file, offset, 4096)
        reader.close()
    last = image.file_bytes(3999)
    reader = view.open(view.resolve(image.path(3999).encode(), NO_END).inode, NO_END)
    assert bytes(reader.read(last - 50_000, 50_000, NO_END)) == image.expected(3999, last - 50_000, 50_000)
    reader.close()
    view.close()
    # One pack's digest in full, from the bytes that are served: the copied states are right.
    pack = root.packs[1234]
    sha = hashlib.sha256()
    for piece in image.blobs[pack.digest].pieces(0, pack.size_bytes):
        sha.update(piece)
    assert sha.hexdigest() == pack.digest.hex
    assert np.uint64(pack.size_bytes) > 2**31


@pytest.mark.slow
def test_fifty_terabytes_are_opened_by_little(registry: FaultRegistry) -> None:
    """Files that each need more than 8 GiB, so that packs of that size would be twice as many as the files."""
    image = ComputedImage(5 * 10**13, 4000)
    assert len(image.manifest) < 1 << 20
    view = opened(registry, image)
    assert view.resolve(image.path(3999).encode(), NO_END).size_bytes == image.file_bytes(3999)
    assert registry.bytes_sent <= 4 << 20
    view.close()
