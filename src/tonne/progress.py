"""How long work tells that it goes on.  The commands draw it; the core only counts bytes."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told by any thread; never raises."""

    def begin(self, what: str, total_bytes: int | None = None) -> None:
        """A stage begins; the one before it ends.  `total_bytes` None: unknown."""

    def advance(self, size_bytes: int) -> None:
        """So many more bytes of the stage are done, for good: progress never goes back."""

    def say(self, line: str) -> None:
        """A line for people, such as a warning; without a full stop at the end."""


class Silent:
    """Draws nothing."""

    def begin(self, what: str, total_bytes: int | None = None) -> None:
        pass

    def advance(self, size_bytes: int) -> None:
        pass

    def say(self, line: str) -> None:
        pass
