"""The thread that syncs, so that no reader waits for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from tonne.model import Digest


class Syncer:
    """Calls `sync` for blobs that were written to, and `tidy` when asked, both in a thread of its own.

    `tidy` says whether it may be asked again at once; else the next call waits for the interval.

    Any thread may call.  The thread starts with the first call that needs it and does not keep the process alive; what
    it has not done when the process dies, the next process that opens the blob does.  `sync` and `tidy` must not raise.
    """

    def __init__(self, sync: Callable[[Digest], None], tidy: Callable[[], bool], every_s: float) -> None:
        self._sync = sync
        self._tidy = tidy
        self._every_s = every_s
        self._change = threading.Condition()
        self._dirty: set[Digest] = set()
        self._is_urgent = False
        self._wants_tidying = False
        self._may_tidy_at_once = True
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def wrote(self, digest: Digest, is_urgent: bool) -> None:
        """Sync this blob within the interval; soon when urgent."""
        with self._change:
            self._dirty.add(digest)
            self._is_urgent |= is_urgent
            self._start()

    def tidy_soon(self) -> None:
        """Have `tidy` called once."""
        with self._change:
            self._wants_tidying = True
            self._is_urgent |= self._may_tidy_at_once
            self._start()

    def take_dirty(self) -> Iterable[Digest]:
        """The blobs to be synced; from now on the caller's to sync."""
        with self._change:
            dirty, self._dirty = self._dirty, set()
            return dirty

    def close(self) -> None:
        """End the thread; what it was doing is finished, what was left to sync is in `take_dirty`."""
        with self._change:
            self._is_closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._run, name="tonne-store", daemon=True)
            self._thread.start()
        self._change.notify()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._dirty or self._wants_tidying or self._is_urgent or self._is_closed)
                self._change.wait_for(lambda: self._is_urgent or self._is_closed, timeout=self._every_s)
                if self._is_closed:
                    return
                self._is_urgent = False
                wants_tidying, self._wants_tidying = self._wants_tidying, False
            for digest in self.take_dirty():
                self._sync(digest)
            if wants_tidying:
                self._may_tidy_at_once = self._tidy()
