"""A mounted image as programs see it: `tonne mount` and `tonne umount` with the kernel's FUSE."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.system.command import Tonne
from tests.system.trees import differences, facts_of, make_hard_tree
from tonne.mount.table import mount_at
from tonne.testing.processes import DebianRegistry

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("needs_fuse")]

MIB = 1024 * 1024
MANY = 2_500
SIZE = 24 * MIB + 12_345
AWAY_S = 10.0


@dataclass
class Stage:
    """A folder, its image in a layout, and the command with no cache."""

    source: Path
    reference: str
    tonne: Tonne
    digest: str


class Uncached(Tonne):
    """Keeps nothing on disk, so that each read goes to the source."""

    def arguments(self, *words: object) -> list[str]:
        return [*super().arguments("--no-cache"), *map(str, words)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    folder = tmp_path_factory.mktemp("stage")
    source = folder / "source"
    make_hard_tree(source, 200, SIZE)
    (source / "crowd").mkdir()
    for number in range(MANY):
        (source / "crowd" / f"{number:05}-{'x' * (number % 200)}").touch()
    tensors = {
        f"layer.{number}": np.random.default_rng(number).standard_normal((300, 1000)).astype(np.float32)
        for number in range(6)
    }
    save_file(tensors, source / "model.safetensors")
    (source / "public").mkdir(mode=0o755)
    (source / "public" / "file").write_text("for all")
    tonne = Uncached(folder / "cache")
    reference = f"oci:{folder / 'layout'}:v1"
    packed = tonne.json("pack", source, reference)
    return Stage(source, reference, tonne, packed["digest"])


@pytest.fixture(scope="module")
def mounted(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One mount for all tests that only read."""
    point = tmp_path_factory.mktemp("mount")
    with stage.tonne.mounted(stage.reference, point):
        yield point


