"""Files whose content is computed: sizes, names and the right bytes at any place, without hashing anything."""

from __future__ import annotations

import threading
from pathlib import Path

from tonne.model.frame import FRAME_BYTES
from tonne.testing.content import content, fill

PERIOD = 31  # frames; prime, so that it shares no factor with pages, lanes or stripes; 124 MiB when all are in memory
TAIL_BYTES = 40_000  # and `TAIL_STEP_BYTES` more for each file's number, so that no two files are equally long
TAIL_STEP_BYTES = 7
FOLDER_FILES = 100  # in one folder
FILES_MAX = 100_000  # their names are then in byte order


class ComputedFiles:
    """The files of a computed image, together at least `size_bytes` large.  Any thread may read; made in no time.

    Each is a number of whole frames, the same for all files, and a tail of its own.  With a small `frame_bytes` an
    image of few bytes has many frames.
    """

    def __init__(self, size_bytes: int, files: int, seed: int = 1, frame_bytes: int = FRAME_BYTES) -> None:
        if files < 1 or size_bytes < files or not 0 < frame_bytes <= FRAME_BYTES:
            raise ValueError("each file needs a byte, and frames have 1 byte to 4 MiB")
        if files > FILES_MAX:
            raise ValueError(f"at most {FILES_MAX} files")
        self.files = files
        self.frame_bytes = frame_bytes
        self.frames_each = max(1, -(-(-(-size_bytes // files) - TAIL_BYTES) // frame_bytes))
        self._seed = seed
        self._lock = threading.Lock()
        self._blocks: dict[int, memoryview] = {}

    def tail_bytes(self, file: int) -> int:
        return TAIL_BYTES + file * TAIL_STEP_BYTES

    def file_bytes(self, file: int) -> int:
        return self.frames_each * self.frame_bytes + self.tail_bytes(file)

    def path(self, file: int) -> str:
        """Where file number `file` stands in the image."""
        return f"part-{file // FOLDER_FILES:03}/model-{file:05}.safetensors"

    def expected(self, file: int, offset: int, length: int) -> bytes:
        """The right bytes of a file; short at its end, as a read is."""
        found = bytearray()
        end = min(offset + length, self.file_bytes(file))
        common = self.frames_each * self.frame_bytes
        while offset < end:
            if offset < common:
                phase, inside = offset // self.frame_bytes % PERIOD, offset % self.frame_bytes
                piece = self._block(phase)[inside : min(self.frame_bytes, inside + end - offset)]
                piece = piece[: common - offset]
                found += piece
                offset += len(piece)
            else:
                found += content(self._seed + 1 + file, offset - common, end - offset)
                offset = end
        return bytes(found)

    def _block(self, phase: int) -> memoryview:
        with self._lock:
            kept = self._blocks.get(phase)
            if kept is None:
                data = bytearray(self.frame_bytes)
                fill(self._seed, phase * self.frame_bytes, data)
                kept = self._blocks[phase] = memoryview(data).toreadonly()
            return kept

    def _tail(self, file: int) -> bytearray:
        return content(self._seed + 1 + file, 0, self.tail_bytes(file))

    @property
    def total_bytes(self) -> int:
        """All files together."""
        return sum(self.file_bytes(file) for file in range(self.files))

    def write(self, folder: Path) -> None:
        """Make the files on a disk; for small images."""
        for file in range(self.files):
            path = folder / self.path(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.expected(file, 0, self.file_bytes(file)))
