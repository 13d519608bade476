"""What can go wrong at a registry, as values: which request (`Fault`), and what happens to it (an action).

    registry.faults.add(Fault("blob-get", Status(503, retry_after=1), nth=3))
    registry.faults.add(Fault("blob-get", Reset(after_bytes=1000), times=None, probability=0.1))

A fault looks at the requests of its kind (or of several, or of all with ``"*"``) for which `when` is true, and counts
them from where it was added.  It happens to the `nth` (from 1) and, with `times`, to those after it: `times` in all,
None for ever.  With a probability it happens to each of them by chance, from a generator with the seed of `Faults`.
The first fault added that wants a request gets it.

Actions on a body concern the request's, where there is one (PATCH, PUT), and the answer's otherwise.  An action that
cannot concern a request (`IgnoreRange` where no Range was asked) leaves it alone, is listed in `Faults.idle` and not in
`Faults.fired`: a test that injects a fault asks `fired` whether there was one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tonne.testing.registry_actions import (
    AckLess,
    AckNothing,
    Action,
    DropBody,
    ExpiredRedirect,
    ExpiredToken,
    Forget,
    HtmlBody,
    IgnoreRange,
    LongBody,
    LostSession,
    NoContentLength,
    PatchAnswers201,
    RedirectLoop,
    Refuse,
    Reset,
    ShortBody,
    SlowBody,
    Stall,
    Status,
    WrongBytes,
    WrongContentRange,
)
from tonne.testing.registry_request import KINDS, Request

__all__ = [
    "AckLess",
    "AckNothing",
    "Action",
    "DropBody",
    "ExpiredRedirect",
    "ExpiredToken",
    "Fault",
    "Faults",
    "Forget",
    "HtmlBody",
    "IgnoreRange",
    "LongBody",
    "LostSession",
    "NoContentLength",
    "PatchAnswers201",
    "RedirectLoop",
    "Refuse",
    "Reset",
    "ShortBody",
    "SlowBody",
    "Stall",
    "Status",
    "WrongBytes",
    "WrongContentRange",
]


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """An action and the requests that it happens to; see the module's text."""

    kind: str | tuple[str, ...]
    action: Action
    nth: int = 1
    times: int | None = 1
    when: Callable[[Request], bool] | None = None
    probability: float | None = None

    def __post_init__(self) -> None:
        kinds = (self.kind,) if isinstance(self.kind, str) else self.kind
        unknown = [kind for kind in kinds if kind != "*" and kind not in KINDS]
        if unknown or self.nth < 1:
            raise ValueError(f"no such kind of request: {unknown}" if unknown else "requests are counted from 1")

    def matches(self, request: Request) -> bool:
        kinds = (self.kind,) if isinstance(self.kind, str) else self.kind
        return ("*" in kinds or request.kind in kinds) and (self.when is None or self.when(request))


@dataclass(slots=True)
class _Count:
    seen: int = 0
    fired: int = 0


class Faults:
    """The faults of a registry.  Any thread may call; `_lock` guards all of it."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._faults: dict[Fault, _Count] = {}
        self._fired: list[tuple[Fault, Request]] = []
        self._idle: list[tuple[Fault, Request]] = []

    def add(self, *faults: Fault) -> None:
        with self._lock:
            for fault in faults:
                self._faults[fault] = _Count()

    def clear(self) -> None:
        """Take all faults away; what fired stays on record."""
        with self._lock:
            self._faults.clear()

    def take(self, request: Request) -> Fault | None:
        """The fault that this request gets."""
        chosen: Fault | None = None
        with self._lock:
            for fault, count in self._faults.items():
                if not fault.matches(request):
                    continue
                count.seen += 1
                if chosen is None and self._wants(fault, count):
                    count.fired += 1
                    chosen = fault
        return chosen

    def _wants(self, fault: Fault, count: _Count) -> bool:
        if count.seen < fault.nth or (fault.times is not None and count.fired >= fault.times):
            return False
        return fault.probability is None or self._random.random() < fault.probability

    def note(self, fault: Fault, request: Request, effect: bool) -> None:
        with self._lock:
            (self._fired if effect else self._idle).append((fault, request))

    @property
    def fired(self) -> list[tuple[Fault, Request]]:
        """What happened, in order."""
        with self._lock:
            return list(self._fired)

    @property
    def idle(self) -> list[tuple[Fault, Request]]:
        """Faults that got a request and could do nothing to it."""
        with self._lock:
            return list(self._idle)
