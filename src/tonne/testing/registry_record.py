"""What a fault registry remembers of each request."""

from __future__ import annotations

from dataclasses import dataclass

from tonne.testing.faults import Fault
from tonne.testing.registry_request import Request


@dataclass(slots=True)
class Record:
    """One request and what became of it.  `status` is 0 while there is no answer; body bytes grow as they move.

    `range` is the closed range that was asked as (start, end), end exclusive; None for none or another form.
    """

    request: Request
    began_s: float  # monotonic
    status: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    fault: Fault | None = None

    @property
    def kind(self) -> str:
        return self.request.kind

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def repository(self) -> str:
        return self.request.repository

    @property
    def subject(self) -> str:
        """Digest, tag or upload."""
        return self.request.subject

    @property
    def range(self) -> tuple[int, int] | None:
        first, dash, last = self.request.headers.get("range", "").removeprefix("bytes=").partition("-")
        return (int(first), int(last) + 1) if dash and first.isdigit() and last.isdigit() else None

    @property
    def scheme(self) -> str:
        """Of the credentials that came along: ``basic``, ``bearer`` or nothing."""
        return self.request.headers.get("authorization", "").partition(" ")[0].lower()
