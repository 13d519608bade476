"""The store on a real disk."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tonne.errors import DiskFull, LocalFailure, ReadOnly, TonneError, UnknownVersion
from tonne.image.fetch import Keeper
from tonne.model import Blob, Digest
from tonne.model.frame import STRIPE_BYTES
from tonne.settings import CacheSettings
from tonne.store import Store
from tonne.store.collection import GRACE_MS
from tonne.store.documents import PART_OLD_S
from tonne.store.opened import DESCRIPTORS_A_BLOB
from tonne.store.trouble import PAUSE_S
from tonne.testing.clock import VirtualClock
from tonne.testing.disk import FaultyDisk

MIB = 1024 * 1024
BLOB = Blob(Digest.of(b"blob"), 4 * STRIPE_BYTES)
OTHER = Blob(Digest.of(b"other"), 100_000)


def piece(seed: int, length: int = MIB) -> memoryview:
    return memoryview(random.Random(seed).randbytes(length))


def read(store: Store, offset: int, length: int = MIB, blob: Blob = BLOB) -> memoryview | None:
    out = memoryview(bytearray(length))
    return out if store.blob(blob).read(offset, out) else None


class Opener:
    """Opens stores of one folder, and keeps what they tell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.disk = FaultyDisk()
        self.events: list[TonneError] = []
        self.opened: list[Store] = []

    def __call__(self, **settings: object) -> Store:
        cache = CacheSettings(folder=self.folder, **{"sync_s": 60.0, **settings})  # type: ignore[arg-type]
        store = Store.open(cache, self.disk, self.clock, self.events.append)
        self.opened.append(store)
        return store

    def told(self) -> list[type[TonneError]]:
        return [type(event) for event in self.events]


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    found = Opener(tmp_path / "cache")
    yield found
    found.disk.heal()
    for store in found.opened:
        store.close()
    assert found.disk.open_count == 0


def eventually(check: Callable[[], bool]) -> None:
    """For what the background thread does."""
    end_s = time.monotonic() + 20
    while not check():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_it_is_what_the_fetcher_wants(opener: Opener) -> None:
    keeper: Keeper = opener()
    assert keeper.document(BLOB.digest) is None


