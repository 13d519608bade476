"""Verify: every frame of an image, or a random part of them, and every file.  verify_folder.py has a folder's files.

Nothing is trusted but the manifest's digest.  A frame is read from the source, its stored digest checked, decoded, its
content digest checked; files are hashed as a whole in passing.  What is wrong is collected, not raised, so that one bad
frame does not hide another; only when the source cannot be read at all is that an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from tonne.codec.frames import Bytes
from tonne.errors import Corrupt, Interrupted, Missing
from tonne.image.fetch import Keeper
from tonne.image.index import Index
from tonne.image.opening import Image
from tonne.image.pull_plan import Paths
from tonne.image.runs import Run, all_files, runs_of
from tonne.image.verify_frames import FINDINGS_MAX, Finding, FrameCheck, Verdict, VerifyReport, check_frames
from tonne.image.workers import Halt, in_order
from tonne.model import Blob, Entry, Extent, Frame, blake3_of
from tonne.progress import Progress
from tonne.settings import Settings
from tonne.source.seam import Priority
from tonne.wire.page import extents_of
from tonne.wire.root import Part

FILE_FINDINGS_MAX = 1_000  # listed of one file; more are only counted: a lost file of 10 TB has 2.4 million
_ZEROS_BYTES = 1024 * 1024


def verify_image(
    image: Image,
    settings: Settings,
    progress: Progress,
    on_file: Callable[[Verdict], None],
    store: Keeper | None = None,
) -> VerifyReport:
    """Every frame and every file.  `on_file` gets a verdict for each file, as it comes.

    Frames that no file uses (of packs that older versions stored) are read too.  `store`: the local cache, of which the
    frames are checked in passing.
    """
    halt = Halt()
    index = image.index
    report = VerifyReport(frames=index.counted(Part.FRAMES, halt.deadline))
    seen = np.zeros(report.frames, np.bool_)
    progress.begin("verifying", index.root.totals.content_bytes)
    check = FrameCheck(image, index, store, halt)
    files = _Files(index, report, on_file, progress, seen, halt)
    try:
        files.run(check, settings)
        _check_unused(index, check, seen, report, settings, progress, halt)
    finally:
        halt.stop()
    return report


class _Files:
    """Hashes the files in order, out of the checked frames.  One thread."""

    def __init__(
        self,
        index: Index,
        report: VerifyReport,
        on_file: Callable[[Verdict], None],
        progress: Progress,
        seen: npt.NDArray[np.bool_],
        halt: Halt,
    ) -> None:
        self._index = index
        self._report = report
        self._on_file = on_file
        self._progress = progress
        self._seen = seen
        self._halt = halt
        self._paths = Paths(index, halt.deadline)
        self._entry: Entry | None = None
        self._hasher = blake3()
        self._at = 0
        self._findings: list[Finding] = []
        self._findings_more = 0

    def run(self, check: FrameCheck, settings: Settings) -> None:
        index, deadline = self._index, self._halt.deadline
        network = settings.network

        def wanted() -> Iterator[tuple[Entry, Extent]]:
            for entry, extents in all_files(index, deadline):
                for extent in extents:
                    yield entry, extent

        def work(run: Run[Entry]) -> tuple[Run[Entry], list[Bytes | None], list[Finding]]:
            return run, *check.of(run.frames)

        runs = runs_of(wanted(), index, network.request_bytes, deadline)
        for run, contents, findings in in_order(runs, work, network.connections, self._halt):
            self._count(run.frames, findings)
            bad = {finding.frame: finding for finding in findings}
            for entry, extent, place in run.uses:
                self._feed(entry, extent, None if place is None else contents[place], bad)
        self._empty_files()

    def _count(self, frames: Sequence[Frame], findings: Sequence[Finding]) -> None:
        for frame in frames:
            if not self._seen[frame.number]:
                self._seen[frame.number] = True
                self._report.frames_checked += 1
                self._report.stored_bytes += frame.stored_bytes
        for finding in findings:
            if finding.what == "cached frame":
                self._report.add(finding)

    def _feed(self, entry: Entry, extent: Extent, content: Bytes | None, bad: dict[int | None, Finding]) -> None:
        if self._entry is None or self._entry.inode != entry.inode:
            self._entry, self._hasher, self._at = entry, blake3(), 0
            self._findings, self._findings_more = [], 0
        if extent.frame is None:
            _hash_zeros(self._hasher, extent.length, self._halt)
        elif content is None and len(self._findings) >= FILE_FINDINGS_MAX:
            self._findings_more += 1
        elif content is None:
            path = self._findings[0].path if self._findings else self._paths.of(entry)
            self._findings.append(replace(bad[extent.frame], path=path, file_offset=extent.file_offset))
        else:
            self._hasher.update(memoryview(content)[extent.frame_offset : extent.frame_offset + extent.length])
        self._at = extent.end
        self._progress.advance(extent.length)
        if self._at == entry.size_bytes:
            if not self._findings and self._hasher.digest() != entry.digest:
                self._findings.append(
                    Finding("file", "the content has not the digest of its entry", path=self._paths.of(entry))
                )
            self._verdict(entry, self._findings, self._findings_more)

    def _empty_files(self) -> None:
        nothing = blake3_of(b"")
        for entry in self._index.walk(self._halt.deadline):
            if entry.is_file and entry.inode == entry.number and not entry.size_bytes:
                path = self._paths.of(entry)
                wrong = (
                    [] if entry.digest == nothing else [Finding("file", "an empty file has another digest", path=path)]
                )
                self._verdict(entry, wrong)

    def _verdict(self, entry: Entry, findings: list[Finding], more: int = 0) -> None:
        self._report.files_checked += 1
        self._report.files_bad += bool(findings)
        for finding in findings:
            self._report.add(finding)
        self._report.add_unlisted(more)
        self._on_file(Verdict(self._paths.of(entry), not findings, entry.size_bytes, tuple(findings), more))


def _hash_zeros(hasher: blake3, length: int, halt: Halt) -> None:
    """Of a hole, which may be of any size.  Raises `Interrupted`."""
    zeros = memoryview(bytes(min(length, _ZEROS_BYTES)))
    while length:
        if halt.stopped:
            raise Interrupted("stopped")
        hasher.update(zeros[:length])
        length -= min(length, len(zeros))


def _check_unused(
    index: Index,
    check: FrameCheck,
    seen: npt.NDArray[np.bool_],
    report: VerifyReport,
    settings: Settings,
    progress: Progress,
    halt: Halt,
) -> None:
    """Frames that no file of this image uses."""
    left = np.flatnonzero(~seen)
    if not len(left):
        return
    progress.begin("verifying frames that no file uses")
    for finding in check_frames(index, check, map(int, left), report, settings, progress, halt):
        report.add(finding)


def verify_sample(
    image: Image,
    settings: Settings,
    progress: Progress,
    share: float | None = None,
    count: int | None = None,
    seed: int | None = None,
    store: Keeper | None = None,
) -> VerifyReport:
    """A random part of the frames: `share` of them (over 0, up to 1), at least one, or `count` frames.

    The report tells the seed; the same seed takes the same frames.  Bad frames are named with the files that use them.
    """
    halt = Halt()
    index = image.index
    total = index.counted(Part.FRAMES, halt.deadline)
    wanted = min(total, count if count is not None else max(1, round(total * (share if share is not None else 1.0))))
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    report = VerifyReport(frames=total, seed=seed)
    numbers = (
        np.sort(np.random.default_rng(seed).choice(total, wanted, replace=False)) if total else np.zeros(0, np.int64)
    )
    progress.begin("verifying a sample")
    check = FrameCheck(image, index, store, halt)
    try:
        found: list[Finding] = []
        counts = np.zeros(total, np.uint8)  # of what is wrong with each frame
        for finding in check_frames(index, check, map(int, numbers), report, settings, progress, halt):
            if finding.frame is not None:
                counts[finding.frame] += 1
            if len(found) < FINDINGS_MAX:
                found.append(finding)
        if found:
            _add_with_files(index, found, counts, report, halt)
    finally:
        halt.stop()
    return report


def _add_with_files(
    index: Index, findings: list[Finding], counts: npt.NDArray[np.uint8], report: VerifyReport, halt: Halt
) -> None:
    """Add findings to the report, each for every place in a file that its frame is used in.

    `counts` (frames,): how many findings each frame has, those that are not in the list too.
    """
    listed = np.zeros(len(counts), np.bool_)
    listed[np.array([finding.frame for finding in findings if finding.frame is not None], np.int64)] = True
    used = np.zeros(len(counts), np.bool_)
    places: dict[int, list[tuple[int, int]]] = {}
    left = FINDINGS_MAX
    total = 0
    for table in index.tables(Part.EXTENTS, halt.deadline):
        rows = table[table["frame"] < len(counts)]
        rows = rows[counts[rows["frame"]] > 0]
        used[rows["frame"]] = True
        total += int(counts[rows["frame"]].sum(dtype=np.int64))
        rows = rows[listed[rows["frame"]]][:left]
        left -= len(rows)
        for inode, extent in zip(rows["inode"].tolist(), extents_of(rows), strict=True):
            if extent.frame is not None:
                places.setdefault(extent.frame, []).append((inode, extent.file_offset))
    total += int(counts[~used].sum(dtype=np.int64))
    before = report.findings_count
    paths = Paths(index, halt.deadline)
    for finding in findings:
        number = finding.frame
        if number is None or not used[number]:
            report.add(finding)
            continue
        for inode, offset in places.get(number, ()):
            path = paths.of(index.entry(inode, halt.deadline))
            report.add(replace(finding, path=path, file_offset=offset))
    report.add_unlisted(before + total - report.findings_count)


def verify_blobs(image: Image, settings: Settings, progress: Progress, report: VerifyReport) -> None:
    """The registry's digest of each whole blob, streamed; adds to `report`."""
    halt = Halt()
    blobs = list(dict.fromkeys(item.blob for item in image.manifest.blobs))
    source = image.fetcher.source
    progress.begin("verifying whole blobs", sum(blob.size_bytes for blob in blobs))

    def work(blob: Blob) -> Finding | None:
        hasher = blob.digest.hasher()
        buffer = memoryview(bytearray(min(settings.network.request_bytes, blob.size_bytes)))
        at = 0
        try:
            while at < blob.size_bytes:
                chunk = buffer[: min(len(buffer), blob.size_bytes - at)]
                source.read(blob, at, chunk, halt.deadline, None, Priority.BACKGROUND)
                hasher.update(chunk)
                at += len(chunk)
                progress.advance(len(chunk))
            size = source.size(blob.digest, halt.deadline)
            if size != blob.size_bytes:
                return Finding(
                    "blob", f"it has {size} bytes, not {blob.size_bytes}", pack=str(blob.digest), origin=source.origin
                )
        except (Corrupt, Missing) as error:
            return Finding("blob", error.what, pack=str(blob.digest), origin=source.origin)
        if hasher.hexdigest() != blob.digest.hex:
            return Finding("blob", "the whole blob has the wrong digest", pack=str(blob.digest), origin=source.origin)
        return None

    try:
        for finding in in_order(blobs, work, settings.network.connections, halt):
            report.blobs_checked += 1
            if finding is not None:
                report.add(finding)
    finally:
        halt.stop()
