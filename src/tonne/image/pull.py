"""Pull: an image's files in a folder, in parallel, resumable, verified.

The bytes take the way of every read: fetched as frames, verified, decoded.  Nothing is kept twice: a frame is written
to where its files want it and nowhere else.  DIR/.tonne-pull holds what is unfinished and goes at the end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tonne.durable import local_errors
from tonne.errors import DiskFull, Interrupted, TargetExists, TonneError
from tonne.image.fetch import Fetcher
from tonne.image.index import Index
from tonne.image.match import Selection
from tonne.image.opening import Image
from tonne.image.pull_existing import Existing, look_for
from tonne.image.pull_files import Attributes, Files, PulledFile, sync_file_system
from tonne.image.pull_plan import Paths, Plan, make_plan
from tonne.image.pull_resume import Found, found_before
from tonne.image.pull_state import FOLDER, PagesKeeper, PullState, ReadOnlyKeeper
from tonne.image.pull_target import Target
from tonne.image.runs import Contents, Run, all_files, runs_of
from tonne.image.workers import Halt, all_of
from tonne.model import Digest, Entry, Extent, Kind
from tonne.progress import Progress
from tonne.settings import Settings
from tonne.wire.record import NO_FRAME
from tonne.wire.root import Part


@dataclass(frozen=True, slots=True)
class PullReport:
    """What a pull did.  Lengths in bytes of content; `kept_*` stood in the folder before, `found_bytes` in unfinished
    files of an earlier pull, `made_bytes` came now (holes included)."""

    digest: Digest
    files: int
    entries: int
    content_bytes: int
    kept_files: int
    kept_bytes: int
    found_bytes: int
    made_bytes: int


def pull(
    image: Image,
    folder: Path,
    settings: Settings,
    progress: Progress,
    *,
    include: Sequence[str | bytes] = (),
    exclude: Sequence[str | bytes] = (),
    force: bool = False,
    on_event: Callable[[TonneError], None] = lambda error: None,
) -> PullReport:
    """Make the image's files in `folder`.

    The folder may be missing, empty, hold an unfinished pull of the same manifest (which goes on), or files of the
    image (which are kept if type, size and mtime agree).  Anything else is `TargetExists`; with `force`, what differs
    is replaced, what the image does not have is left, and an unfinished pull of another image is thrown away.

    Errors: those of reading; `DiskFull` before or in the middle; `UnsafePath`; `Locked` while another pull fills it.
    After any error, and after a crash, the same call goes on.
    """
    with Target.open(folder) as target:
        run = _Pull(image, target, settings, progress, on_event)
        return run.run(Selection(include, exclude), force)


class _Pull:
    """One pull.  Lives in the calling thread; the workers see `files` and `contents` alone."""

    def __init__(
        self,
        image: Image,
        target: Target,
        settings: Settings,
        progress: Progress,
        on_event: Callable[[TonneError], None],
    ) -> None:
        self._image = image
        self._target = target
        self._settings = settings
        self._progress = progress
        self._on_event = on_event
        self._halt = Halt()
        self._found_bytes = 0
        self._made_bytes = 0

    def run(self, selection: Selection, force: bool) -> PullReport:
        begun = self._begun(force)
        fresh = not begun and not self._target.names(b"")
        state = PullState(self._target, self._image.digest) if begun or fresh else None
        try:
            self._progress.begin("reading the index")
            index = self._index(state)
            plan = make_plan(index, selection, self._halt.deadline)
            existing = Existing(np.zeros(len(plan.wanted), np.bool_))
            if not fresh:
                existing = look_for(self._target, index, plan, self._halt.deadline, strict=not force)
                if not force:
                    existing.check(self._target)
            if state is None:
                state = PullState(self._target, self._image.digest)
                index = self._index(state)
            try:
                self._check_free(plan, existing, state)
            except DiskFull:
                if not state.unfinished:  # nothing was made yet, so nothing is left behind
                    state.close()
                    self._target.forget(FOLDER)
                    PullState.discard(self._target)
                raise
            self._make_files(index, plan, existing, state)
            self._progress.begin("setting names, links and times")
            self._make_others(index, plan, existing, force)
        finally:
            if state is not None:
                state.close()
        self._target.forget(FOLDER)
        PullState.discard(self._target)
        self._finish_folders(index, plan)
        with local_errors("the folder cannot be synced", str(self._target.path)):
            sync_file_system(self._target.root)
        return PullReport(
            self._image.digest,
            plan.files,
            plan.entries,
            plan.content_bytes,
            existing.files,
            existing.file_bytes,
            self._found_bytes,
            self._made_bytes,
        )

    def _begun(self, force: bool) -> bool:
        """Whether an unfinished pull of this image is to go on."""
        before = PullState.pulled_before(self._target)
        if before is None or before == self._image.digest:
            return before is not None
        if not force:
            raise TargetExists(
                "an unfinished pull of another image is in the folder",
                where=str(self._target.path),
                why=f"it is of {before}",
                todo="finish it by that digest, choose another folder, or throw it away with --force",
            )
        PullState.discard(self._target)
        return False

    def _index(self, state: PullState | None) -> Index:
        """An index of which the pages are kept in the folder; a small one was fetched whole and is not."""
        index = self._image.index
        if state is None or index.root.pages_bytes <= self._settings.read.whole_index_bytes:
            return index
        pages, fetcher = self._image.manifest.pages.blob, self._image.fetcher
        keeper = PagesKeeper(fetcher.store, pages, state.pages)
        network = self._settings.network
        keeping = Fetcher(fetcher.source, keeper, network.request_bytes, self._on_event)
        return Index(index.root, pages, keeping, self._settings.read.page_cache_bytes)

    def _check_free(self, plan: Plan, existing: Existing, state: PullState) -> None:
        need = plan.content_bytes - existing.file_bytes
        for inode in state.unfinished:
            need -= os.stat(b"%d" % inode, dir_fd=state.files, follow_symlinks=False).st_blocks * 512
        free = self._target.free_bytes
        if need > free:
            # Holes need no room, but are known only from the extents.
            need -= self._hole_bytes(plan, existing)
        if need > free:
            raise DiskFull(
                "the image does not fit",
                where=str(self._target.path),
                why=f"it needs {need} bytes and {free} are free",
                need_bytes=need,
                free_bytes=free,
            )

    def _hole_bytes(self, plan: Plan, existing: Existing) -> int:
        holes = 0
        index = self._image.index
        if index.has_part(Part.EXTENTS):
            for table in index.extents_of_inodes(plan.needed(existing.present), self._halt.deadline):
                rows = table[table["frame"] == NO_FRAME]
                upper = rows["frame_offset"].astype(np.uint64) << np.uint64(32)  # of a hole's length
                holes += int((rows["length"] + upper).sum(dtype=np.uint64))
        return holes

    # --- files ---

    def _make_files(self, index: Index, plan: Plan, existing: Existing, state: PullState) -> None:
        self._progress.begin("pulling", plan.content_bytes - existing.file_bytes)
        network = self._settings.network
        files = Files(self._target, state, self._halt, self._on_event)
        below = self._image.fetcher.store
        store = ReadOnlyKeeper(below) if below is not None else None
        spare_bytes = network.connections * network.request_bytes  # each worker's own comes back to it
        fetcher = Fetcher(self._image.fetcher.source, store, network.request_bytes, self._on_event, spare_bytes)
        contents = Contents(fetcher, index)

        def work(run: Run[PulledFile]) -> None:
            files.write(run, contents.of(run.frames, self._halt.deadline))
            self._progress.advance(sum(extent.length for _, extent, _ in run.uses))

        wanted = self._wanted(index, plan, existing, state, files)
        try:
            all_of(
                runs_of(wanted, index, network.request_bytes, self._halt.deadline),
                work,
                network.connections,
                self._halt,
            )
        except Interrupted:
            files.close()  # raises what stopped the others, if it was that
            raise
        except BaseException:
            try:
                files.close()
            except TonneError as error:
                self._on_event(error)
            raise
        files.close()

    def _wanted(
        self, index: Index, plan: Plan, existing: Existing, state: PullState, files: Files
    ) -> Iterator[tuple[PulledFile, Extent]]:
        """The extents that are still to be made, file by file; makes the unfinished files as they come."""
        paths = Paths(index, self._halt.deadline)
        deadline = self._halt.deadline
        for first, extents in all_files(index, deadline, plan.needed(existing.present)):
            number = plan.name_of(first.inode)
            entry = first if number == first.number else index.entry(number, deadline)
            file = PulledFile(entry, paths.of(entry), first.size_bytes)
            found: Found | None = None
            if first.inode in state.unfinished:
                found = found_before(first, state, index, deadline)
            if found is None:
                files.begin(file)
            done = holes = 0
            for extent in extents:
                if extent.frame is None:
                    holes += extent.length
                elif found is not None and found.has(extent):
                    done += extent.length
                else:
                    self._made_bytes += extent.length
                    yield file, extent
            if found is not None:
                found.close()
            self._made_bytes += holes
            self._found_bytes += done
            if done + holes:
                self._progress.advance(done + holes)
                files.done_before(file, done + holes)

    # --- all else ---

    def _make_others(self, index: Index, plan: Plan, existing: Existing, force: bool) -> None:
        """Folders, empty files, symbolic links, hard links: in the order of their numbers, so parents come first."""
        attributes = Attributes(self._on_event)
        paths = Paths(index, self._halt.deadline)
        for entry in index.walk(self._halt.deadline):
            if not plan.wanted[entry.number]:
                continue
            path = paths.of(entry)
            parent, _, name = path.rpartition(b"/")
            with local_errors("an entry cannot be made", self._target.where(path)):
                if entry.is_dir:
                    self._target.folder(path, create=True)
                elif entry.is_file and plan.name_of(entry.inode) != entry.number:
                    self._link(index, plan, paths, entry, path)
                elif existing.present[entry.number]:
                    continue
                elif entry.inode != entry.number and entry.kind is Kind.SYMLINK and plan.wanted[entry.inode]:
                    self._link(index, plan, paths, entry, path)
                elif entry.kind is Kind.SYMLINK:
                    folder = self._target.folder(parent, create=True)
                    self._replace(path, force)
                    os.symlink(entry.target, name, dir_fd=folder)
                    attributes.give_link(folder, name, entry, path)
                elif entry.size_bytes == 0:
                    self._empty(attributes, entry, path, force)

    def _empty(self, attributes: Attributes, entry: Entry, path: bytes, force: bool) -> None:
        parent, _, name = path.rpartition(b"/")
        folder = self._target.folder(parent, create=True)
        self._replace(path, force)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            attributes.give(descriptor, entry, path)
        finally:
            os.close(descriptor)

    def _link(self, index: Index, plan: Plan, paths: Paths, entry: Entry, path: bytes) -> None:
        """A further name of a file or link."""
        number = entry.inode if entry.kind is Kind.SYMLINK else plan.name_of(entry.inode)
        first = paths.of(index.entry(number, self._halt.deadline))
        there, here = self._target.look(first), self._target.look(path)
        if here is not None and there is not None and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            return
        if here is not None:
            self._replace(path, force=True)  # it has the content already, or --force was given: checked before
        parent, _, name = path.rpartition(b"/")
        first_parent, _, first_name = first.rpartition(b"/")
        # Two users of the descriptors' cache, so the first is copied before the second may push it out.
        source = os.dup(self._target.folder(first_parent))
        try:
            folder = self._target.folder(parent, create=True)
            os.link(first_name, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)

    def _replace(self, path: bytes, force: bool) -> None:
        """Make room for an entry: remove a file or link that stands there; never a folder."""
        facts = self._target.look(path)
        if facts is None:
            return
        if stat.S_ISDIR(facts.st_mode) or not force:
            raise TargetExists("something stands where the image has an entry", where=self._target.where(path))
        parent, _, name = path.rpartition(b"/")
        os.unlink(name, dir_fd=self._target.folder(parent))

    def _finish_folders(self, index: Index, plan: Plan) -> None:
        """Owner, mode and times of folders, the deepest first: whatever is made in a folder changes its time."""
        attributes = Attributes(self._on_event)
        paths = Paths(index, self._halt.deadline)
        for number in range(len(plan.wanted) - 1, 0, -1):
            if not plan.wanted[number]:
                continue
            entry = index.entry(number, self._halt.deadline)
            if entry.is_dir:
                path = paths.of(entry)
                with local_errors("a folder cannot be finished", self._target.where(path)):
                    attributes.give(self._target.folder(path), entry, path)
