"""What can go wrong at which request, and what must come of it: the fault matrix as data.

A *point* is a kind of request as the product makes it.  The expectation of a cell is a code of tonne.errors, which the
raw fault must surface as while nothing is tried again and nothing renewed; or `HANDLED`: the work goes on without that.
With tries and renewals on, the work succeeds, but for the faults of `FATAL`, which say that it is not to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tonne.testing.faults import (
    AckLess,
    AckNothing,
    Action,
    DropBody,
    ExpiredRedirect,
    ExpiredToken,
    Fault,
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
from tonne.testing.registry import FaultRegistry
from tonne.testing.registry_actions import Exchange
from tonne.testing.registry_body import Response
from tonne.testing.registry_request import Request

HANDLED = ""
STALL_S = 30.0  # much longer than any client here waits; a registry that is stopped does not go on with it

When = Callable[[Request], bool]


def _ranged(request: Request) -> bool:
    return "range" in request.headers and _signed_in(request) == (request.kind == "blob-get")


def _signed_in(request: Request) -> bool:
    return request.headers.get("authorization", "").lower().startswith("bearer")


@dataclass(frozen=True, slots=True)
class LoseBlob:
    """The repository loses one of its blobs, whichever, before it looks at the request."""

    def before(self, exchange: Exchange) -> Response | None:
        repository = exchange.request.repository
        registry = exchange.holder
        assert isinstance(registry, FaultRegistry)
        exchange.effect = registry.contents.unlink(repository, min(registry.contents.digests(repository)))
        return None

    def after(self, exchange: Exchange, response: Response) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault, and the code that it surfaces as unless a point says otherwise.

    `cuts`: libcurl itself sends a request again, on a new connection, when one that was kept is closed before a byte of
    the answer came; so the raw fault happens to every request, and to two when it is to be survived.
    """

    action: Action
    code: str
    cuts: bool = False
    when: When | None = None

    @property
    def stalls(self) -> bool:
        return isinstance(self.action, Stall)


_HEADS = {
    "500": Injected(Status(500), "unavailable.server"),
    "502 page": Injected(Status(502, html=True), "unavailable.server"),
    "503 retry-after": Injected(Status(503, retry_after=0.05), "unavailable.busy"),
    "429 retry-after": Injected(Status(429, retry_after=0.0), "unavailable.busy"),
    "408": Injected(Status(408), "unavailable.busy"),
    "refused": Injected(Refuse(), "unavailable.connect", cuts=True),
    "reset": Injected(Reset(), "unavailable.connect", cuts=True),
    "stall": Injected(Stall(STALL_S), "unavailable.stalled"),
    "portal": Injected(HtmlBody(), "unavailable.protocol"),
    "redirect loop": Injected(RedirectLoop(), "unavailable.protocol"),
}
_EXPIRY = {"expired token": Injected(ExpiredToken(), "refused.credentials", when=_signed_in)}
_BODIES = {
    "reset in body": Injected(Reset(after_bytes=100), "unavailable.connect", cuts=True),
    "stall in body": Injected(Stall(STALL_S, after_bytes=100), "unavailable.stalled"),
    "wrong bytes": Injected(WrongBytes(50), "corrupt.bytes"),
    "short": Injected(ShortBody(10), "corrupt.short"),
    "short unannounced": Injected(ShortBody(10, announced=False), "corrupt.short"),
    "long": Injected(LongBody(3), "corrupt.long"),
    "no length": Injected(NoContentLength(), HANDLED),
    "chunked": Injected(NoContentLength(chunked=True), HANDLED),
    "slow": Injected(SlowBody(300_000), HANDLED),
}
_RANGES = {
    "ignored range": Injected(IgnoreRange(), HANDLED, when=_ranged),
    "wrong content-range": Injected(WrongContentRange(), "unavailable.protocol", when=_ranged),
}
_SENT = {
    "reset in body": Injected(Reset(after_bytes=100), "unavailable.connect", cuts=True),
    "stall in body": Injected(Stall(STALL_S, after_bytes=100), "unavailable.stalled"),
    "wrong bytes": Injected(WrongBytes(50), "corrupt.bytes"),
    "slow": Injected(SlowBody(300_000), HANDLED),
}
_TOO_LARGE = {"413": Injected(Status(413), "refused.size")}
_DENIED = {"403": Injected(Status(403), "refused.rights")}
_LOST = {"lost session": Injected(LostSession(), HANDLED)}

FATAL = frozenset({"403", "404", "413"})
"""Not tried again, and said to every request: the other side does not want to, or has nothing."""


@dataclass(frozen=True, slots=True)
class Point:
    """A kind of request.

    Args:
        kind: of the fault registry.
        faults: what can happen there.
        codes: where a fault surfaces there as something else than its own `code`.
        redirect: the registry sends readers to its object store.
        when: tells the point from others of the same kind.
        provoked: faults that must happen before such a request is made at all.
    """

    kind: str
    faults: dict[str, Injected]
    codes: dict[str, str] = field(default_factory=dict)
    redirect: bool = False
    when: When | None = None
    provoked: tuple[tuple[str, Action], ...] = ()

    def code(self, name: str) -> str:
        return self.codes.get(name, self.faults[name].code)

    def fault(self, name: str, nth: int, *, raw: bool) -> Fault:
        """From the `nth` request that it can happen to; `raw`: as it is injected where it is to surface."""
        injected = self.faults[name]
        tests = tuple(test for test in (self.when, injected.when) if test)
        times: int | None = 2 if injected.cuts else 1
        if name in FATAL or (raw and injected.cuts):
            times = None
        return Fault(self.kind, injected.action, nth, times, lambda request: all(test(request) for test in tests))

    def counts(self, name: str, request: Request) -> bool:
        """Whether the fault can happen to that request."""
        return self.fault(name, 1, raw=True).matches(request)


