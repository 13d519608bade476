"""Images of any size, computed: ten terabytes need no bytes on a disk, and almost no hashing.

The content: every file begins with the same sequence of frames, which repeats with a prime period (so that a reader who
is off by anything gets wrong bytes), and ends with a tail of its own. The packs: the body, which all have in common, is
that sequence; a footer of its own (by its salt) makes each pack another blob; the tails fill one more pack. So the
SHA-256 of the body and the BLAKE3 of the common beginning are computed once, and their states copied.

The index is exact: pages of extents, frames and contents are computed again whenever they are asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from blake3 import blake3

from tonne.model import Blob, Digest, Entry, Kind, blake3_of
from tonne.model.frame import FRAME_BYTES
from tonne.testing.computed_files import FOLDER_FILES, PERIOD, TAIL_BYTES, TAIL_STEP_BYTES, ComputedFiles
from tonne.wire.oci import (
    CONFIG_TYPE,
    MANIFEST_TYPE,
    PACK_TYPE,
    PAGES_TYPE,
    ROOT_TYPE,
    Config,
    Descriptor,
    ImageManifest,
)
from tonne.wire.pack import encode_footer
from tonne.wire.page import PAGE_BYTES, tree_pages
from tonne.wire.pagelist import PageAddress
from tonne.wire.record import CONTENT, EXTENT, FRAME, NO_FRAME, Records
from tonne.wire.root import RECORD_OF, IndexBuilder, Pack, Part, Totals

PACKS_AIM = 1_200  # the pack size is doubled while there would be more, up to a limit
PACK_BYTES = 4 * 1024**3
PACK_BYTES_MAX = (
    16 * 1024**3
)  # a longer body takes more than ten seconds to hash; 50 TB are 3,000 of these, or a file each
_HASH_THREADS = 2
_MTIME_NS = 1_700_000_000_000_000_000

Chunks = Iterator[memoryview]


@dataclass(frozen=True, slots=True)
class ComputedBlob:
    """A blob that is computed: `read` yields its bytes from an offset, in pieces of up to a frame."""

    size_bytes: int
    read: Callable[[int, int], Chunks]

    def pieces(self, offset: int, length: int) -> Chunks:
        """As `tonne.testing.registry_body.Content` has it."""
        return self.read(offset, min(length, self.size_bytes - offset))


class ComputedImage(ComputedFiles):
    """The image of computed files. Immutable once built; any thread may read.

    `blobs` has every blob by digest, `manifest` the manifest's bytes, `digest` its digest.
    """

    def __init__(
        self,
        size_bytes: int,
        files: int,
        seed: int = 1,
        pack_bytes: int | None = None,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        """Takes about a second for each 5 GB of a file and each GB of a pack."""
        super().__init__(size_bytes, files, seed, frame_bytes)
        wanted = pack_bytes or _pack_bytes(size_bytes)
        even = -(-self.frames_each // -(-self.frames_each * frame_bytes // wanted))
        # Where a file goes on in a second pack, packs hold whole periods, so that its frames stay in phase.
        self.frames_in_pack = even if even == self.frames_each else -(-even // PERIOD) * PERIOD
        self.packs_each = -(-self.frames_each // self.frames_in_pack)
        self.body_packs = files * self.packs_each
        self.blobs: dict[Digest, ComputedBlob] = {}
        self._block_digests = [blake3_of(self._block(phase)) for phase in range(PERIOD)]
        self._build()

    # --- packs ---

    @property
    def body_bytes(self) -> int:
        return self.frames_in_pack * self.frame_bytes

    @cached_property
    def _body_frames(self) -> Records:
        """The frames of any body pack, with pack 0."""
        table = np.zeros(self.frames_in_pack, FRAME)
        table["offset"] = np.arange(self.frames_in_pack, dtype=np.uint64) * self.frame_bytes
        table["stored_bytes"] = table["raw_bytes"] = self.frame_bytes
        table["base"] = NO_FRAME
        table["digest"] = self._phases(np.arange(self.frames_in_pack))
        return table

    def _phases(self, frames: Any) -> Any:
        digests = np.array([np.void(digest) for digest in self._block_digests], dtype="V32")
        return digests[frames % PERIOD]

    @cached_property
    def _body_contents(self) -> Records:
        table = np.zeros(self.frames_in_pack, CONTENT)
        table["digest"] = self._body_frames["digest"]  # raw: the stored bytes are the content
        return table

    @cached_property
    def _tail_frames(self) -> Records:
        table = np.zeros(self.files, FRAME)
        lengths = TAIL_BYTES + np.arange(self.files, dtype=np.uint64) * TAIL_STEP_BYTES
        table["offset"] = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths)[:-1]])
        table["stored_bytes"] = table["raw_bytes"] = lengths
        table["base"] = NO_FRAME
        for file in range(self.files):
            table["digest"][file] = np.void(blake3_of(self._tail(file)))
        return table

    def _body_footer(self, pack: int) -> bytes:
        return encode_footer(self._body_frames, self._body_contents, self.body_bytes, _salt(pack))

    def _tail_footer(self) -> bytes:
        contents = np.zeros(self.files, CONTENT)
        contents["digest"] = self._tail_frames["digest"]
        return encode_footer(self._tail_frames, contents, self._tails_bytes, _salt(self.body_packs))

    @cached_property
    def _tails_bytes(self) -> int:
        return sum(self.tail_bytes(file) for file in range(self.files))

    def _read_body_pack(self, pack: int) -> Callable[[int, int], Chunks]:
        def read(offset: int, length: int) -> Chunks:
            end = offset + length
            while offset < min(end, self.body_bytes):
                inside = offset % self.frame_bytes
                piece = self._block(offset // self.frame_bytes % PERIOD)[inside : inside + end - offset]
                yield piece
                offset += len(piece)
            if offset < end:
                yield memoryview(self._body_footer(pack))[offset - self.body_bytes : end - self.body_bytes]

        return read

    def _read_tail_pack(self, offset: int, length: int) -> Chunks:
        end = offset + length
        starts = self._tail_frames["offset"]
        while offset < min(end, self._tails_bytes):
            file = int(np.searchsorted(starts, np.uint64(offset), "right")) - 1
            inside = offset - int(starts[file])
            piece = memoryview(self._tail(file))[inside : inside + end - offset]
            yield piece
            offset += len(piece)
        if offset < end:
            yield memoryview(self._tail_footer())[offset - self._tails_bytes : end - self._tails_bytes]

    def _build_packs(self) -> list[Pack]:
        body = hashlib.sha256()
        for frame in range(self.frames_in_pack):
            body.update(self._block(frame % PERIOD))
        packs: list[Pack] = []
        last_used = self.frames_each - (self.packs_each - 1) * self.frames_in_pack
        for number in range(self.body_packs):
            footer = self._body_footer(number)
            state = body.copy()
            state.update(footer)
            used = last_used if number % self.packs_each == self.packs_each - 1 else self.frames_in_pack
            size = self.body_bytes + len(footer)
            packs.append(self._pack(state.hexdigest(), size, number, self.frames_in_pack, used * self.frame_bytes))
            self.blobs[packs[-1].digest] = ComputedBlob(size, self._read_body_pack(number))
        tails = hashlib.sha256()
        for file in range(self.files):
            tails.update(self._tail(file))
        footer = self._tail_footer()
        tails.update(footer)
        size = self._tails_bytes + len(footer)
        packs.append(self._pack(tails.hexdigest(), size, self.body_packs, self.files, self._tails_bytes))
        self.blobs[packs[-1].digest] = ComputedBlob(size, self._read_tail_pack)
        return packs

    def _pack(self, digest: str, size: int, number: int, frames: int, used_bytes: int) -> Pack:
        first = number * self.frames_in_pack
        return Pack(Digest("sha256", digest), size, first, frames, used_bytes, salt=_salt(number))

    # --- index ---

    def _rows(self, part: Part, start: int, count: int) -> Records:
        """Records `start` and following of a part, computed."""
        places = np.arange(start, start + count, dtype=np.int64)
        if part is Part.EXTENTS:
            return self._extent_rows(places)
        table = np.zeros(count, RECORD_OF[part])
        body = places < self.body_packs * self.frames_in_pack
        inside = places % self.frames_in_pack
        tails = places[~body] - self.body_packs * self.frames_in_pack
        if part is Part.CONTENTS:
            table["digest"][body] = self._phases(inside[body])
            table["digest"][~body] = self._tail_frames["digest"][tails]
            return table
        table[body] = self._body_frames[inside[body]]
        table[~body] = self._tail_frames[tails]
        table["pack"] = np.where(body, places // self.frames_in_pack, self.body_packs)
        return table

    def _extent_rows(self, places: Any) -> Records:
        each = self.frames_each + 1
        file, number = places // each, places % each
        tail = number == self.frames_each
        table = np.zeros(len(places), EXTENT)
        table["inode"] = self._first_file_number + file
        table["file_offset"] = number * self.frame_bytes
        table["length"] = np.where(tail, TAIL_BYTES + file * TAIL_STEP_BYTES, self.frame_bytes)
        pack = file * self.packs_each + number // self.frames_in_pack
        body = pack * self.frames_in_pack + number % self.frames_in_pack
        table["frame"] = np.where(tail, self.body_packs * self.frames_in_pack + file, body)
        return table

    @property
    def _folders(self) -> int:
        return -(-self.files // FOLDER_FILES)

    @property
    def _first_file_number(self) -> int:
        return 2 + self._folders

    def _entries(self) -> Iterator[Entry]:
        plain: dict[str, Any] = {"uid": 0, "gid": 0, "mtime_ns": _MTIME_NS}
        folders, first = self._folders, self._first_file_number
        yield Entry(
            1,
            0,
            1,
            b"",
            Kind.DIRECTORY,
            0o755,
            size_bytes=0,
            links=2 + folders,
            first_child=2,
            children=folders,
            **plain,
        )
        for folder in range(folders):
            count = min(FOLDER_FILES, self.files - folder * FOLDER_FILES)
            child = first + folder * FOLDER_FILES
            name = b"part-%03d" % folder
            yield Entry(
                2 + folder,
                1,
                2 + folder,
                name,
                Kind.DIRECTORY,
                0o755,
                size_bytes=0,
                links=2,
                first_child=child,
                children=count,
                **plain,
            )
        common = self._common.result()
        for file in range(self.files):
            whole = common.copy()
            whole.update(self._tail(file))
            name = self.path(file).rpartition("/")[2].encode()
            yield Entry(
                first + file,
                2 + file // FOLDER_FILES,
                first + file,
                name,
                Kind.FILE,
                0o644,
                size_bytes=self.file_bytes(file),
                digest=whole.digest(),
                **plain,
            )

    def _hash_common(self) -> blake3:
        common = blake3(max_threads=_HASH_THREADS)
        for frame in range(self.frames_each):
            common.update(self._block(frame % PERIOD))
        return common

    def _build(self) -> None:
        # The two long hashes run side by side.
        with ThreadPoolExecutor(1) as pool:
            self._common = pool.submit(self._hash_common)
            packs = self._build_packs()
        builder = IndexBuilder()
        tree = b"".join(builder.store(Part.TREE, tree_pages(self._entries())))
        sha = hashlib.sha256(tree)
        at = len(tree)
        frames = self.body_packs * self.frames_in_pack + self.files
        counts = {Part.EXTENTS: self.files * (self.frames_each + 1), Part.FRAMES: frames, Part.CONTENTS: frames}
        runs: list[tuple[int, int, Part]] = []
        for part, count in counts.items():
            runs.append((at, at + count * RECORD_OF[part].itemsize, part))
            per_page = PAGE_BYTES // RECORD_OF[part].itemsize
            for start in range(0, count, per_page):
                rows = self._rows(part, start, min(per_page, count - start))
                data = rows.tobytes()
                sha.update(data)
                keys = (int(rows["inode"][0]), int(rows["file_offset"][0])) if part is Part.EXTENTS else (start, 0)
                builder.add(part, PageAddress(*keys, at, len(data), len(data), len(rows), 0, blake3_of(data), b""))
                at += len(data)
        content_bytes = sum(self.file_bytes(file) for file in range(self.files))
        self.totals = Totals(content_bytes, 1 + self._folders + self.files, self.files)
        tail, root = builder.finish(self.totals, packs)
        sha.update(tail)
        pages = Blob(Digest("sha256", sha.hexdigest()), at + len(tail))
        self.blobs[pages.digest] = ComputedBlob(pages.size_bytes, self._read_pages(tree, runs, at, tail))
        config = Config(
            "computed", {}, (), content_bytes, self.files, self.totals.entries, frames, content_bytes, content_bytes
        )
        self.manifest = ImageManifest(
            self._keep(CONFIG_TYPE, config.encode()),
            self._keep(ROOT_TYPE, root),
            Descriptor(PAGES_TYPE, pages.digest, pages.size_bytes),
            tuple(Descriptor(PACK_TYPE, pack.digest, pack.size_bytes) for pack in packs),
        ).encode()
        self.media_type = MANIFEST_TYPE
        self.digest = Digest.of(self.manifest)

    def _keep(self, media_type: str, data: bytes) -> Descriptor:
        digest = Digest.of(data)

        def read(offset: int, length: int) -> Chunks:
            yield memoryview(data)[offset : offset + length]

        self.blobs[digest] = ComputedBlob(len(data), read)
        return Descriptor(media_type, digest, len(data))

    def _read_pages(
        self, tree: bytes, runs: list[tuple[int, int, Part]], lists_at: int, lists: bytes
    ) -> Callable[[int, int], Chunks]:
        def read(offset: int, length: int) -> Chunks:
            end = offset + length
            if offset < len(tree):
                yield memoryview(tree)[offset : min(end, len(tree))]
                offset = min(end, len(tree))
            for start, stop, part in runs:
                size = RECORD_OF[part].itemsize
                while start <= offset < min(end, stop):
                    first = (offset - start) // size
                    last = min(-(-(min(end, stop) - start) // size), first + PAGE_BYTES)
                    data = self._rows(part, first, last - first).tobytes()
                    inside = offset - start - first * size
                    piece = memoryview(data)[inside : inside + min(end, stop) - offset]
                    yield piece
                    offset += len(piece)
            if offset < end:
                yield memoryview(lists)[offset - lists_at : end - lists_at]

        return read


def _pack_bytes(size_bytes: int) -> int:
    pack_bytes = PACK_BYTES
    while size_bytes / pack_bytes > PACKS_AIM and pack_bytes < PACK_BYTES_MAX:
        pack_bytes *= 2
    return pack_bytes


def _salt(pack: int) -> bytes:
    return b"computed" + pack.to_bytes(8, "little")
