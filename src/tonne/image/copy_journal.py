"""What a copy remembers between runs: the upload session of each blob that is on its way."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from pathlib import Path

from tonne.durable import local_errors
from tonne.errors import Locked
from tonne.model import Digest

_TOKEN_BYTES_MAX = 64 * 1024


class CopyJournal:
    """A folder with a file for each blob, which holds the token of its upload; readable by the owner alone.

    Any thread may call, each for a blob of its own.  The folder is locked from `__init__` to `close`: a second copy of
    the same manifest to the same place is `Locked`.  Files are replaced in one step but not synced: a token that was
    lost or is old costs sending its blob again, since whoever resumes asks the sink for what it has.
    """

    def __init__(self, folder: Path, manifest: Digest, target: str) -> None:
        key = hashlib.sha256(json.dumps([str(manifest), target]).encode()).hexdigest()[:32]
        self._folder = folder / "copy" / key
        self._lock = self._locked(target)

    def _locked(self, target: str) -> int:
        with local_errors("the journal of the copy cannot be written", str(self._folder)):
            while True:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                with contextlib.suppress(FileNotFoundError):  # removed between the two calls by one that finished
                    lock = os.open(self._folder / "lock", flags, 0o600)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        os.close(lock)
                        raise Locked("another copy of this image to the same place runs", where=target) from None
                    if os.fstat(lock).st_nlink:
                        return lock
                    os.close(lock)

    def token(self, digest: Digest) -> str | None:
        """The token of the blob's upload, if one was begun."""
        try:
            with open(self._folder / digest.hex, encoding="utf-8") as file:
                return file.read(_TOKEN_BYTES_MAX) or None
        except (FileNotFoundError, ValueError):
            return None

    def keep(self, digest: Digest, token: str) -> None:
        """Remember the token in place of the one before."""
        path = self._folder / digest.hex
        with local_errors("the journal of the copy cannot be written", str(path)):
            new = path.with_suffix(".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(token)
            os.replace(new, path)

    def forget(self, digest: Digest) -> None:
        """The blob is stored, or its session is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folder / digest.hex)

    def remove(self) -> None:
        """The copy is complete: nothing is left to remember."""
        with local_errors("the journal of the copy cannot be removed", str(self._folder)):
            for path in list(self._folder.iterdir()):
                path.unlink()
            self._folder.rmdir()
            with contextlib.suppress(OSError):  # other copies have theirs in it
                self._folder.parent.rmdir()

    def close(self) -> None:
        """Let the lock go.  Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
