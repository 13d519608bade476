"""Notes of upload sessions, so that a later run can go on with them or cancel them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tonne.clock import SYSTEM_CLOCK, Clock
from tonne.durable import OsDocumentDisk, local_errors, write_document

SYNC_S = 2.0  # between synced tokens of a session; after a power cut the newest may be lost, and then a session is
TOKEN_BYTES_MAX = 64 * 1024  # a location with a signature has some thousand


class _OwnerOnly(OsDocumentDisk):
    """Tokens may hold signed URLs."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)


class UploadNotes:
    """A file for each session, which holds its newest token; readable by the owner alone.

    Any thread may call, each for keys of its own.  After an error a note is as it was or as it should be; after a crash
    each is whole, and may be of a session that has ended or is ahead: whoever resumes asks the sink for what it has.
    """

    def __init__(self, folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        """Makes the folder, but for those above it."""
        self._folder = folder
        self._clock = clock
        self._disk = _OwnerOnly()
        self._lock = threading.Lock()
        self._synced_s: dict[str, float] = {}
        with local_errors("the notes of uploads cannot be written", str(folder)):
            folder.mkdir(mode=0o700, exist_ok=True)

    def noted(self) -> list[str]:
        """The keys that there are notes of."""
        with local_errors("the notes of uploads cannot be read", str(self._folder)):
            names = os.listdir(self._folder)
        return sorted(name for name in names if "." not in name)  # others are what a crash left of a write

    def token(self, key: str) -> str | None:
        """The session's token; None where there is no note, or one that a power cut has torn."""
        path = self._folder / key
        with local_errors("the note of an upload cannot be read", str(path)):
            try:
                with open(path, "rb") as file:
                    data = file.read(TOKEN_BYTES_MAX + 1)
            except FileNotFoundError:
                return None
        try:
            return data.decode() if 0 < len(data) <= TOKEN_BYTES_MAX else None
        except UnicodeDecodeError:
            return None

    def keep(self, key: str, token: str, *, synced: bool = True) -> None:
        """Note the newest token in place of the one before.

        `synced` False where a session that a power cut lost sight of may be left to the sink's own collector.
        """
        now_s = self._clock.now_s()
        with self._lock:
            synced = synced and now_s - self._synced_s.get(key, now_s - SYNC_S) >= SYNC_S
            if synced:
                self._synced_s[key] = now_s
        write_document(self._folder / key, token.encode(), self._disk, durable=synced)

    def forget(self, key: str) -> None:
        """The session has ended."""
        path = self._folder / key
        with local_errors("the note of an upload cannot be removed", str(path)):
            path.unlink(missing_ok=True)
        with self._lock:
            self._synced_s.pop(key, None)
