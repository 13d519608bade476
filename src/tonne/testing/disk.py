"""A disk that fails when it is told to, and remembers in which order it was written and synced.

    disk = FaultyDisk()
    disk.fail("pwrite", errno.ENOSPC, nth=3, times=None)    # from the third write on the disk is full
    disk.tear(nth=2, keep_bytes=100)                        # the second write stops after 100 bytes, with EIO
    disk.shorten(nth=1, keep_bytes=10)                      # the first write takes 10 bytes, which is no error
    ...
    assert disk.fired                                       # a fault that met nothing proves nothing

`tonne.testing.power` makes the states that a power cut may leave out of `steps`.
"""

from __future__ import annotations

import errno as numbers
import fnmatch
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tonne.store.disk import Disk, OsDisk

CALLS = (
    "open",
    "close",
    "stat_open",
    "pwrite",
    "preadv",
    "fsync",
    "fdatasync",
    "uncache",
    "reserve",
    "punch",
    "next_data",
    "lock",
    "unlock",
    "rename",
    "unlink",
    "stat",
    "touch",
    "listdir",
    "makedirs",
    "rmdir",
    "boot_id",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One call that changed or synced something, after it was done.

    `inode` numbers files in the order in which they were first met, so that a name that comes again for another file
    is told apart; it is 0 for folders.  `call` is the method's name, or ``create`` and ``truncate`` for what an `open`
    did.
    """

    call: str
    path: str  # of a rename: the new one
    inode: int = 0
    offset: int = 0
    data: bytes = b""  # of a write, what was written
    length: int = 0  # of a punch
    old: str = ""  # of a rename


@dataclass(slots=True)
class _Fault:
    call: str
    nth: int
    times: int | None
    pattern: str
    errno: int
    keep_bytes: int | None = None  # of a write: so many bytes are written first
    seen: int = 0
    fired: int = 0

    def wants(self, call: str, path: str) -> bool:
        if call != self.call or not fnmatch.fnmatchcase(path, self.pattern):
            return False
        self.seen += 1
        if self.seen < self.nth or (self.times is not None and self.fired >= self.times):
            return False
        self.fired += 1
        return True


@dataclass(frozen=True, slots=True)
class _Open:
    path: str
    inode: int


class FaultyDisk:
    """A `tonne.store.disk.Disk` over another one, the operating system's by default.

    Any thread may call; `_lock` guards the faults and the steps, and is held over a call that changes something, so
    that the steps stand in the order of what happened.  A call that fails changes nothing, but for `tear`.  `boot`
    stands for the machine's boot id when it is set: another value is another start of the machine.
    """

    def __init__(self, inner: Disk | None = None) -> None:
        self._inner: Disk = inner or OsDisk()
        self.boot: str | None = None
        self._lock = threading.RLock()
        self._faults: list[_Fault] = []
        self._fired: list[tuple[str, str]] = []
        self._calls: list[tuple[str, str]] = []
        self._steps: list[Step] = []
        self._opened: dict[int, _Open] = {}
        self._inodes: dict[str, int] = {}
        self._inodes_given = 0

    # --- knobs

    def fail(self, call: str, errno: int, *, nth: int = 1, times: int | None = 1, path: str = "*") -> None:
        """The `nth` call (from 1, of those on paths like `path`) raises, and those after it: `times` in all."""
        self._add(_Fault(call, nth, times, path, errno))

    def tear(self, *, keep_bytes: int, nth: int = 1, times: int | None = 1, path: str = "*") -> None:
        """A write stops after `keep_bytes` and raises EIO."""
        self._add(_Fault("pwrite", nth, times, path, numbers.EIO, keep_bytes))

    def shorten(self, *, keep_bytes: int, nth: int = 1, times: int | None = 1, path: str = "*") -> None:
        """A write takes only `keep_bytes` and says so."""
        if keep_bytes < 1:
            raise ValueError("a short write takes at least a byte")
        self._add(_Fault("pwrite", nth, times, path, 0, keep_bytes))

    def heal(self) -> None:
        """Take all faults away."""
        with self._lock:
            self._faults.clear()

    def _add(self, fault: _Fault) -> None:
        if fault.call not in CALLS or fault.nth < 1:
            raise ValueError(f"no such call: {fault.call}")
        with self._lock:
            self._faults.append(fault)

    # --- what happened

    @property
    def fired(self) -> list[tuple[str, str]]:
        """Call and path of each fault that happened, in order."""
        with self._lock:
            return list(self._fired)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and path of each call so far, the failed ones too."""
        with self._lock:
            return list(self._calls)

    def count(self, call: str) -> int:
        return sum(name == call for name, _ in self.calls)

    @property
    def steps(self) -> list[Step]:
        """What changed or synced something, in order."""
        with self._lock:
            return list(self._steps)

    @property
    def open_count(self) -> int:
        """Descriptors that were not closed yet."""
        with self._lock:
            return len(self._opened)

    # --- the calls

    def _enter(self, call: str, path: str) -> _Fault | None:
        """Note a call; raises what is to be raised, and returns the fault of a write that goes half its way."""
        self._calls.append((call, path))
        wanting = [fault for fault in self._faults if fault.wants(call, path)]
        if not wanting:
            return None
        self._fired.append((call, path))
        if wanting[0].keep_bytes is None:
            raise OSError(wanting[0].errno, os.strerror(wanting[0].errno), path)
        return wanting[0]

    def _path(self, descriptor: int) -> str:
        return self._opened[descriptor].path

    def _inode(self, path: str, *, new: bool = False) -> int:
        if new or path not in self._inodes:
            self._inodes_given += 1
            self._inodes[path] = self._inodes_given
        return self._inodes[path]

    def open(self, path: str, flags: int) -> int:
        with self._lock:
            self._enter("open", path)
            is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            descriptor = self._inner.open(path, flags)
            is_folder = bool(flags & os.O_DIRECTORY)
            inode = 0 if is_folder else self._inode(path, new=is_new)
            self._opened[descriptor] = _Open(path, inode)
            if is_new:
                self._steps.append(Step("create", path, inode))
            elif flags & os.O_TRUNC:
                self._steps.append(Step("truncate", path, inode))
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            # A failing close(2) closes all the same.
            opened = self._opened.pop(descriptor)
            self._inner.close(descriptor)
            self._enter("close", opened.path)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        with self._lock:
            opened = self._opened[descriptor]
            fault = self._enter("pwrite", opened.path)
            view = memoryview(data).cast("B")
            if fault is not None and fault.keep_bytes is not None:
                view = view[: fault.keep_bytes]
            written = self._inner.pwrite(descriptor, view, offset) if view.nbytes else 0
            if written:
                self._steps.append(Step("pwrite", opened.path, opened.inode, offset, bytes(view[:written])))
            if fault is not None and fault.errno:
                raise OSError(fault.errno, os.strerror(fault.errno), opened.path)
            return written

    def _changing(self, call: str, step: Step, change: Callable[[], None]) -> None:
        with self._lock:
            self._enter(call, step.path)
            change()
            self._steps.append(step)

    def fsync(self, descriptor: int) -> None:
        opened = self._opened[descriptor]
        self._changing("fsync", Step("fsync", opened.path, opened.inode), lambda: self._inner.fsync(descriptor))

    def fdatasync(self, descriptor: int) -> None:
        opened = self._opened[descriptor]
        step = Step("fdatasync", opened.path, opened.inode)
        self._changing("fdatasync", step, lambda: self._inner.fdatasync(descriptor))

    def uncache(self, descriptor: int, offset: int, length: int) -> None:
        with self._lock:
            self._enter("uncache", self._opened[descriptor].path)
            self._inner.uncache(descriptor, offset, length)

    def reserve(self, descriptor: int, offset: int, length: int) -> None:
        with self._lock:
            self._enter("reserve", self._opened[descriptor].path)
            self._inner.reserve(descriptor, offset, length)

    def punch(self, descriptor: int, offset: int, length: int) -> None:
        opened = self._opened[descriptor]
        step = Step("punch", opened.path, opened.inode, offset, length=length)
        self._changing("punch", step, lambda: self._inner.punch(descriptor, offset, length))

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self._enter("rename", new)
            self._inner.rename(old, new)
            self._inodes[new] = self._inode(old)
            del self._inodes[old]
            self._steps.append(Step("rename", new, self._inodes[new], old=old))

    def unlink(self, path: str) -> None:
        with self._lock:
            self._enter("unlink", path)
            inode = self._inode(path)
            self._inner.unlink(path)
            del self._inodes[path]
            self._steps.append(Step("unlink", path, inode))

    def makedirs(self, path: str) -> None:
        self._changing("makedirs", Step("makedirs", path), lambda: self._inner.makedirs(path))

    def rmdir(self, path: str) -> None:
        self._changing("rmdir", Step("rmdir", path), lambda: self._inner.rmdir(path))

    def _note(self, call: str, path: str) -> None:
        with self._lock:
            self._enter(call, path)

    def stat_open(self, descriptor: int) -> os.stat_result:
        self._note("stat_open", self._path(descriptor))
        return self._inner.stat_open(descriptor)

    def preadv(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._note("preadv", self._path(descriptor))
        return self._inner.preadv(descriptor, buffers, offset)

    def next_data(self, descriptor: int, offset: int) -> int | None:
        self._note("next_data", self._path(descriptor))
        return self._inner.next_data(descriptor, offset)

    def lock(self, descriptor: int) -> bool:
        self._note("lock", self._path(descriptor))
        return self._inner.lock(descriptor)

    def unlock(self, descriptor: int) -> None:
        self._note("unlock", self._path(descriptor))
        self._inner.unlock(descriptor)

    def stat(self, path: str) -> os.stat_result:
        self._note("stat", path)
        return self._inner.stat(path)

    def touch(self, path: str, mtime_s: float) -> None:
        self._note("touch", path)
        self._inner.touch(path, mtime_s)

    def listdir(self, path: str) -> list[str]:
        self._note("listdir", path)
        return self._inner.listdir(path)

    def boot_id(self) -> str:
        self._note("boot_id", "")
        return self.boot if self.boot is not None else self._inner.boot_id()