def test_reads_what_was_written_and_nothing_else(opener: Opener) -> None:
    store = opener()
    assert read(store, 0) is None
    assert os.listdir(opener.folder / "blobs") == []
    store.blob(BLOB).write(0, piece(1))
    store.blob(BLOB).write(MIB, piece(2))
    assert read(store, 0) == piece(1)
    assert read(store, MIB // 2) == memoryview(bytes(piece(1)) + bytes(piece(2)))[MIB // 2 : 3 * MIB // 2]
    assert read(store, MIB + 1) is None
    assert store.blob(BLOB).held_bytes() == 2 * MIB
    assert store.blob(OTHER).held_bytes() == 0
    assert not opener.events


def test_ranges_outside_the_blob_are_refused(opener: Opener) -> None:
    stored = opener().blob(OTHER)
    for offset, length in ((-1, 2), (OTHER.size_bytes - 1, 2)):
        with pytest.raises(ValueError, match="not within"):
            stored.write(offset, piece(1, length))
        with pytest.raises(ValueError, match="not within"):
            stored.read(offset, memoryview(bytearray(length)))
    stored.write(OTHER.size_bytes - 2, piece(1, 2))
    assert stored.held_bytes() == 2


def test_two_stores_see_each_other_and_a_third_finds_it(opener: Opener) -> None:
    one, two = opener(), opener()
    one.blob(BLOB).write(0, piece(1))
    assert read(two, 0) == piece(1)
    two.blob(BLOB).drop(0, MIB)
    assert read(one, 0) is None
    one.blob(BLOB).write(0, piece(1))
    one.close()
    two.close()
    assert read(opener(), 0) == piece(1)


def test_after_a_restart_what_was_synced_counts(opener: Opener) -> None:
    opener.disk.boot = "one"
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    store.blob(BLOB).sync()
    store.blob(BLOB).write(MIB, piece(2))
    opener.disk.boot = "two"
    after = opener()
    assert read(after, 0) == piece(1)
    assert read(after, MIB) is None
    opener.disk.boot = "one"
    assert read(opener(), MIB) == piece(2)


def cached_bytes(path: Path) -> int:
    """How much of a file is in the page cache: mincore(2)."""
    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def test_what_is_on_the_disk_is_not_in_the_page_cache_too(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    data = next(tmp_path.rglob("data"))
    before = cached_bytes(data)
    store.blob(BLOB).sync()
    assert before >= MIB
    assert cached_bytes(data) == 0
    assert read(store, 0) == piece(1)


def test_no_sync_on_the_path_of_a_reader(opener: Opener) -> None:
    store = opener()
    here = threading.get_ident()
    syncing: set[int] = set()
    real = opener.disk.fdatasync

    def fdatasync(descriptor: int) -> None:
        syncing.add(threading.get_ident())
        real(descriptor)

    opener.disk.fdatasync = fdatasync  # type: ignore[method-assign]
    store = opener(sync_bytes=2 * MIB)
    for n in range(8):
        store.blob(BLOB).write(n * MIB, piece(n))
    eventually(lambda: bool(syncing))
    assert here not in syncing


def test_the_background_makes_durable_after_the_interval(opener: Opener) -> None:
    opener.disk.boot = "one"
    opener(sync_s=0.05).blob(BLOB).write(0, piece(1))
    eventually(lambda: opener.disk.count("fdatasync") >= 2)
    opener.disk.boot = "two"
    assert read(opener(), 0) == piece(1)


def test_close_makes_durable_and_ends_the_thread(opener: Opener) -> None:
    opener.disk.boot = "one"
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    store.close()
    store.close()
    assert not any(thread.name == "tonne-store" for thread in threading.enumerate())
    opener.disk.boot = "two"
    assert read(opener(), 0) == piece(1)


def test_who_reads_what_a_killed_process_wrote_makes_it_durable(opener: Opener) -> None:
    opener.disk.boot = "one"
    opener().blob(BLOB).write(0, piece(1))  # and dies
    reader = opener()
    assert read(reader, 0) == piece(1)
    reader.close()
    opener.disk.boot = "two"
    assert read(opener(), 0) == piece(1)


def test_blobs_of_a_killed_process_do_not_stay_open(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = [Blob(Digest.of(b"%d" % n), MIB) for n in range(12)]
    killed = opener()
    for blob in blobs:
        killed.blob(blob).write(0, piece(1))
    monkeypatch.setattr("tonne.store.opened.OPEN_BLOBS_MAX", 4)
    reader = opener()
    before = opener.disk.open_count
    for blob in blobs:
        assert read(reader, 0, blob=blob) == piece(1)
    reader.sync()
    assert read(reader, 0, 1, OTHER) is None
    eventually(lambda: opener.disk.open_count - before <= 4 * DESCRIPTORS_A_BLOB)


# --- documents --------------------------------------------------------------------------------------------------------


def test_documents(opener: Opener) -> None:
    store = opener()
    digest = Digest.of(b"a manifest")
    assert store.document(digest) is None
    store.keep_document(digest, b"a manifest")
    assert store.document(digest) == opener().document(digest) == b"a manifest"
    with pytest.raises(ValueError, match="digest"):
        store.keep_document(digest, b"another")
    # A torn one is a missing one, and goes.
    path = opener.folder / "documents" / f"sha256-{digest.hex}"
    path.write_bytes(b"a mani")
    assert store.document(digest) is None
    assert not path.exists()


# --- opening ----------------------------------------------------------------------------------------------------------


def test_a_newer_version_is_refused_and_left_alone(opener: Opener) -> None:
    opener.folder.mkdir()
    (opener.folder / "version").write_bytes(b"tonne store 2\n")
    with pytest.raises(UnknownVersion, match="version 2"):
        opener()
    assert (opener.folder / "version").read_bytes() == b"tonne store 2\n"
    assert os.listdir(opener.folder) == ["version"]


@pytest.mark.parametrize("text", [b"", b"\0\0\0\0", b"tonne store x"])
def test_a_damaged_version_file_is_written_anew(opener: Opener, text: bytes) -> None:
    opener().blob(BLOB).write(0, piece(1))
    (opener.folder / "version").write_bytes(text)
    assert read(opener(), 0) == piece(1)
    assert (opener.folder / "version").read_bytes() == b"tonne store 1\n"


def test_a_folder_that_is_none(opener: Opener) -> None:
    opener.folder.write_bytes(b"a file")
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    store.keep_document(OTHER.digest, b"other")
    assert read(store, 0) is None
    assert store.document(OTHER.digest) is None
    assert opener.told() == [LocalFailure]


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EROFS, ReadOnly), (errno.EIO, LocalFailure)]
)
@pytest.mark.parametrize("path", ["*/data", "*/records"])
def test_a_write_that_fails_is_told_once_and_tried_again_later(
    opener: Opener, code: int, kind: type[TonneError], path: str
) -> None:
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    opener.disk.fail("pwrite", code, times=None, path=path)
    for n in range(1, 5):
        store.blob(BLOB).write(n * MIB, piece(n))
        opener.clock.advance(PAUSE_S)
        assert read(store, 0) == piece(1)
    assert opener.told() == [kind]
    assert read(store, MIB) is None
    opener.disk.heal()
    store.blob(BLOB).write(MIB, piece(2))
    assert read(store, MIB) == piece(2)


