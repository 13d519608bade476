"""What every repository that stores and lists must do; see `tonne.testing.conformance`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tonne.clock import Deadline
from tonne.errors import (
    Corrupt,
    DeadlineExceeded,
    Missing,
    MissingBlob,
    MissingManifest,
    MissingRepository,
    SessionLost,
)
from tonne.model import Blob, Digest
from tonne.source.seam import Repository
from tonne.testing.conformance import (
    EMPTY_CONFIG,
    PATIENCE_S,
    TAG,
    expired,
    load,
    manifest_of,
    read_all,
    send,
    some_bytes,
    soon,
)

CHUNK_BYTES = 70_001


@dataclass(frozen=True, slots=True)
class Empty:
    """An empty repository, and how to get at it and its neighbour."""

    repository: Repository
    reopen: Callable[[], Repository]  # as another process would; the case closes it
    neighbour: Repository  # of the same registry, or on the same disk
    neighbour_name: str  # what `mount` calls the neighbour


class SinkConformance:
    """The cases of storing.  Each needs a repository of its own."""

    @pytest.fixture
    def empty(self) -> Empty:
        raise NotImplementedError("the class for a kind of repository gives this fixture")

    def test_a_blob_in_chunks(self, empty: Empty) -> None:
        data = some_bytes(2)
        upload = empty.repository.start(soon())
        assert upload.acknowledged_bytes == 0
        for start in range(0, len(data), CHUNK_BYTES):
            upload.append(memoryview(data)[start : start + CHUNK_BYTES], soon())
            assert upload.acknowledged_bytes == min(len(data), start + CHUNK_BYTES)
        blob = Blob(Digest.of(data), len(data))
        assert empty.repository.has(blob.digest, soon()) is None
        upload.finish(blob.digest, soon())
        assert empty.repository.has(blob.digest, soon()) == len(data)
        assert read_all(empty.repository, blob) == data

    def test_finishing_twice(self, empty: Empty) -> None:
        data = some_bytes(3, 1000)
        upload = empty.repository.start(soon())
        upload.append(memoryview(data), soon())
        upload.finish(Digest.of(data), soon())
        upload.finish(Digest.of(data), soon())
        assert empty.repository.has(Digest.of(data), soon()) == 1000

    def test_a_blob_of_no_bytes(self, empty: Empty) -> None:
        upload = empty.repository.start(soon())
        upload.finish(Digest.of(b""), soon())
        assert empty.repository.has(Digest.of(b""), soon()) == 0

    def test_a_blob_that_is_there_already(self, empty: Empty) -> None:
        first, second = send(empty.repository, some_bytes(4)), send(empty.repository, some_bytes(4))
        assert first == second
        assert read_all(empty.repository, first) == some_bytes(4)

    def test_resuming(self, empty: Empty) -> None:
        data = memoryview(some_bytes(5))
        upload = empty.repository.start(soon())
        upload.append(data[:CHUNK_BYTES], soon())
        upload.append(data[CHUNK_BYTES : 2 * CHUNK_BYTES], soon())
        resumed = empty.repository.resume(upload.token, soon())
        assert resumed.acknowledged_bytes == 2 * CHUNK_BYTES
        resumed.append(data[2 * CHUNK_BYTES :], soon())
        blob = Blob(Digest.of(data), data.nbytes)
        resumed.finish(blob.digest, soon())
        assert read_all(empty.repository, blob) == bytes(data)

    def test_resuming_in_another_process(self, empty: Empty) -> None:
        data = memoryview(some_bytes(6))
        upload = empty.repository.start(soon())
        upload.append(data[:CHUNK_BYTES], soon())
        token = upload.token
        empty.repository.close()
        other = empty.reopen()
        try:
            resumed = other.resume(token, soon())
            assert resumed.acknowledged_bytes == CHUNK_BYTES
            resumed.append(data[CHUNK_BYTES:], soon())
            blob = Blob(Digest.of(data), data.nbytes)
            resumed.finish(blob.digest, soon())
            assert read_all(other, blob) == bytes(data)
        finally:
            other.close()

    def test_resuming_what_is_gone(self, empty: Empty) -> None:
        finished = empty.repository.start(soon())
        finished.append(memoryview(b"some"), soon())
        token = finished.token
        finished.finish(Digest.of(b"some"), soon())
        cancelled = empty.repository.start(soon())
        cancelled.append(memoryview(b"more"), soon())
        cancelled.cancel(soon())
        for gone in (token, cancelled.token, "no token", ""):
            with pytest.raises(SessionLost):
                empty.repository.resume(gone, soon())

    def test_cancelling(self, empty: Empty) -> None:
        upload = empty.repository.start(soon())
        upload.append(memoryview(b"some"), soon())
        upload.cancel(soon())
        upload.cancel(soon())
        assert empty.repository.has(Digest.of(b"some"), soon()) is None

    def test_cancelling_what_is_finished_changes_nothing(self, empty: Empty) -> None:
        upload = empty.repository.start(soon())
        upload.append(memoryview(b"some"), soon())
        upload.finish(Digest.of(b"some"), soon())
        upload.cancel(soon())
        assert empty.repository.has(Digest.of(b"some"), soon()) == 4

    def test_a_wrong_digest(self, empty: Empty) -> None:
        upload = empty.repository.start(soon())
        upload.append(memoryview(b"some"), soon())
        with pytest.raises(Corrupt):
            upload.finish(Digest.of(b"other"), soon())
        assert empty.repository.has(Digest.of(b"other"), soon()) is None
        assert empty.repository.has(Digest.of(b"some"), soon()) is None

    def test_put(self, empty: Empty) -> None:
        data = some_bytes(7)
        blob = Blob(Digest.of(data), len(data))

        def chunks() -> Iterator[memoryview]:
            for start in range(0, len(data), CHUNK_BYTES):
                yield memoryview(data)[start : start + CHUNK_BYTES]

        empty.repository.put(blob, chunks, soon())
        assert read_all(empty.repository, blob) == data

    def test_put_of_wrong_bytes(self, empty: Empty) -> None:
        blob = Blob(Digest.of(b"good"), 4)
        with pytest.raises(Corrupt):
            empty.repository.put(blob, lambda: iter([memoryview(b"evil")]), soon())
        assert empty.repository.has(blob.digest, soon()) is None

    def test_an_error_of_the_caller_during_put_leaves_nothing(self, empty: Empty) -> None:
        class Odd(Exception):
            pass

        def chunks() -> Iterator[memoryview]:
            yield memoryview(b"go")
            raise Odd

        with pytest.raises(Odd):
            empty.repository.put(Blob(Digest.of(b"good"), 4), chunks, soon())
        assert empty.repository.has(Digest.of(b"good"), soon()) is None

    def test_mount(self, empty: Empty) -> None:
        blob = send(empty.neighbour, some_bytes(8))
        empty.neighbour.put_manifest(TAG, manifest_of([blob], send(empty.neighbour, EMPTY_CONFIG)), soon())
        assert empty.repository.has(blob.digest, soon()) is None
        assert empty.repository.mount(blob, empty.neighbour_name, soon())
        assert read_all(empty.repository, blob) == some_bytes(8)
        assert empty.repository.mount(blob, empty.neighbour_name, soon())

    def test_mount_of_what_the_neighbour_does_not_have(self, empty: Empty) -> None:
        send(empty.neighbour, b"something else")
        nowhere = Blob(Digest.of(b"nowhere"), 7)
        assert not empty.repository.mount(nowhere, empty.neighbour_name, soon())
        assert not empty.repository.mount(nowhere, "no-such-neighbour", soon())
        assert empty.repository.has(nowhere.digest, soon()) is None

    def test_facts_and_rights(self, empty: Empty) -> None:
        empty.repository.check_rights(soon())
        facts = empty.repository.facts(soon())
        assert facts.chunk_bytes > 0
        assert facts.chunk_bytes_min <= facts.chunk_bytes
        assert empty.repository.facts(soon()) == facts

    def test_a_manifest_by_tag_and_again(self, empty: Empty) -> None:
        content = load(empty.repository)
        second = manifest_of([content.blob], send(empty.repository, EMPTY_CONFIG), note="second")
        empty.repository.put_manifest(TAG, second, soon())
        assert empty.repository.manifest(TAG, soon()) == second
        # Who pinned the first goes on with it.
        assert empty.repository.manifest(str(content.document.digest), soon()) == content.document
        empty.repository.put_manifest(TAG, second, soon())
        empty.repository.put_manifest("other", content.document, soon())
        assert empty.repository.manifest("other", soon()) == content.document
        assert list(empty.repository.tags(soon())) == ["other", TAG]

    def test_a_manifest_by_digest(self, empty: Empty) -> None:
        blob, config = send(empty.repository, b"layer"), send(empty.repository, EMPTY_CONFIG)
        document = manifest_of([blob], config)
        empty.repository.put_manifest(str(document.digest), document, soon())
        assert empty.repository.manifest(str(document.digest), soon()) == document
        with pytest.raises(MissingManifest):
            empty.repository.manifest(TAG, soon())

    def test_a_manifest_whose_blobs_are_not_there(self, empty: Empty) -> None:
        config = send(empty.repository, EMPTY_CONFIG)
        gone = [Blob(Digest.of(bytes([number])), 1) for number in range(3)]
        with pytest.raises(MissingBlob) as caught:
            empty.repository.put_manifest(TAG, manifest_of(gone, config), soon())
        named = str(caught.value.fields["digests"]).split()
        assert set(named) == {str(blob.digest) for blob in gone}
        with pytest.raises(MissingManifest):
            empty.repository.manifest(TAG, soon())

    def test_the_deadline_has_passed(self, empty: Empty) -> None:
        upload = empty.repository.start(soon())
        blob = Blob(Digest.of(b"good"), 4)
        document = manifest_of([], send(empty.repository, EMPTY_CONFIG))
        calls: list[Callable[[Deadline], object]] = [
            empty.repository.start,
            lambda late: upload.append(memoryview(b"good"), late),
            lambda late: upload.finish(blob.digest, late),
            lambda late: empty.repository.resume(upload.token, late),
            lambda late: empty.repository.put(blob, lambda: iter([memoryview(b"good")]), late),
            lambda late: empty.repository.put_manifest(TAG, document, late),
            lambda late: empty.repository.has(blob.digest, late),
        ]
        for call in calls:
            with pytest.raises(DeadlineExceeded):
                call(expired())
        upload.append(memoryview(b"good"), soon())
        upload.finish(blob.digest, soon())
        assert read_all(empty.repository, blob) == b"good"

    def test_uploads_by_many_threads(self, empty: Empty) -> None:
        barrier = threading.Barrier(4)

        def work(number: int) -> Blob:
            barrier.wait(PATIENCE_S)
            # Two threads each store the same.
            blob = send(empty.repository, some_bytes(number // 2), CHUNK_BYTES)
            document = manifest_of([blob], send(empty.repository, EMPTY_CONFIG), number=str(number))
            # docker-registry 2.8.2 rewrites the links of blobs in place, so a manifest that is put while another client
            # sends the same blob may be refused (DIGEST_INVALID, from an empty link).  That race is not ours.
            barrier.wait(PATIENCE_S)
            empty.repository.put_manifest(f"t{number}", document, soon())
            return blob

        with ThreadPoolExecutor(4) as pool:
            blobs = list(pool.map(work, range(4)))
        for number, blob in enumerate(blobs):
            assert read_all(empty.repository, blob) == some_bytes(number // 2)
        assert list(empty.repository.tags(soon())) == ["t0", "t1", "t2", "t3"]


class CatalogConformance:
    """The cases of listing and removing.  Each needs a repository of its own."""

    @pytest.fixture
    def empty(self) -> Empty:
        raise NotImplementedError("the class for a kind of repository gives this fixture")

    def test_nothing_there(self, empty: Empty) -> None:
        with pytest.raises(MissingRepository):
            list(empty.repository.tags(soon()))
        with pytest.raises(Missing):
            empty.repository.manifest(TAG, soon())

    def test_tags_are_sorted(self, empty: Empty) -> None:
        content = load(empty.repository)
        names = ["z", "a", "B", "v1.10", "v1.9", "_x"]
        for name in names:
            empty.repository.put_manifest(name, content.document, soon())
        assert list(empty.repository.tags(soon())) == sorted([*names, TAG])

    def test_deleting_takes_all_tags_of_a_manifest(self, empty: Empty) -> None:
        content = load(empty.repository)
        empty.repository.put_manifest("same", content.document, soon())
        other = manifest_of([content.blob], send(empty.repository, EMPTY_CONFIG), note="other")
        empty.repository.put_manifest("other", other, soon())
        empty.repository.delete(content.document.digest, TAG, soon())
        assert list(empty.repository.tags(soon())) == ["other"]
        for name in (TAG, "same", str(content.document.digest)):
            with pytest.raises(MissingManifest):
                empty.repository.manifest(name, soon())
        assert empty.repository.manifest("other", soon()) == other
        # What the other manifest names is still there.
        assert read_all(empty.repository, content.blob) == content.data

    def test_deleting_what_is_not_there(self, empty: Empty) -> None:
        content = load(empty.repository)
        with pytest.raises(MissingManifest):
            empty.repository.delete(Digest.of(b"nowhere"), "", soon())
        assert empty.repository.manifest(TAG, soon()) == content.document

    def test_storing_again_what_was_deleted(self, empty: Empty) -> None:
        content = load(empty.repository)
        empty.repository.delete(content.document.digest, TAG, soon())
        assert load(empty.repository) == content
        assert read_all(empty.repository, content.blob) == content.data

    def test_the_deadline_has_passed(self, empty: Empty) -> None:
        content = load(empty.repository)
        with pytest.raises(DeadlineExceeded):
            list(empty.repository.tags(expired()))
        with pytest.raises(DeadlineExceeded):
            empty.repository.delete(content.document.digest, TAG, expired())
        assert empty.repository.manifest(TAG, soon()) == content.document