def forget(path: Path) -> None:
    """Have the kernel forget what it holds of a file."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def process_of(point: Path) -> int:
    mount = mount_at(point)
    assert mount is not None
    return int(json.loads(os.getxattr(point, "user.tonne.mount"))["pid"])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(true: Callable[[], bool], what: str, limit_s: float = AWAY_S) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"never came to be: {what}"
        time.sleep(0.02)


# --- reading ---


def test_everything_is_equal_to_the_source(stage: Stage, mounted: Path) -> None:
    assert differences(facts_of(stage.source), facts_of(mounted)) == []


def test_it_says_what_it_is(stage: Stage, mounted: Path) -> None:
    mount = mount_at(mounted)
    assert mount is not None
    assert mount.kind == "fuse.tonne"
    assert mount.source == f"{stage.reference}@{stage.digest}"
    space = os.statvfs(mounted)
    stats = [
        os.lstat(os.path.join(folder, name))
        for folder, folders, files in os.walk(os.fsencode(stage.source))
        for name in (*folders, *files)
    ]
    sizes = {found.st_ino: found.st_size for found in stats if stat.S_ISREG(found.st_mode)}
    assert space.f_blocks == -(-sum(sizes.values()) // space.f_frsize)
    assert (space.f_bfree, space.f_bavail, space.f_ffree) == (0, 0, 0)
    assert space.f_files == 1 + len(stats)


def test_blocks_sizes_and_times(mounted: Path) -> None:
    for name in ("frame-exactly", "frame-and-one", "one-byte", "empty"):
        found = (mounted / name).stat()
        assert found.st_blocks == -(-found.st_size // 512)
        assert found.st_mtime_ns == found.st_ctime_ns
    first, second = mounted / "frame-and-one", mounted / "links" / "hard"
    assert first.stat().st_ino == second.stat().st_ino
    assert first.stat().st_nlink == 3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_places_of_a_large_file(stage: Stage, mounted: Path, seed: int) -> None:
    chance = random.Random(seed)
    forget(mounted / "large")
    with open(stage.source / "large", "rb") as ours, open(mounted / "large", "rb", buffering=0) as theirs:
        for _ in range(100):
            offset, length = chance.randrange(SIZE + 1000), chance.choice([1, 4096, 70_000, 5 * MIB])
            ours.seek(offset)
            assert os.pread(theirs.fileno(), length, offset) == ours.read(length)


def test_mapped_memory(stage: Stage, mounted: Path) -> None:
    forget(mounted / "large")
    with (
        open(stage.source / "large", "rb") as ours,
        open(mounted / "large", "rb") as theirs,
        mmap.mmap(ours.fileno(), 0, prot=mmap.PROT_READ) as expected,
        mmap.mmap(theirs.fileno(), 0, prot=mmap.PROT_READ) as found,
    ):
        chance = random.Random(5)
        for _ in range(200):
            at = chance.randrange(SIZE - 5000)
            assert found[at : at + 5000] == expected[at : at + 5000]
        assert found[:] == expected[:]


def test_many_readers_at_once(stage: Stage, mounted: Path) -> None:
    names = ["large", "frame-and-one", "holes", "two-frames-and-one", "model.safetensors", "zeros"]
    for name in names:
        forget(mounted / name)

    def read(task: int) -> bool:
        name = names[task % len(names)]
        chance = random.Random(task)
        size = (stage.source / name).stat().st_size
        with open(stage.source / name, "rb") as ours, open(mounted / name, "rb") as theirs:
            if task % 3 == 0:
                return ours.read() == theirs.read()
            for _ in range(20):
                at = chance.randrange(size)
                if os.pread(ours.fileno(), 100_000, at) != os.pread(theirs.fileno(), 100_000, at):
                    return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(read, range(36)))


def test_a_crowded_folder_is_listed_whole_each_time(stage: Stage, mounted: Path) -> None:
    expected = sorted(os.listdir(stage.source / "crowd"))
    assert sorted(os.listdir(mounted / "crowd")) == expected
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: os.listdir(mounted / "crowd"), range(4)):
            assert sorted(found) == expected
    listed = subprocess.run(["ls", "-a", "-U", mounted / "crowd"], capture_output=True, text=True, check=True)
    assert sorted(listed.stdout.splitlines()) == sorted([".", "..", *expected])


def test_a_listing_goes_on_where_it_was(mounted: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
    libc.opendir.argtypes, libc.readdir.argtypes = [ctypes.c_char_p], [ctypes.c_void_p]
    libc.telldir.argtypes, libc.telldir.restype = [ctypes.c_void_p], ctypes.c_long
    libc.seekdir.argtypes, libc.closedir.argtypes = [ctypes.c_void_p, ctypes.c_long], [ctypes.c_void_p]
    folder = libc.opendir(os.fsencode(mounted / "crowd"))
    assert folder

    def following() -> bytes | None:
        entry = libc.readdir(folder)
        return ctypes.string_at(entry + 19) if entry else None  # d_name of struct dirent

    names, places = [], []
    places.append(libc.telldir(folder))
    while (name := following()) is not None:
        names.append(name)
        places.append(libc.telldir(folder))
    assert len(names) == MANY + 2
    for place in random.Random(1).sample(range(len(names)), 40):
        libc.seekdir(folder, places[place])
        assert following() == names[place]
    libc.closedir(folder)


def test_nothing_can_be_changed(mounted: Path) -> None:
    attempts: list[Callable[[], Any]] = [
        lambda: open(mounted / "one-byte", "r+b"),  # noqa: SIM115
        lambda: open(mounted / "new", "wb"),  # noqa: SIM115
        lambda: os.unlink(mounted / "one-byte"),
        lambda: os.mkdir(mounted / "new"),
        lambda: os.rename(mounted / "one-byte", mounted / "two"),
        lambda: os.chmod(mounted / "one-byte", 0o777),
        lambda: os.truncate(mounted / "one-byte", 0),
        lambda: os.setxattr(mounted / "one-byte", "user.x", b""),
        lambda: os.symlink("a", mounted / "new"),
        lambda: os.utime(mounted / "one-byte"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.EROFS
    assert not os.access(mounted / "one-byte", os.W_OK)


def test_what_is_not_there_is_told_as_such(mounted: Path) -> None:
    for _ in range(2):
        assert not (mounted / "missing").exists()
        with pytest.raises(NotADirectoryError):
            os.listdir(mounted / "one-byte")
        with pytest.raises(OSError) as caught:
            os.getxattr(mounted / "one-byte", "user.missing")
        assert caught.value.errno == errno.ENODATA


def test_tensors_load_from_it(stage: Stage, mounted: Path) -> None:
    with (
        safe_open(stage.source / "model.safetensors", "np") as ours,
        safe_open(mounted / "model.safetensors", "np") as theirs,
    ):
        assert set(ours.keys()) == set(theirs.keys())
        for name in ours.keys():  # noqa: SIM118
            assert np.array_equal(ours.get_tensor(name), theirs.get_tensor(name))


def test_the_kernel_reads_far_ahead(mounted: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may raise the kernel's read-ahead")
    device = mounted.stat().st_dev
    assert Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text().strip() == "4096"


def test_names_are_asked_once(mounted: Path) -> None:
    """The kernel answers from its own memory: whoever serves the mount is not even woken."""
    server = json.loads(os.getxattr(mounted, "user.tonne.mount"))["pid"]
    os.stat(mounted / "public" / "file")
    os.path.exists(mounted / "public" / "missing")
    before = times_woken(server)
    for _ in range(3000):
        os.stat(mounted / "public" / "file")
        os.path.exists(mounted / "public" / "missing")
    assert times_woken(server) - before < 300


def times_woken(pid: int) -> int:
    """How often the threads of a process gave up a core to wait."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        found += int(status.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return found


