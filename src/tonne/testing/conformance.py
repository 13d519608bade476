"""What every source must do, as a test class that each kind of source runs.

A test module makes a class of its own from `SourceConformance` and gives it the fixture `loaded`::

    class TestMemory(SourceConformance):
        @pytest.fixture
        def loaded(self) -> Loaded:
            repository = MemoryRepository()
            return Loaded(repository, load(repository))

`tonne.testing.conformance_sink` has the same for what stores and lists.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tonne.clock import Deadline
from tonne.errors import Corrupt, CorruptBytes, CorruptIndex, DeadlineExceeded, MissingBlob, MissingManifest
from tonne.model import Blob, Digest
from tonne.source.seam import Document, Priority, Sink, Source
from tonne.wire.oci import MANIFEST_TYPE

PATIENCE_S = 30.0  # of one call against a real registry on a loaded machine
DATA_BYTES = 300_001  # odd, so that no block size divides it
EMPTY_CONFIG = b"{}"
TAG = "v1"


def soon() -> Deadline:
    """A deadline that only a hanging call reaches."""
    return Deadline.after(PATIENCE_S)


def expired() -> Deadline:
    return Deadline.after(-1.0)


def some_bytes(seed: int, length: int = DATA_BYTES) -> bytes:
    """Bytes that no other seed gives."""
    return random.Random(seed).randbytes(length)


def send(sink: Sink, data: bytes, chunk_bytes: int = 1 << 20) -> Blob:
    """Store a blob through an upload."""
    upload = sink.start(soon())
    view = memoryview(data)
    for start in range(0, len(data), chunk_bytes):
        upload.append(view[start : start + chunk_bytes], soon())
    blob = Blob(Digest.of(data), len(data))
    upload.finish(blob.digest, soon())
    return blob


def manifest_of(layers: Sequence[Blob], config: Blob, **annotations: str) -> Document:
    """An OCI manifest of an artifact that means nothing."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": "application/vnd.example.test",
        "config": _descriptor(config, "application/vnd.oci.empty.v1+json"),
        "layers": [_descriptor(layer, "application/octet-stream") for layer in layers],
        **({"annotations": annotations} if annotations else {}),
    }
    data = json.dumps(document).encode()
    return Document(data, MANIFEST_TYPE, Digest.of(data))