def test_after_a_failure_nothing_is_written_for_a_while(opener: Opener) -> None:
    store = opener()
    opener.disk.fail("pwrite", errno.EIO, path="*/data")
    store.blob(BLOB).write(0, piece(1))
    calls = opener.disk.count("pwrite")
    store.blob(BLOB).write(0, piece(1))
    assert opener.disk.count("pwrite") == calls
    assert opener.disk.fired


def test_a_read_that_fails_is_a_miss_and_heals(opener: Opener) -> None:
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    opener.disk.fail("preadv", errno.EIO, path="*/data")
    assert read(store, 0) is None
    assert opener.told() == [LocalFailure]
    assert store.blob(BLOB).held_bytes() == 0
    store.blob(BLOB).write(0, piece(1))
    assert read(store, 0) == piece(1)


@pytest.mark.parametrize("call", ["open", "lock", "stat_open", "preadv", "fdatasync", "fsync", "makedirs", "listdir"])
def test_no_failing_call_fails_a_reader(opener: Opener, call: str) -> None:
    store = opener(size_bytes=100 * MIB)
    store.blob(BLOB).write(0, piece(1))
    store.sync()
    opener.disk.fail(call, errno.EIO, times=None)
    other = opener()
    for opened in (store, other):
        opened.blob(BLOB).write(MIB, piece(2))
        opened.blob(OTHER).write(0, piece(2, 100))
        assert read(opened, 0) in (None, piece(1))
        assert read(opened, MIB) in (None, piece(2))
        opened.blob(BLOB).drop(0, MIB)
        opened.blob(BLOB).held_bytes()
        opened.document(BLOB.digest)
        opened.usage()
        opened.evict(0)
        opened.sync()
    assert opener.disk.fired
    assert set(opener.told()) == {LocalFailure}


