"""Verify the files of a folder, pulled or mounted, against an image: types, sizes, contents, modes, times, links."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from blake3 import blake3

from tonne.clock import Deadline
from tonne.durable import local_errors
from tonne.errors import Interrupted, MissingPath, TonneError
from tonne.image.index import Index
from tonne.image.match import Selection
from tonne.image.pull_existing import same_time
from tonne.image.pull_plan import Paths, Plan, make_plan
from tonne.image.pull_state import FOLDER
from tonne.image.pull_target import Target
from tonne.image.verify_frames import Finding, Verdict, VerifyReport
from tonne.image.workers import Halt, in_order
from tonne.model import Entry, Kind
from tonne.progress import Progress

READ_BYTES = 4 * 1024 * 1024
THREADS = 4  # files hashed at once; each hashes in one thread


def verify_folder(
    index: Index,
    folder: Path,
    progress: Progress,
    on_file: Callable[[Verdict], None],
    selection: Selection | None = None,
) -> VerifyReport:
    """Compare `folder` with the image, or with the selected part of it.

    `on_file` gets a verdict for each file and link, for folders only bad ones, and for what the image does not have.
    Owners and extended attributes are not compared: pulls by users and mounts for users rightly differ in them.
    """
    if not folder.is_dir():
        raise MissingPath("no such folder", where=str(folder))
    with local_errors("the folder cannot be read", str(folder)):
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    halt = Halt()
    try:
        with Target(folder, root) as target:
            plan = make_plan(index, selection or Selection(), halt.deadline)
            return _Folder(index, plan, target, progress, on_file, halt).run()
    finally:
        halt.stop()


class _Folder:
    """One comparison.  The calling thread looks at names; workers read contents."""

    def __init__(
        self,
        index: Index,
        plan: Plan,
        target: Target,
        progress: Progress,
        on_file: Callable[[Verdict], None],
        halt: Halt,
    ) -> None:
        self._index = index
        self._plan = plan
        self._target = target
        self._progress = progress
        self._on_file = on_file
        self._halt = halt
        self._report = VerifyReport()
        self._inodes: dict[int, tuple[int, int]] = {}

    def run(self) -> VerifyReport:
        self._progress.begin("verifying", self._plan.content_bytes)
        for entry, path, findings in in_order(self._compared(), self._read, THREADS, self._halt):
            if entry.kind is not Kind.DIRECTORY:
                self._report.files_checked += 1
            if entry.kind is not Kind.DIRECTORY or findings:
                self._tell(path, entry.size_bytes, findings)
        self._extra(self._halt.deadline)
        return self._report

    def _tell(self, path: bytes, size_bytes: int, findings: list[Finding]) -> None:
        self._report.files_bad += bool(findings)
        for finding in findings:
            self._report.add(finding)
        self._on_file(Verdict(path, not findings, size_bytes, tuple(findings)))

    def _compared(self) -> Iterator[tuple[Entry, bytes, list[Finding], int | None]]:
        """Each wanted entry with what is wrong without reading it, and a descriptor of a file that is to be read."""
        paths = Paths(self._index, self._halt.deadline)
        for entry in self._index.walk(self._halt.deadline):
            if not self._plan.wanted[entry.number]:
                continue
            path = paths.of(entry)
            try:
                findings, descriptor = self._compare(entry, path)
            except (OSError, TonneError) as error:
                findings, descriptor = [Finding("unreadable", str(error), path=path)], None
            yield entry, path, findings, descriptor

    def _compare(self, entry: Entry, path: bytes) -> tuple[list[Finding], int | None]:
        facts = self._target.look(path)
        if facts is None:
            return [Finding("missing", "it is not there", path=path)], None
        findings = []
        if stat.S_IFMT(facts.st_mode) != int(entry.kind):
            return [Finding("type", f"it is no {entry.kind.name.lower()}", path=path)], None
        parent, _, name = path.rpartition(b"/")
        if entry.kind is Kind.SYMLINK:
            found = os.readlink(name, dir_fd=self._target.folder(parent))
            if found != entry.target:
                findings.append(Finding("target", f"it leads to {found!r}, not {entry.target!r}", path=path))
        elif stat.S_IMODE(facts.st_mode) != entry.permissions:
            why = f"it has mode {stat.S_IMODE(facts.st_mode):o}, not {entry.permissions:o}"
            findings.append(Finding("mode", why, path=path))
        if not same_time(facts.st_mtime_ns, entry.mtime_ns):
            findings.append(
                Finding("mtime", f"it has mtime {facts.st_mtime_ns} ns, not {entry.mtime_ns} ns", path=path)
            )
        if entry.links > 1 and not entry.is_dir:
            first = self._inodes.setdefault(entry.inode, (facts.st_dev, facts.st_ino))
            if first != (facts.st_dev, facts.st_ino):
                findings.append(Finding("link", "it is a file of its own, not a hard link", path=path))
        if entry.kind is not Kind.FILE:
            return findings, None
        if facts.st_size != entry.size_bytes:
            findings.append(Finding("size", f"it has {facts.st_size} bytes, not {entry.size_bytes}", path=path))
            return findings, None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return findings, os.open(name, flags, dir_fd=self._target.folder(parent))

    def _read(self, item: tuple[Entry, bytes, list[Finding], int | None]) -> tuple[Entry, bytes, list[Finding]]:
        entry, path, findings, descriptor = item
        if descriptor is None:
            return entry, path, findings
        try:
            if self._digest(descriptor) != entry.digest:
                findings.append(Finding("content", "its content has another digest", path=path))
        except OSError as error:
            findings.append(Finding("unreadable", error.strerror or str(error), path=path))
        finally:
            os.close(descriptor)
        return entry, path, findings

    def _digest(self, descriptor: int) -> bytes:
        hasher = blake3()
        # No longer than the file needs: filling it with zeros would cost a small one far more than reading it.
        buffer = memoryview(bytearray(min(READ_BYTES, os.fstat(descriptor).st_size + 1)))
        while size := os.readv(descriptor, [buffer]):
            if self._halt.stopped:
                raise Interrupted("stopped")
            hasher.update(buffer[:size])
            self._progress.advance(size)
        return hasher.digest()

    def _extra(self, deadline: Deadline) -> None:
        """What the folder has and the image has not; a folder of such things is told as one."""
        pending = [(self._index.entry(1, deadline), b"")]
        while pending:
            above, where = pending.pop()
            for name in self._target.names(where):
                below = where + b"/" + name if where else name
                entry = self._index.lookup(above, name, deadline)
                if entry is None:
                    why = "an unfinished pull" if below == FOLDER else "the image does not have it"
                    self._tell(below, 0, [Finding("extra", why, path=below)])
                elif entry.is_dir:
                    facts = self._target.look(below)
                    if facts is not None and stat.S_ISDIR(facts.st_mode):
                        pending.append((entry, below))