def _descriptor(blob: Blob, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": str(blob.digest), "size": blob.size_bytes}


def read_all(source: Source, blob: Blob) -> bytes:
    """A small blob as a whole."""
    out = bytearray(blob.size_bytes)
    source.read(blob, 0, memoryview(out), soon())
    return bytes(out)


@dataclass(frozen=True, slots=True)
class Content:
    """What `load` has stored: a blob with its bytes, and a manifest of it under `TAG`."""

    blob: Blob
    data: bytes
    document: Document


def load(sink: Sink, seed: int = 1) -> Content:
    """Fill an empty repository."""
    data = some_bytes(seed)
    blob = send(sink, data)
    document = manifest_of([blob], send(sink, EMPTY_CONFIG))
    sink.put_manifest(TAG, document, soon())
    return Content(blob, data, document)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A source, and what is in it."""

    source: Source
    content: Content


class SourceConformance:
    """The cases.  None of them depends on what another has left, so a fixture of a wider scope may be shared."""

    @pytest.fixture
    def loaded(self) -> Loaded:
        raise NotImplementedError("the class for a kind of source gives this fixture")

    def test_random_ranges(self, loaded: Loaded) -> None:
        dice = random.Random(50)
        for _ in range(50):
            offset = dice.randrange(DATA_BYTES)
            length = dice.randint(1, DATA_BYTES - offset)
            _read_and_compare(loaded, offset, length)

    @pytest.mark.parametrize(
        ("offset", "length"),
        [(0, DATA_BYTES), (0, 1), (DATA_BYTES - 1, 1), (1, DATA_BYTES - 1), (0, DATA_BYTES - 1), (4095, 2)],
    )
    def test_ranges_at_the_ends(self, loaded: Loaded, offset: int, length: int) -> None:
        _read_and_compare(loaded, offset, length)

    @pytest.mark.parametrize("offset", [0, 1, DATA_BYTES])
    def test_a_range_of_no_bytes(self, loaded: Loaded, offset: int) -> None:
        seen: list[int] = []
        loaded.source.read(
            loaded.content.blob, offset, memoryview(bytearray()), soon(), lambda found: seen.append(found.nbytes)
        )
        assert seen == [0]

    @pytest.mark.parametrize(
        ("offset", "length"), [(-1, 1), (0, DATA_BYTES + 1), (DATA_BYTES, 1), (DATA_BYTES + 1, 0), (1 << 62, 1)]
    )
    def test_a_range_outside_is_an_error_of_the_caller(self, loaded: Loaded, offset: int, length: int) -> None:
        with pytest.raises(ValueError, match=str(loaded.content.blob.digest)):
            loaded.source.read(loaded.content.blob, offset, memoryview(bytearray(length)), soon())

    @pytest.mark.parametrize("priority", Priority)
    def test_every_priority_gets_the_same(self, loaded: Loaded, priority: Priority) -> None:
        out = bytearray(1000)
        loaded.source.read(loaded.content.blob, 500, memoryview(out), soon(), priority=priority)
        assert bytes(out) == loaded.content.data[500:1500]

    def test_only_the_given_part_of_a_buffer_changes(self, loaded: Loaded) -> None:
        out = bytearray(b"\xaa" * 3000)
        loaded.source.read(loaded.content.blob, 10, memoryview(out)[1000:2000], soon())
        assert bytes(out) == b"\xaa" * 1000 + loaded.content.data[10:1010] + b"\xaa" * 1000

    def test_the_check_sees_the_bytes_before_the_caller(self, loaded: Loaded) -> None:
        out = bytearray(2000)
        seen: list[bytes] = []
        loaded.source.read(loaded.content.blob, 7, memoryview(out), soon(), lambda found: seen.append(bytes(found)))
        assert seen == [loaded.content.data[7:2007]]
        assert bytes(out) == seen[0]

    def test_an_error_of_the_check_comes_through_with_its_origin(self, loaded: Loaded) -> None:
        error = CorruptIndex("the test says so", where="a place", field="kept")

        def check(found: memoryview) -> None:
            raise error

        with pytest.raises(CorruptIndex) as caught:
            loaded.source.read(loaded.content.blob, 0, memoryview(bytearray(10)), soon(), check)
        assert caught.value is error
        assert error.fields["field"] == "kept"
        assert error.fields["origin"] in loaded.source.origin
        assert error.fields["origin"] in error.where
        assert "a place" in error.where
        _read_and_compare(loaded, 0, 10)

    def test_corrupt_bytes_stay_an_error(self, loaded: Loaded) -> None:
        def check(found: memoryview) -> None:
            raise CorruptBytes("wrong bytes came")

        with pytest.raises(CorruptBytes) as caught:
            loaded.source.read(loaded.content.blob, 0, memoryview(bytearray(10)), soon(), check)
        assert caught.value.fields["origin"] in loaded.source.origin
        _read_and_compare(loaded, 0, 10)

    def test_an_error_of_another_kind_comes_through(self, loaded: Loaded) -> None:
        class Odd(Exception):
            pass

        def check(found: memoryview) -> None:
            raise Odd

        with pytest.raises(Odd):
            loaded.source.read(loaded.content.blob, 0, memoryview(bytearray(10)), soon(), check)
        _read_and_compare(loaded, 0, 10)

    def test_size(self, loaded: Loaded) -> None:
        assert loaded.source.size(loaded.content.blob.digest, soon()) == DATA_BYTES

    def test_a_blob_that_is_not_there(self, loaded: Loaded) -> None:
        nowhere = Blob(Digest.of(b"nowhere"), 1000)
        with pytest.raises(MissingBlob):
            loaded.source.read(nowhere, 0, memoryview(bytearray(10)), soon())
        with pytest.raises(MissingBlob):
            loaded.source.size(nowhere.digest, soon())

    def test_a_manifest_by_tag_and_by_digest(self, loaded: Loaded) -> None:
        document = loaded.content.document
        assert loaded.source.manifest(TAG, soon()) == document
        assert loaded.source.manifest(str(document.digest), soon()) == document

    @pytest.mark.parametrize("name", ["no-such-tag", str(Digest.of(b"nowhere"))])
    def test_a_manifest_that_is_not_there(self, loaded: Loaded, name: str) -> None:
        with pytest.raises(MissingManifest):
            loaded.source.manifest(name, soon())

    def test_the_deadline_has_passed(self, loaded: Loaded) -> None:
        calls: list[Callable[[], object]] = [
            lambda: loaded.source.read(loaded.content.blob, 0, memoryview(bytearray(10)), expired()),
            lambda: loaded.source.size(loaded.content.blob.digest, expired()),
            lambda: loaded.source.manifest(TAG, expired()),
        ]
        for call in calls:
            with pytest.raises(DeadlineExceeded):
                call()
        _read_and_compare(loaded, 0, 10)

    def test_many_threads_at_once(self, loaded: Loaded) -> None:
        barrier = threading.Barrier(8)

        def work(seed: int) -> None:
            dice = random.Random(seed)
            barrier.wait(PATIENCE_S)
            for _ in range(20):
                # Few different ranges, so that threads meet at the same ones.
                _read_and_compare(loaded, 1000 * dice.randrange(5), 20_000)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

    def test_an_error_in_one_thread_is_no_error_in_another(self, loaded: Loaded) -> None:
        barrier = threading.Barrier(8)

        def check(found: memoryview) -> None:
            raise CorruptIndex("this thread's check")

        def work(number: int) -> bool:
            barrier.wait(PATIENCE_S)
            out = bytearray(5000)
            try:
                loaded.source.read(loaded.content.blob, 100, memoryview(out), soon(), check if number % 2 else None)
            except Corrupt:
                return False
            return bytes(out) == loaded.content.data[100:5100]

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [True, False] * 4

    def test_closing_twice(self, loaded: Loaded) -> None:
        loaded.source.close()
        loaded.source.close()


def _read_and_compare(loaded: Loaded, offset: int, length: int) -> None:
    out = bytearray(length)
    loaded.source.read(loaded.content.blob, offset, memoryview(out), soon())
    assert bytes(out) == loaded.content.data[offset : offset + length], f"{length} bytes at {offset} differ"
