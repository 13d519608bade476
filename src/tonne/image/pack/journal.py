"""What an interrupted packing leaves for the next run: a folder of small documents for each source and target.

    pack/KEY.lock       held by the process that packs
    pack/KEY/journal    what is packed, against what, how: a run that differs in any of it starts over
    pack/KEY/bases      which packs of bases could be used, so that the next run decides alike
    pack/KEY/lane-L     the pack that lane L is sending: where it begins, and the token of its upload
    pack/KEY/index      the token of the upload of a part of the index
    pack/KEY/packs/     a footer for each pack that was sent; lane, first frame, digest and size are its name
    pack/KEY/scratch/   tables of the run; emptied by the next one

Tokens may hold signed URLs: the folder is readable by its owner alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tonne.clock import Clock
from tonne.durable import local_errors, write_document
from tonne.errors import CorruptIndex, Locked, UnknownVersion
from tonne.model import Blob, Digest
from tonne.wire.pack import TRAILER_BYTES, parse_footer, parse_trailer
from tonne.wire.record import Records

SYNC_S = 2.0  # between synced tokens of a lane; after a power cut the newest may be lost, and then a session is
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


class Journal:
    """One packing's folder, locked.

    `begin`, `bases` and `remove` are for the thread that packs; each lane's documents for that lane's thread.  After an
    error the documents are as they were or as they should be.  After a crash: every document is whole; a sent pack that
    is listed may be missing at the target (its note is written just before the commit), so the next run asks.
    """

    def __init__(self, folder: Path, key: str, clock: Clock) -> None:
        """Make and lock the folder `folder`/`key`; `Locked` when another process has it."""
        self._clock = clock
        self._lock_path = folder / f"{key}.lock"
        self._folder = folder / key
        self._synced_s: dict[int, float] = {}
        with local_errors("the journal's folder cannot be made", str(self._folder)):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock_fd = self._acquire()
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                os.chmod(self._folder, 0o700)
                self._packs.mkdir(exist_ok=True)
                shutil.rmtree(self.scratch, ignore_errors=True)
                self.scratch.mkdir()
            except BaseException:
                self._release()
                raise

    @property
    def scratch(self) -> Path:
        """A folder for tables of this run."""
        return self._folder / "scratch"

    @property
    def _packs(self) -> Path:
        return self._folder / "packs"

    def _acquire(self) -> int:
        while True:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Who had it may have removed the file when it was done: then this lock is on nothing.
                if os.path.exists(self._lock_path) and os.path.samestat(os.fstat(fd), os.stat(self._lock_path)):
                    return fd
            except BlockingIOError:
                os.close(fd)
                raise Locked("the same folder is being packed to the same place", where=str(self._lock_path)) from None
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _release(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

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
                count = (path.stat().st_size - TRAILER_BYTES) // 96
                pack = SentPack(int(lane), int(start), count, Blob(Digest("sha256", digest), int(size)), path)
                pack.tables()
            except (ValueError, CorruptIndex, UnknownVersion, OSError):
                self._unlink(path)  # a remainder of a crash
                continue
            except Exception:
                self._unlink(path)
                raise
            found.append(pack)
        return sorted(found, key=lambda pack: (pack.lane, pack.start))

    def note_pack(self, lane: int, start: int, count: int, blob: Blob, footer: bytes) -> SentPack:
        """Note a pack before its upload is committed."""
        path = self._packs / f"{lane}-{start}-{blob.digest.hex}-{blob.size_bytes}"
        write_document(path, footer)
        return SentPack(lane, start, count, blob, path)

    def forget_pack(self, pack: SentPack) -> None:
        self._unlink(pack.path)

    def open_packs(self) -> dict[int, tuple[int, str]]:
        """For each lane that was sending: the first frame of its pack, and the upload's token."""
        found: dict[int, tuple[int, str]] = {}
        for path in self._folder.glob("lane-*"):
            document = self._document(path) or {}
            start, token = document.get("start"), document.get("token")
            if isinstance(start, int) and isinstance(token, str) and path.name[5:].isdigit():
                found[int(path.name[5:])] = (start, token)
        return found

    def note_token(self, lane: int, start: int, token: str) -> None:
        """Note how the pack that a lane is sending can be gone on with; after each chunk."""
        now_s = self._clock.now_s()
        durable = now_s - self._synced_s.get(lane, -SYNC_S) >= SYNC_S
        if durable:
            self._synced_s[lane] = now_s
        data = json.dumps({"start": start, "token": token}).encode()
        write_document(self._folder / f"lane-{lane}", data, durable=durable)

    def forget_token(self, lane: int) -> None:
        self._unlink(self._folder / f"lane-{lane}")

    def note_index(self, token: str) -> None:
        """Note the session that takes a part of the index, or one of a base's packs; it is not gone on with."""
        # Not synced: registries forget sessions by themselves, in a week.
        write_document(self._folder / "index", json.dumps({"token": token}).encode(), durable=False)

    def index_token(self) -> str | None:
        """The newest session of `note_index` by the run before."""
        token = (self._document(self._folder / "index") or {}).get("token")
        return token if isinstance(token, str) else None

    def forget_index(self) -> None:
        self._unlink(self._folder / "index")

    @staticmethod
    def _unlink(path: Path) -> None:
        with local_errors("the journal cannot be written", str(path)):
            path.unlink(missing_ok=True)

    # --- the end ---

    def remove(self) -> None:
        """All is done: leave nothing behind."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with local_errors("the journal cannot be removed", str(self._lock_path)):
            self._lock_path.unlink(missing_ok=True)
        self._release()
        try:
            self._folder.parent.rmdir()  # succeeds only where nothing else is packed
        except OSError:
            pass

    def close(self) -> None:
        """Give back the lock and keep the journal for another run, without the tables of this one.  Idempotent."""
        if self._lock_fd >= 0:
            shutil.rmtree(self.scratch, ignore_errors=True)
        self._release()