# --- options ---


def test_owner_and_permissions_as_asked(stage: Stage, tmp_path: Path) -> None:
    with stage.tonne.mounted(stage.reference, tmp_path / "m", "--uid", 1234, "--gid", 5678, "--umask", "027"):
        for path in ("public/file", "public", "mode-0755", "links/relative"):
            ours, theirs = os.lstat(stage.source / path), os.lstat(tmp_path / "m" / path)
            assert (theirs.st_uid, theirs.st_gid) == (1234, 5678)
            taken = 0 if os.path.islink(stage.source / path) else 0o027
            assert theirs.st_mode == ours.st_mode & ~taken


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_may_read_unless_they_may_not(stage: Stage, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    look = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", f"{tmp_path}/m/public/file"]
    with stage.tonne.mounted(stage.reference, tmp_path / "m") as result:
        assert result["allowOther"] is True
        assert subprocess.run(look, capture_output=True, check=True).stdout == b"for all"
    with stage.tonne.mounted(stage.reference, tmp_path / "m", "--no-allow-other") as result:
        assert result["allowOther"] is False
        assert subprocess.run(look, capture_output=True, check=False).returncode != 0


def test_the_result_for_scripts_and_for_people(stage: Stage, tmp_path: Path) -> None:
    with stage.tonne.mounted(stage.reference, tmp_path / "m") as result:
        assert result["digest"] == stage.digest
        assert result["reference"] == stage.reference
        assert result["mountpoint"] == str(tmp_path / "m")
        assert result["pid"] == process_of(tmp_path / "m")
        assert not gone(result["pid"])
        assert os.readlink(f"/proc/{result['pid']}/cwd") == "/", "the folder it was started in stays in use"
    assert gone(result["pid"])
    shown = stage.tonne.run("mount", stage.reference, tmp_path / "m").stdout
    assert stage.digest in shown
    stage.tonne.run("umount", tmp_path / "m")


def test_in_the_foreground_until_it_is_told_to_end(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    process = stage.tonne.start("mount", "--foreground", stage.reference, tmp_path / "m")
    try:
        wait_until(lambda: mount_at(tmp_path / "m") is not None, "mounted", 30)
        assert (tmp_path / "m" / "public" / "file").read_text() == "for all"
        assert process_of(tmp_path / "m") == process.pid
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=AWAY_S)
        assert stage.digest in out.decode()
        assert mount_at(tmp_path / "m") is None
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda point: None, "mount.point"),
        (lambda point: point.write_text("a file"), "mount.point"),
        (lambda point: (point.mkdir(), (point / "x").touch()), "mount.point"),
    ],
    ids=["missing", "file", "not-empty"],
)
def test_where_nothing_can_be_mounted(stage: Stage, tmp_path: Path, make: Callable[[Path], Any], code: str) -> None:
    make(tmp_path / "m")
    error = stage.tonne.error("mount", stage.reference, tmp_path / "m")
    assert error["code"] == code
    assert error["next"]