def test_a_torn_record_is_told_and_costs_one_frame(opener: Opener) -> None:
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    opener.disk.tear(keep_bytes=9, path="*/records")
    store.blob(BLOB).write(MIB, piece(2))
    opener.clock.advance(PAUSE_S + 1)
    store.blob(BLOB).write(2 * MIB, piece(3))
    again = opener()
    assert [read(again, n * MIB) for n in range(3)] == [piece(1), None, piece(3)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("NO MOUNT: only root can make a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.system
def test_a_full_disk(small_disk: Path) -> None:
    events: list[TonneError] = []
    with Store.open(CacheSettings(folder=small_disk), on_event=events.append) as store:
        for n in range(12):
            store.blob(BLOB).write(n * MIB, piece(n))
        kept = [n for n in range(12) if read(store, n * MIB) is not None]
        assert 5 <= len(kept) < 12
        assert all(read(store, n * MIB) == piece(n) for n in kept)
        assert [type(event) for event in events] == [DiskFull]


@pytest.mark.system
def test_a_read_only_disk(small_disk: Path) -> None:
    with Store.open(CacheSettings(folder=small_disk / "there")) as store:
        store.blob(BLOB).write(0, piece(1))
        store.keep_document(OTHER.digest, b"other")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    events: list[TonneError] = []
    with Store.open(CacheSettings(folder=small_disk / "there"), on_event=events.append) as store:
        assert read(store, 0) == piece(1)
        assert store.document(OTHER.digest) == b"other"
        assert not events
        for n in range(3):
            store.blob(BLOB).write(n * MIB, piece(n))
        store.blob(BLOB).drop(0, MIB)
        assert read(store, 0) is None
        store.evict(0)
    with Store.open(CacheSettings(folder=small_disk / "new"), on_event=events.append) as store:
        store.blob(BLOB).write(0, piece(1))
        assert read(store, 0) is None
    assert [type(event) for event in events] == [ReadOnly, ReadOnly]


# --- room -------------------------------------------------------------------------------------------------------------


def test_usage_counts_blocks_not_holes(opener: Opener) -> None:
    store = opener()
    store.blob(BLOB).write(3 * STRIPE_BYTES, piece(1))
    store.keep_document(OTHER.digest, b"other")
    usage = store.usage()
    assert MIB <= usage.frames_bytes < 2 * MIB
    assert usage.blobs == 1
    assert 0 < usage.documents_bytes < 100_000
    assert 0 < usage.records_bytes < 100_000
    assert usage.total_bytes < 3 * MIB


def test_the_least_recently_used_stripe_goes_first(opener: Opener) -> None:
    store = opener()
    for stripe in range(4):
        store.blob(BLOB).write(stripe * STRIPE_BYTES, piece(stripe))
        opener.clock.advance(10)
    assert read(store, 0) == piece(0)  # in use again
    opener.clock.advance(GRACE_MS / 1000 + 1)
    freed = opener().evict(store.usage().total_bytes - MIB)
    assert freed == MIB
    assert [read(store, stripe * STRIPE_BYTES) for stripe in range(4)] == [piece(0), None, piece(2), piece(3)]


def test_what_is_in_use_is_not_evicted(opener: Opener) -> None:
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    assert store.evict(0) == 0
    assert read(store, 0) == piece(1)
    opener.clock.advance(GRACE_MS / 1000 + 1)
    assert read(store, 0) == piece(1)
    assert store.evict(0) == 0
    opener.clock.advance(GRACE_MS / 1000 + 1)
    assert store.evict(0) == MIB
    assert read(store, 0) is None
    assert os.listdir(opener.folder / "blobs") == []  # no debris


def test_stripes_of_which_the_last_use_is_lost_go_first(opener: Opener) -> None:
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    store.blob(OTHER).write(0, piece(2, 100_000))
    store.close()
    opener.clock.advance(60)
    (next((opener.folder / "blobs").glob(f"*{BLOB.digest.hex}")) / "used").unlink()
    again = opener()
    assert again.evict(again.usage().total_bytes - 1) == MIB
    assert read(again, 0, 100_000, OTHER) == piece(2, 100_000)


def test_the_limit_is_kept_and_the_newest_bytes_with_it(opener: Opener) -> None:
    limit = 16 * MIB
    store = opener(size_bytes=limit, sync_s=0.02)
    blobs = [Blob(Digest.of(b"%d" % n), MIB) for n in range(60)]

    def is_kept(blob: Blob) -> bool:
        store.blob(blob).write(0, piece(1))
        return read(store, 0, MIB, blob) is not None

    for blob in blobs:
        opener.clock.advance(2)
        # While room is made, a write may be left out.
        eventually(functools.partial(is_kept, blob))
        assert store.usage().total_bytes <= limit + MIB
    kept = [read(store, 0, MIB, blob) is not None for blob in blobs]
    assert kept[-5:] == [True] * 5
    assert not any(kept[:40])
    assert not opener.events


def document(n: int) -> bytes:
    return bytes(piece(n, 64 * 1024))


def test_documents_make_room_for_each_other(opener: Opener) -> None:
    """Many images in a small cache: what each is opened by takes room too."""
    limit = MIB
    store = opener(size_bytes=limit, sync_s=0.02)

    def is_kept(data: bytes) -> bool:
        store.keep_document(Digest.of(data), data)
        return store.document(Digest.of(data)) == data

    for n in range(60):
        opener.clock.advance(2)
        eventually(functools.partial(is_kept, document(n)))
        assert store.usage().total_bytes <= limit + MIB // 8
    kept = [store.document(Digest.of(document(n))) is not None for n in range(60)]
    assert kept[-4:] == [True] * 4
    assert not any(kept[:40])
    # Frames have their place too, of which nothing was there.
    opener.clock.advance(60)

    def is_written() -> bool:
        store.blob(BLOB).write(0, piece(1, MIB // 2))
        return read(store, 0, MIB // 2) is not None

    eventually(is_written)
    assert not opener.events


def test_what_was_not_used_for_longest_goes_first_be_it_frame_or_document(opener: Opener) -> None:
    store = opener()
    old, new = document(1), document(2)
    store.keep_document(Digest.of(old), old)
    opener.clock.advance(10)
    store.blob(BLOB).write(0, piece(1))
    opener.clock.advance(10)
    store.keep_document(Digest.of(new), new)
    opener.clock.advance(60)
    other = opener()
    freed = other.evict(store.usage().total_bytes - 1)
    assert 64 * 1024 <= freed < MIB
    assert (other.document(Digest.of(old)), read(other, 0)) == (None, piece(1))
    opener.clock.advance(60)
    assert other.document(Digest.of(new)) == new  # in use again
    opener.clock.advance(GRACE_MS / 1000 + 1)
    assert other.evict(other.usage().total_bytes - 1) == MIB
    assert other.document(Digest.of(new)) == new


def test_documents_of_an_image_that_is_read_stay(opener: Opener) -> None:
    """A mount reads its root once and its frames for weeks: the root is not older than they are."""
    reader = opener()
    data, other_data = document(1), document(2)
    for each in (data, other_data):
        reader.keep_document(Digest.of(each), each)
    reader.blob(BLOB).write(0, piece(1))
    reader.close()
    reader = opener()
    assert reader.document(Digest.of(data)) == data
    for _ in range(10):
        opener.clock.advance(60)
        assert read(reader, 0) == piece(1)
    other = opener()
    assert other.evict(0) == 64 * 1024
    assert other.document(Digest.of(other_data)) is None
    assert other.document(Digest.of(data)) == data


def test_what_killed_processes_left_goes(opener: Opener) -> None:
    opener().keep_document(Digest.of(document(1)), document(1))
    documents = opener.folder / "documents"
    name = documents / f"sha256-{Digest.of(document(2)).hex}"
    for place, age_s in (
        (name, PART_OLD_S - 60),
        (name, PART_OLD_S + 60),
        (opener.folder / "version", PART_OLD_S + 60),
    ):
        path = place.with_name(f"{place.name}.{age_s:.0f}-1.part")
        path.write_bytes(document(2))
        written_s = opener.clock.wall_s() - age_s
        os.utime(path, (written_s, written_s))
    opener()
    left = [path.name for path in opener.folder.rglob("*.part")]
    assert left == [f"{name.name}.{PART_OLD_S - 60:.0f}-1.part"]
    opener.clock.advance(120)
    opener.opened[0].evict(0)
    assert list(opener.folder.rglob("*.part")) == []
    assert not opener.events


def test_a_blob_without_bytes_is_evicted_too(opener: Opener) -> None:
    """Its records take room, and the first write may fail or its process be killed."""
    opener.disk.fail("pwrite", errno.EIO, path="*/data")
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    assert store.usage().blobs == 1
    assert opener.disk.fired
    store.evict(0)
    assert os.listdir(opener.folder / "blobs") == []


def test_bytes_of_which_the_records_are_lost_are_evicted(opener: Opener) -> None:
    opener().blob(BLOB).write(0, piece(1))
    next(opener.folder.rglob("records")).unlink()
    opener.clock.advance(60)
    store = opener()
    assert store.usage().frames_bytes == MIB
    assert read(store, 0) is None
    assert store.evict(0) == MIB
    assert os.listdir(opener.folder / "blobs") == []


@pytest.mark.parametrize("evicted", [0, 1])
def test_a_frame_across_a_border_goes_with_the_stripe_that_it_starts_in(opener: Opener, evicted: int) -> None:
    store = opener()
    start = STRIPE_BYTES - MIB + 777
    store.blob(BLOB).write(start - MIB, piece(1))
    store.blob(BLOB).write(start, piece(2, 3 * MIB))
    store.blob(BLOB).write(start + 3 * MIB, piece(3))
    opener.clock.advance(10)
    assert read(store, start - MIB if evicted else start + 3 * MIB) is not None  # the other one's turn is later
    opener.clock.advance(GRACE_MS / 1000 + 1)
    other = opener()
    freed = other.evict(store.usage().total_bytes - 1)
    expected = [4 * MIB, MIB][evicted]
    assert expected - 8192 <= freed <= expected + 8192
    assert [read(other, start - MIB), read(other, start, 3 * MIB), read(other, start + 3 * MIB)] == (
        [piece(1), piece(2, 3 * MIB), None] if evicted else [None, None, piece(3)]
    )
    assert other.blob(BLOB).held_bytes() == 5 * MIB - expected
    # What is left is whole: evicted as well, nothing stays.
    opener.clock.advance(60)
    other.evict(0)
    assert os.listdir(opener.folder / "blobs") == []


def test_above_the_limit_nothing_is_kept(opener: Opener) -> None:
    store = opener(size_bytes=4 * MIB)
    for n in range(8):
        store.blob(BLOB).write(n * MIB, piece(n))
    assert store.blob(BLOB).held_bytes() <= 4 * MIB
    assert store.usage().frames_bytes <= 4 * MIB
    assert read(store, 0) == piece(0)
    assert not opener.events


def test_a_full_disk_makes_room_when_it_may(opener: Opener) -> None:
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    opener.clock.advance(60)
    opener.disk.fail("pwrite", errno.ENOSPC, path="*/data")
    store.blob(OTHER).write(0, piece(2, 1000))
    eventually(lambda: store.usage().frames_bytes == 0)

    def is_kept() -> bool:
        store.blob(OTHER).write(0, piece(2, 1000))
        return read(store, 0, 1000, OTHER) is not None

    # At once, although the clock stands still.
    eventually(is_kept)
    assert opener.told() == [DiskFull]


@pytest.mark.parametrize(
    ("call", "code", "path"),
    [("pwrite", errno.ENOSPC, "*/records"), ("punch", errno.EOPNOTSUPP, "*")],
)
def test_what_cannot_be_punched_is_removed_as_a_whole(opener: Opener, call: str, code: int, path: str) -> None:
    store = opener()
    store.blob(BLOB).write(0, piece(1))
    store.blob(BLOB).write(STRIPE_BYTES, piece(2))
    opener.clock.advance(60)
    opener.disk.fail(call, code, path=path, times=None)
    assert store.evict(store.usage().total_bytes - 1) == 2 * MIB
    assert read(store, 0) is None
    assert os.listdir(opener.folder / "blobs") == []


# --- many -------------------------------------------------------------------------------------------------------------


def test_more_blobs_than_may_be_open(tmp_path: Path) -> None:
    disk = FaultyDisk()
    blobs = [Blob(Digest.of(b"%d" % n), 1000) for n in range(300)]
    with Store.open(CacheSettings(folder=tmp_path), disk) as store:
        for n, blob in enumerate(blobs):
            store.blob(blob).write(0, piece(n, 10))
            if n % 50 == 0:
                store.sync()
        store.sync()
        for n, blob in enumerate(blobs):
            assert read(store, 0, 10, blob) == piece(n, 10)
        assert disk.open_count <= 3 * 128
    assert disk.open_count == 0


def test_more_blobs_than_may_be_open_that_all_wait_to_be_synced(opener: Opener) -> None:
    """None of them may be closed: not the one that was asked for either.  More descriptors than there are, never."""
    may_sync = threading.Event()
    real = opener.disk.fdatasync

    def fdatasync(descriptor: int) -> None:
        may_sync.wait()
        real(descriptor)

    opener.disk.fdatasync = fdatasync  # type: ignore[method-assign]
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1800, hard))
    try:
        store = opener()
        for n in range(400):
            blob = Blob(Digest.of(b"%d" % n), 1000)
            store.blob(blob).write(0, piece(n, 10))
            assert read(store, 0, 10, blob) == (piece(n, 10) if n <= 300 else None)
        assert opener.disk.open_count <= 1800 // 2 + 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        may_sync.set()
    assert opener.events == []


def test_memory_of_a_whole_image(tmp_path: Path) -> None:
    """2.4 million frames in 1,200 blobs, every second one held: the records of all are asked for."""
    code = """
import resource, sys
import numpy as np
from pathlib import Path
from tonne.model import Blob, Digest
from tonne.settings import CacheSettings
from tonne.store import OsDisk, Store
from tonne.store.files import name_of
from tonne.store.ranges import ByteRanges
from tonne.store.records import DURABLE, LogKey, encode_records
folder = Path(sys.argv[1])
FRAME, FRAMES, BLOBS = 4 << 20, 2000, 1200
starts = np.arange(0, FRAMES, 2, dtype=np.int64) * FRAME
ranges = ByteRanges(starts, starts + FRAME)
blobs = [Blob(Digest.of(b"%d" % n), FRAME * FRAMES) for n in range(BLOBS)]
for blob in blobs:
    place = folder / "blobs" / name_of(blob.digest)
    place.mkdir(parents=True)
    with open(place / "data", "wb") as file:
        file.truncate(blob.size_bytes)
    (place / "records").write_bytes(encode_records(DURABLE, ranges, LogKey.of(blob.digest, ""), 0))
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Store.open(CacheSettings(folder=folder)) as store:
    for blob in blobs:
        assert store.blob(blob).held_bytes() == FRAMES // 2 * FRAME
after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(after_kib - before_kib)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40 * 1024  # KiB
