"""What an interrupted packing leaves for the next run: a folder of small documents for each source and target.

    pack/KEY.lock       held by the process that packs
    pack/KEY/journal    what is packed, against what, how: a run that differs in any of it starts over
    pack/KEY/bases      which packs of bases could be used, so that the next run decides alike
    pack/KEY/uploads/   the token of each upload: of the pack that lane L is sending from its frame N on (lane-L-N), of
                        parts of the index and of packs of bases (by digest)
    pack/KEY/packs/     a footer for each pack that was sent; lane, first frame, digest and size are its name
    pack/KEY/scratch/   tables of the run; emptied by the next one

Tokens may hold signed URLs: the folder is readable by its owner alone.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tonne.clock import Clock
from tonne.durable import local_errors, write_document
from tonne.errors import CorruptDocument, CorruptIndex, UnknownVersion
from tonne.image.locked_folder import LockedFolder
from tonne.image.pack.places import n_of
from tonne.image.upload_notes import UploadNotes
from tonne.model import Blob, Digest
from tonne.wire.pack import TRAILER_BYTES, parse_footer, parse_trailer
from tonne.wire.record import FOOTER, Records

_JOURNAL_BYTES_MAX = 64 * 1024 * 1024  # of one document; a footer of the most frames has 6 MiB


@dataclass(frozen=True, slots=True)
class SentPack:
    """A pack of ours: the frames of lane `lane` from `start` on, `count` of them.  Its footer is in `path`."""

    lane: int
    start: int
    count: int
    blob: Blob
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.count

    def tables(self) -> tuple[Records, Records]:
        """Frames and contents as the pack's footer lists them; `CorruptIndex` when the file was damaged."""
        with local_errors("a note of a pack cannot be read", str(self.path)):
            data = self.path.read_bytes()
        trailer = parse_trailer(data[-TRAILER_BYTES:], self.blob.size_bytes)
        return parse_footer(data[:-TRAILER_BYTES], trailer, 0)


def lane_key(lane: int, start: int) -> str:
    """What the upload of a lane's pack is noted under; `start`: the lane's place of its first frame."""
    return f"lane-{lane}-{start}"


class Journal:
    """One packing's folder, locked.

    Any thread may use `uploads` and note packs of its own lane; the rest is for the thread that packs.  After an error
    the documents are as they were or as they should be.  After a crash: every document is whole; a sent pack that
    is listed may be missing at the target (its note is written just before the commit), so the next run asks.
    """

    def __init__(self, folder: Path, key: str, clock: Clock) -> None:
        """Make and lock the folder `folder`/`key`; `Locked` when another process has it."""
        self._locked = LockedFolder(folder, key, "the same folder is being packed to the same place")
        self._folder = self._locked.path
        try:
            with local_errors("the journal's folder cannot be made", str(self._folder)):
                self._packs.mkdir(exist_ok=True)
                shutil.rmtree(self.scratch, ignore_errors=True)
                self.scratch.mkdir()
            self.uploads = UploadNotes(self._folder / "uploads", clock)
        except BaseException:
            self._locked.close()
            raise

    @property
    def scratch(self) -> Path:
        """A folder for tables of this run."""
        return self._folder / "scratch"

    @property
    def _packs(self) -> Path:
        return self._folder / "packs"

    # --- what is packed ---

    def read(self) -> dict[str, Any] | None:
        """What the run before wrote by `begin`; None when there was none."""
        return self._document(self._folder / "journal")

    def begin(self, document: dict[str, Any]) -> None:
        """Forget what was, and remember what this run packs."""
        with local_errors("the journal cannot be emptied", str(self._folder)):
            # First, so that what is left after a crash in between belongs to nothing.
            (self._folder / "journal").unlink(missing_ok=True)
            for entry in self._folder.iterdir():
                if entry.is_file():
                    entry.unlink()
            shutil.rmtree(self._packs, ignore_errors=True)
            self._packs.mkdir()
        write_document(self._folder / "journal", json.dumps(document, sort_keys=True).encode())

    def bases(self) -> dict[str, bool]:
        """For packs of bases: whether they could be used."""
        return {key: bool(value) for key, value in (self._document(self._folder / "bases") or {}).items()}

    def keep_bases(self, usable: dict[str, bool]) -> None:
        write_document(self._folder / "bases", json.dumps(usable, sort_keys=True).encode())

    @staticmethod
    def _document(path: Path) -> dict[str, Any] | None:
        with local_errors("the journal cannot be read", str(path)):
            try:
                if path.stat().st_size > _JOURNAL_BYTES_MAX:
                    return None
                document = json.loads(path.read_bytes())
            except FileNotFoundError:
                return None
            except ValueError:
                return None  # torn by a power cut: as if it had not been written
        return document if isinstance(document, dict) else None

    # --- packs ---

    def sent(self) -> list[SentPack]:
        """Every pack whose footer was noted, by lane and place."""
        found: list[SentPack] = []
        with local_errors("the journal cannot be read", str(self._packs)):
            names = os.listdir(self._packs)
        for name in names:
            path = self._packs / name
            try:
                lane, start, digest, size = name.split("-")
                with local_errors("a note of a pack cannot be read", str(path)):
                    count = (path.stat().st_size - TRAILER_BYTES) // FOOTER.itemsize
                pack = SentPack(int(lane), int(start), count, Blob(Digest("sha256", digest), int(size)), path)
                pack.tables()
            except (ValueError, CorruptIndex, CorruptDocument, UnknownVersion):
                # A remainder of a crash.  Not where it could not be read just now: it stands for GiBs that were sent.
                self._unlink(path)
                continue
            found.append(pack)
        return sorted(found, key=lambda pack: (pack.lane, pack.start))

    def note_pack(self, lane: int, start: int, count: int, blob: Blob, footer: bytes) -> SentPack:
        """Note a pack before its upload is committed."""
        path = self._packs / f"{lane}-{start}-{blob.digest.hex}-{blob.size_bytes}"
        write_document(path, footer)
        return SentPack(lane, start, count, blob, path)

    def forget_pack(self, pack: SentPack) -> None:
        self._unlink(pack.path)

    def forget_from(self, n: int) -> None:
        """Forget the packs that the new frame `n`, or one after it, may be in, or may have ended."""
        for pack in self.sent():
            if n_of(pack.lane, pack.end) >= n:
                self.forget_pack(pack)

    @staticmethod
    def _unlink(path: Path) -> None:
        with local_errors("the journal cannot be written", str(path)):
            path.unlink(missing_ok=True)

    # --- the end ---

    def remove(self) -> None:
        """All is done: leave nothing behind."""
        self._locked.remove()

    def close(self) -> None:
        """Give back the lock and keep the journal for another run, without the tables of this one.  Idempotent."""
        if self._locked.held:
            shutil.rmtree(self.scratch, ignore_errors=True)
        self._locked.close()