_EVERY = {**_HEADS, **_EXPIRY, **_DENIED}
_READ = {**_HEADS, **_DENIED, **_BODIES}
# At a registry the first answer is a challenge, of which the body says nothing.
_READ_SIGNED = {
    **_HEADS,
    **_DENIED,
    **_EXPIRY,
    **{name: replace(injected, when=_signed_in) for name, injected in _BODIES.items()},
}

POINTS: dict[str, Point] = {
    "token": Point(
        "token",
        {
            **_READ,
            "wrong bytes": Injected(WrongBytes(0), "unavailable.protocol"),
            "wrong token": Injected(WrongBytes(20), "refused.credentials"),
        },
        dict.fromkeys(("short", "short unannounced", "long"), "unavailable.protocol"),
    ),
    "manifest-get": Point(
        "manifest-get",
        {**_READ_SIGNED, "404": Injected(Status(404, code="MANIFEST_UNKNOWN"), "missing.manifest")},
        dict.fromkeys(("short unannounced", "long"), "corrupt.bytes"),
    ),
    "blob-get": Point(
        "blob-get",
        {**_READ_SIGNED, **_RANGES, "404": Injected(Status(404, code="BLOB_UNKNOWN"), "missing.blob")},
        {"portal": "corrupt.short"},
    ),
    "blob-redirect": Point(
        "blob-get",
        {**_EVERY, "expired redirect": Injected(ExpiredRedirect(), "refused.rights")},
        {"portal": "corrupt.short"},
        redirect=True,
    ),
    "store-get": Point(
        "store-get",
        {**_READ, **_RANGES, "expired redirect": Injected(ExpiredRedirect(), "refused.rights")},
        {"portal": "corrupt.short"},
        redirect=True,
    ),
    "blob-head": Point("blob-head", _EVERY, {"portal": HANDLED}),
    "blob-mount": Point("blob-mount", _EVERY, {"403": HANDLED, "expired token": HANDLED}),
    "upload-start": Point("upload-start", _EVERY),
    "upload-patch": Point(
        "upload-patch",
        {
            **_EVERY,
            **_SENT,
            **_LOST,
            **_TOO_LARGE,
            "less acknowledged": Injected(AckLess(100), HANDLED),
            "nothing acknowledged": Injected(AckNothing(), "unavailable.protocol"),
            "body dropped": Injected(DropBody(), HANDLED),
            "201": Injected(PatchAnswers201(), HANDLED),
        },
        {"wrong bytes": HANDLED},
    ),
    "upload-status": Point("upload-status", {**_EVERY, **_LOST}, provoked=(("upload-patch", AckNothing()),)),
    "upload-finish": Point(
        "upload-finish",
        {**_EVERY, **_LOST},
        dict.fromkeys(("reset", "stall"), HANDLED),  # the blob is looked for, and there
        when=lambda request: not request.has_body,
    ),
    "upload-put": Point(
        "upload-finish",
        {**_EVERY, **_SENT, **_LOST, **_TOO_LARGE},
        {"lost session": "missing.session"},
        when=lambda request: request.has_body,
    ),
    "upload-cancel": Point("upload-cancel", {**_EVERY, **_LOST}, dict.fromkeys((*_HEADS, *_DENIED), HANDLED)),
    "manifest-put": Point(
        "manifest-put", {**_EVERY, **_SENT, **_TOO_LARGE, "lost blob": Injected(LoseBlob(), HANDLED)}
    ),
    "manifest-head": Point(
        "manifest-head",
        _EVERY,
        dict.fromkeys(_HEADS, "unavailable.server"),  # a look-up that fails finds nothing: what led to it is told
        provoked=(("manifest-put", Status(500)),),
    ),
}

_READING = ("token", "manifest-get", "blob-get", "blob-redirect", "store-get")
OPERATIONS: dict[str, tuple[str, ...]] = {
    "pack": tuple(POINTS),
    "read": _READING,
    "pull": _READING,
    "cp": tuple(point for point in POINTS if point != "upload-put"),  # but see `cp whole`
    "cp whole": (*_READING, "blob-head", "upload-start", "upload-put", "manifest-put"),
}
"""`cp whole`: to a registry that takes one request a blob."""

CODES_OF: dict[tuple[str, str, str], str] = {
    # What is copied can be checked as a whole alone: it is read again by the copy itself.
    ("cp", "blob-get", "wrong bytes"): HANDLED,
    ("cp", "store-get", "wrong bytes"): HANDLED,
    ("cp whole", "blob-get", "wrong bytes"): HANDLED,
    ("cp whole", "store-get", "wrong bytes"): HANDLED,
}
"""Where an operation sees another outcome than the point's, by (operation, point, fault)."""


def expected(operation: str, point: str, name: str) -> str:
    """The code of the raw fault, or `HANDLED`."""
    return CODES_OF.get((operation, point, name), POINTS[point].code(name))