def test_errors_of_the_process_behind_come_through(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    layout = stage.reference.rpartition(":")[0]
    assert stage.tonne.error("mount", f"{layout}:missing", tmp_path / "m")["code"] == "missing.manifest"
    assert stage.tonne.error("mount", "registry..example/x", tmp_path / "m")["code"] == "reference.invalid"
    assert stage.tonne.error("--attempts", 1, "mount", "127.0.0.1:1/a/b:v1", tmp_path / "m")["code"] == (
        "unavailable.connect"
    )
    assert mount_at(tmp_path / "m") is None


# --- ends ---


def test_a_place_in_use_is_not_mounted_over(stage: Stage, tmp_path: Path) -> None:
    with stage.tonne.mounted(stage.reference, tmp_path / "m"):
        error = stage.tonne.error("mount", stage.reference, tmp_path / "m")
        assert error["code"] == "mount.point"
        assert "umount" in error["next"]


@contextlib.contextmanager
def holding(what: str, point: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that uses a mount in one way."""
    code = {
        "file": f"f = open({str(point / 'large')!r}, 'rb')",
        "folder": f"import os; os.chdir({str(point / 'links')!r})",
        "map": f"import mmap\nwith open({str(point / 'large')!r}) as f: m = mmap.mmap(f.fileno(), 0, prot=1)",
    }[what]
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint(flush=True)\nimport time; time.sleep(100)"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("what", ["file", "folder", "map"])
def test_a_busy_mount_says_who_uses_it(stage: Stage, tmp_path: Path, what: str) -> None:
    point = tmp_path / "m"
    with stage.tonne.mounted(stage.reference, point), holding(what, point) as holder:
        error = stage.tonne.error("umount", point)
        assert error["code"] == "mount.busy"
        assert error["fields"]["pids"] == str(holder.pid)
        assert "python" in error["why"]
        assert "--lazy" in error["next"]
        assert (point / "public" / "file").read_text() == "for all", "it is still mounted"


def test_lazily_it_vanishes_and_open_files_stay(stage: Stage, tmp_path: Path) -> None:
    point = tmp_path / "m"
    point.mkdir()
    pid = stage.tonne.json("mount", stage.reference, point)["pid"]
    with open(point / "frame-and-one", "rb") as file:
        stage.tonne.run("umount", "--lazy", point)
        assert mount_at(point) is None
        assert file.read() == (stage.source / "frame-and-one").read_bytes()
        assert not gone(pid)
    wait_until(lambda: gone(pid), "the process ends with the last file")


def test_what_is_not_mounted_cannot_be_unmounted(stage: Stage, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing", Path("/proc")):
        assert stage.tonne.error("umount", place)["code"] == "mount.absent"


def test_told_to_end_it_unmounts(stage: Stage, tmp_path: Path) -> None:
    point = tmp_path / "m"
    point.mkdir()
    pid = stage.tonne.json("mount", stage.reference, point)["pid"]
    file = os.open(point / "large", os.O_RDONLY)
    assert len(os.read(file, 10)) == 10
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: gone(pid), "the process ends")
    assert mount_at(point) is None
    with pytest.raises(OSError):
        os.pread(file, 10, 20 * MIB)
    # What close has to say about it is of no interest.
    with contextlib.suppress(OSError):
        os.close(file)


def test_killed_it_gives_errors_at_once_and_no_zeros(stage: Stage, tmp_path: Path) -> None:
    point = tmp_path / "m"
    point.mkdir()
    pid = stage.tonne.json("mount", stage.reference, point)["pid"]
    expected = (stage.source / "large").read_bytes()
    seen: list[str] = []
    with open(point / "large", "rb", buffering=0) as file, ThreadPoolExecutor(4) as pool:

        def read(seed: int) -> None:
            chance = random.Random(seed)
            while True:
                at = chance.randrange(SIZE)
                try:
                    data = os.pread(file.fileno(), 5000, at)
                except OSError as error:
                    seen.append(errno.errorcode[error.errno or 0])
                    return
                assert data == expected[at : at + 5000]

        readers = [pool.submit(read, seed) for seed in range(4)]
        time.sleep(0.2)
        # So that there is something to ask for.
        forget(point / "large")
        os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        wait_until(lambda: gone(pid), "the process ends")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for reader in readers:
            reader.result(AWAY_S)
        assert time.monotonic() - begin < AWAY_S
    assert set(seen) <= {"ENOTCONN", "ECONNABORTED", "EIO"}
    with pytest.raises(OSError) as caught:
        os.listdir(point)
    assert caught.value.errno == errno.ENOTCONN
    # The dead mount is in the way of a new one, and is cleared by umount.
    assert stage.tonne.error("mount", stage.reference, point)["code"] == "mount.point"
    stage.tonne.run("umount", point)
    assert mount_at(point) is None
    with stage.tonne.mounted(stage.reference, point):
        assert (point / "large").read_bytes() == expected


# --- a registry that stalls ---


def test_a_stall_gives_eio_at_the_deadline_and_the_next_read_tries_again(
    tmp_path: Path, docker_registry: Callable[..., DebianRegistry]
) -> None:
    registry = docker_registry()
    source = tmp_path / "source"
    source.mkdir()
    content = random.Random(4).randbytes(30 * MIB)
    (source / "large").write_bytes(content)
    (source / "small").write_text("small")
    tonne = Uncached(tmp_path / "cache")
    reference = f"{registry.address}/test/stall:v1"
    tonne.run("pack", source, reference)
    point = tmp_path / "m"
    point.mkdir()
    tonne.run("--deadline", 1.5, "mount", reference, point)
    with contextlib.ExitStack() as at_end:
        at_end.callback(lambda: tonne.run("umount", point))
        file = at_end.enter_context(open(point / "large", "rb", buffering=0))
        assert os.pread(file.fileno(), 1000, 0) == content[:1000]
        os.kill(registry.pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                hung = [pool.submit(os.pread, file.fileno(), 100, 8 * MIB + each * 1024) for each in range(8)]
                # What needs no registry is not held up.
                time.sleep(0.2)
                assert (point / "large").stat().st_size == len(content)
                assert sorted(os.listdir(point)) == ["large", "small"]
                assert os.pread(file.fileno(), 1000, 100) == content[100:1100]
                assert time.monotonic() - begin < 1.4, "something waited for the registry"
                for each in hung:
                    error = each.exception(AWAY_S)
                    assert isinstance(error, OSError)
                    assert error.errno == errno.EIO
            assert 1.0 < time.monotonic() - begin < AWAY_S
        finally:
            os.kill(registry.pid, signal.SIGCONT)
        assert os.pread(file.fileno(), 100, 8 * MIB) == content[8 * MIB : 8 * MIB + 100]
        assert (point / "large").read_bytes() == content


# --- a cache ---


@dataclass
class Served:
    """An image of one large file in a real registry, and the command with a cache."""

    registry: DebianRegistry
    tonne: Tonne
    reference: str
    pinned: str
    content: bytes

    def cached(self) -> list[Path]:
        """The files in which content is kept, the largest first."""
        found = [path for path in self.tonne.cache.rglob("*") if path.is_file()]
        return sorted(found, key=lambda path: -path.stat().st_blocks)


@pytest.fixture
def served(tmp_path: Path, docker_registry: Callable[..., DebianRegistry]) -> Served:
    registry = docker_registry()
    content = random.Random(8).randbytes(30 * MIB + 77)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large").write_bytes(content)
    reference = f"{registry.address}/test/cached:v1"
    digest = Uncached(tmp_path / "no-cache").json("pack", tmp_path / "source", reference)["digest"]
    pinned = f"{registry.address}/test/cached@{digest}"
    return Served(registry, Tonne(tmp_path / "cache"), reference, pinned, content)


def test_after_a_kill_no_byte_is_fetched_twice(served: Served, tmp_path: Path) -> None:
    point, half = tmp_path / "m", 15 * MIB
    point.mkdir()
    before = served.registry.bytes_sent()
    pid = served.tonne.json("mount", served.reference, point)["pid"]
    with open(point / "large", "rb") as file:
        assert file.read(half) == served.content[:half]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), "the process ends")
    served.tonne.run("umount", point)
    # More may have been on its way; what a reader has got is kept.
    kept = sum(512 * path.stat().st_blocks for path in served.tonne.cache.glob("blobs/*/data"))
    assert half <= kept <= served.registry.bytes_sent() - before + MIB
    served.registry.stop()
    again = served.registry.bytes_sent()
    with served.tonne.mounted(served.pinned, point), open(point / "large", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), half, 0) == served.content[:half], "without a registry"
        served.registry.start()
        assert (point / "large").read_bytes() == served.content
    assert served.registry.bytes_sent() - again < len(served.content) - kept + MIB, "bytes came twice"


def test_a_bit_that_flips_in_the_cache_reaches_nobody(served: Served, tmp_path: Path) -> None:
    point = tmp_path / "m"
    with served.tonne.mounted(served.reference, point):
        assert (point / "large").read_bytes() == served.content
    sent = served.registry.bytes_sent()
    with served.tonne.mounted(served.pinned, point):
        assert (point / "large").read_bytes() == served.content
    assert served.registry.bytes_sent() == sent, "the cache was not used"
    chance = random.Random(2)
    data = served.cached()[0]
    size = data.stat().st_size
    assert size > len(served.content) // 2
    for _ in range(2):
        with open(data, "r+b") as file:
            for _ in range(3):
                at = chance.randrange(size)
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ (1 << chance.randrange(8))]))
        sent = served.registry.bytes_sent()
        with served.tonne.mounted(served.pinned, point):
            assert (point / "large").read_bytes() == served.content
        assert served.registry.bytes_sent() > sent, "the rotten frame was not fetched again"
        sent = served.registry.bytes_sent()
        with served.tonne.mounted(served.pinned, point):
            assert (point / "large").read_bytes() == served.content
        assert served.registry.bytes_sent() == sent, "it was not healed"


def test_a_cache_smaller_than_what_is_read_stops_no_reader(served: Served, tmp_path: Path) -> None:
    limited = Tonne(tmp_path / "small-cache")
    point = tmp_path / "m"
    point.mkdir()
    limited.run("--cache-size", "5MiB", "mount", served.reference, point)
    try:
        assert (point / "large").read_bytes() == served.content
        forget(point / "large")
        assert (point / "large").read_bytes() == served.content
    finally:
        limited.run("umount", point)
