"""Reads that are tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tonne.clock import Clock, Deadline
from tonne.errors import Corrupt, TonneError
from tonne.model import Blob, Digest
from tonne.source.seam import Check, Document, Priority, Source, Urgent
from tonne.transport.backoff import Backoff

# Wrong bytes that come three times in a row are stored so; more tries would only load the source.
CORRUPT_ATTEMPTS = 3

T = TypeVar("T")


class RetrySource:
    """Tries again what failed with a `retryable` error, with back-off, until the attempts or the deadline are used up.

    Any thread may call; nothing is shared between calls.  The error that is raised is the last attempt's own.  Errors
    that led to a further attempt are told to `on_event`: nobody else sees them.
    """

    def __init__(
        self, source: Source, backoff: Backoff, clock: Clock, on_event: Callable[[TonneError], None] | None = None
    ) -> None:
        """`backoff.attempts` 1: nothing is tried again."""
        self._source = source
        self._backoff = backoff
        self._clock = clock
        self._on_event = on_event or (lambda error: None)

    @property
    def origin(self) -> str:
        return self._source.origin

    def read(
        self,
        blob: Blob,
        offset: int,
        out: memoryview,
        deadline: Deadline,
        check: Check | None = None,
        priority: Urgent = Priority.DEMAND,
    ) -> None:
        self._repeat(lambda: self._source.read(blob, offset, out, deadline, check, priority), deadline)

    def size(self, digest: Digest, deadline: Deadline) -> int:
        return self._repeat(lambda: self._source.size(digest, deadline), deadline)

    def manifest(self, name: str, deadline: Deadline) -> Document:
        return self._repeat(lambda: self._source.manifest(name, deadline), deadline)

    def close(self) -> None:
        self._source.close()

    def _repeat(self, work: Callable[[], T], deadline: Deadline) -> T:
        tries = self._backoff.tries(self._clock, deadline)
        corrupt = 0
        while True:
            try:
                return work()
            except TonneError as error:
                corrupt += isinstance(error, Corrupt)
                if corrupt >= CORRUPT_ATTEMPTS:
                    raise
                tries.failed(error)
                self._on_event(error)
