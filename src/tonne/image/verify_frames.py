"""Checking frames, and what is said of those that are wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tonne.codec.frames import Bytes, Decoder
from tonne.errors import Corrupt, CorruptIndex, Missing, TonneError
from tonne.image.fetch import Keeper
from tonne.image.index import Index
from tonne.image.opening import Image
from tonne.image.runs import Run, runs_of
from tonne.image.workers import Halt, in_order
from tonne.model import Blob, Extent, Frame, blake3_of
from tonne.progress import Progress
from tonne.settings import Settings
from tonne.source.seam import Priority
from tonne.wire.root import Part

FINDINGS_MAX = 10_000  # listed; more are only counted, so that a lost pack does not fill the memory


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.  Offsets and lengths in bytes; what does not apply is None or empty.

    `what` is one of ``frame``, ``cached frame``, ``file``, ``blob``, or a way in which a file of a folder differs.
    """

    what: str
    why: str
    path: bytes | None = None
    file_offset: int | None = None
    frame: int | None = None
    pack: str = ""
    pack_offset: int | None = None
    length: int | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one file: checked as a whole and found good, or why not.

    `findings_more` were found beside those that are listed.
    """

    path: bytes
    good: bool
    size_bytes: int
    findings: tuple[Finding, ...] = ()
    findings_more: int = 0


@dataclass(slots=True)
class VerifyReport:
    """The sum.  `files_*` are 0 when only a sample of the frames was read."""

    frames: int = 0
    frames_checked: int = 0
    stored_bytes: int = 0
    files_checked: int = 0
    files_bad: int = 0
    blobs_checked: int = 0
    findings: list[Finding] = field(default_factory=list)
    findings_count: int = 0
    seed: int | None = None

    @property
    def good(self) -> bool:
        return not self.findings_count

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it while there is room."""
        self.findings_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def add_unlisted(self, count: int) -> None:
        """Count findings that nobody kept."""
        self.findings_count += count


class FrameCheck:
    """Reads frames from the source and says which are bad.  Any thread may call."""

    def __init__(self, image: Image, index: Index, store: Keeper | None, halt: Halt) -> None:
        self._image = image
        self._index = index
        self._store = store
        self._halt = halt
        self._local = threading.local()
        self._has_contents = index.has_part(Part.CONTENTS)

    def of(self, frames: Sequence[Frame]) -> tuple[list[Bytes | None], list[Finding]]:
        """The content of frames of one pack that lie together (None for a bad one), and what is wrong."""
        if not frames:
            return [], []
        pack = self._index.root.packs[frames[0].pack]
        findings = self._check_store(pack.blob, frames)
        try:
            stored = self._stored(pack.blob, frames)
        except (Corrupt, Missing) as error:
            stored = (
                [self._again(pack.blob, frame) for frame in frames]
                if isinstance(error, Corrupt)
                else [error] * len(frames)
            )
        contents: list[Bytes | None] = []
        for frame, data in zip(frames, stored, strict=True):
            try:
                if isinstance(data, TonneError):
                    raise data
                contents.append(self._content(pack.blob, frame, data))
            except (Corrupt, Missing) as error:
                contents.append(None)
                findings.append(
                    _frame_finding("frame", error.what, frame, pack.blob, self._image.fetcher.source.origin)
                )
        return contents, findings

    def _stored(self, blob: Blob, frames: Sequence[Frame]) -> list[memoryview | TonneError]:
        start, end = frames[0].offset, frames[-1].end
        out = memoryview(bytearray(end - start))
        # Not checked inside the read: one bad frame would have the whole run read again, and then lost.
        self._image.fetcher.source.read(blob, start, out, self._halt.deadline, None, Priority.BACKGROUND)
        return [out[frame.offset - start : frame.end - start] for frame in frames]

    def _content(self, blob: Blob, frame: Frame, stored: memoryview) -> Bytes:
        if blake3_of(stored) != frame.digest:
            again = self._again(blob, frame)  # it may have been the wire
            if isinstance(again, TonneError):
                raise again
            stored = again
        decoder: Decoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = Decoder()
        content: Bytes = decoder.decode(frame.codec, stored, frame.raw_bytes, frame.parameters)
        if self._has_contents:
            expected = self._index.content_digest(frame.number, self._halt.deadline)
            if blake3_of(content) != expected:
                raise CorruptIndex("the frame decodes to something else than was packed")
        return content

    def _again(self, blob: Blob, frame: Frame) -> memoryview | TonneError:
        """One frame alone, checked inside the read, so that another source is asked if there is one."""
        out = memoryview(bytearray(frame.stored_bytes))

        def check(data: memoryview) -> None:
            if blake3_of(data) != frame.digest:
                raise Corrupt("the stored bytes have the wrong digest", where=self._image.fetcher.source.origin)

        try:
            self._image.fetcher.source.read(blob, frame.offset, out, self._halt.deadline, check, Priority.BACKGROUND)
        except (Corrupt, Missing) as error:
            return error
        return out

    def _check_store(self, blob: Blob, frames: Sequence[Frame]) -> list[Finding]:
        """Frames that the local store holds, and holds wrongly; they are dropped there."""
        if self._store is None:
            return []
        findings = []
        kept = self._store.blob(blob)
        for frame in frames:
            out = memoryview(bytearray(frame.stored_bytes))
            if kept.read(frame.offset, out) and blake3_of(out) != frame.digest:
                kept.drop(frame.offset, frame.stored_bytes)
                why = "the stored bytes have the wrong digest; they were dropped and will be fetched again"
                findings.append(_frame_finding("cached frame", why, frame, blob, "the local cache"))
        return findings


def _frame_finding(what: str, why: str, frame: Frame, blob: Blob, origin: str) -> Finding:
    return Finding(
        what=what,
        why=why,
        frame=frame.number,
        pack=str(blob.digest),
        pack_offset=frame.offset,
        length=frame.stored_bytes,
        origin=origin,
    )


def check_frames(
    index: Index,
    check: FrameCheck,
    numbers: Iterator[int],
    report: VerifyReport,
    settings: Settings,
    progress: Progress,
    halt: Halt,
) -> Iterator[Finding]:
    """Check frames by number, ascending, and count them; yields what is wrong."""

    def whole() -> Iterator[tuple[None, Extent]]:
        for number in numbers:
            frame = index.frames([number], halt.deadline)[0]
            yield None, Extent(0, frame.raw_bytes, number, 0)

    def work(run: Run[None]) -> tuple[Run[None], list[Finding]]:
        return run, check.of(run.frames)[1]

    runs = runs_of(whole(), index, settings.network.request_bytes, halt.deadline)
    for run, findings in in_order(runs, work, settings.network.connections, halt):
        report.frames_checked += len(run.frames)
        report.stored_bytes += run.stored_bytes
        progress.advance(run.stored_bytes)
        yield from findings
