"""A folder for the documents of one piece of work, which one process at a time is at."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from tonne.durable import local_errors
from tonne.errors import Locked


class LockedFolder:
    """The folder `parent`/`key`, readable by its owner alone, and beside it ``KEY.lock``.

    The lock is held from `__init__` to `close` or `remove`, and is gone with a process that dies.  For one thread; what
    lies in `path` is the business of whoever holds it.
    """

    def __init__(self, parent: Path, key: str, busy: str) -> None:
        """Make and lock the folder; `Locked`, which says `busy`, when another process has it."""
        self.path = parent / key
        self._lock_path = parent / f"{key}.lock"
        self._lock = -1
        with local_errors("the journal's folder cannot be made", str(self.path)):
            self._lock = self._acquire(busy)
            try:
                self.path.mkdir(mode=0o700, exist_ok=True)
                os.chmod(self.path, 0o700)
            except BaseException:
                self.close()
                raise

    def _acquire(self, busy: str) -> int:
        while True:
            self._lock_path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # who was done has removed folder or lock in between
                lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                ours = False
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Who had it may have removed the file when it was done: then this lock is on nothing.
                    ours = os.path.samestat(os.fstat(lock), os.stat(self._lock_path))
                except BlockingIOError:
                    raise Locked(busy, where=str(self._lock_path)) from None
                finally:
                    if not ours:
                        os.close(lock)
                if ours:
                    return lock

    @property
    def held(self) -> bool:
        return self._lock >= 0

    def remove(self) -> None:
        """The work is done: leave nothing behind.  Lets the lock go."""
        shutil.rmtree(self.path, ignore_errors=True)
        with local_errors("the journal cannot be removed", str(self._lock_path)):
            self._lock_path.unlink(missing_ok=True)
        self.close()
        with contextlib.suppress(OSError):  # succeeds only where no other work has its folder
            self._lock_path.parent.rmdir()

    def close(self) -> None:
        """Let the lock go; the folder stays for another run.  Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
