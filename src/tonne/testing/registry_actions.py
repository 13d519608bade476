"""What can happen to a request at a fault registry, as values.  `tonne.testing.faults` says to which request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tonne.testing.registry_body import Flow, MemoryContent, Response, error, page
from tonne.testing.registry_http import Connection, ConnectionCut, Incoming
from tonne.testing.registry_request import Request

_CODES = {
    400: "UNSUPPORTED",
    401: "UNAUTHORIZED",
    403: "DENIED",
    404: "NAME_UNKNOWN",
    405: "UNSUPPORTED",
    413: "SIZE_INVALID",
    416: "RANGE_INVALID",
    429: "TOOMANYREQUESTS",
}


class Holder(Protocol):
    """What an action may do to the registry behind it."""

    def revoke_token(self, request: Request) -> bool: ...
    def drop_upload(self, request: Request) -> bool: ...
    def forget(self, digest: str) -> bool: ...


@dataclass(slots=True)
class Exchange:
    """One request on its way, with what an action changed about how it is to be handled."""

    request: Request
    connection: Connection
    incoming: Incoming
    holder: Holder
    ignore_range: bool = False
    redirect_life_s: float | None = None
    keep_less_bytes: int | None = None  # of a PATCH's body; None keeps all
    claim_all: bool = False  # acknowledge what was not kept
    patch_status: int | None = None
    forget_one: bool = False  # a blob of the manifest that is being put
    effect: bool = True  # an action sets it to False where it does not apply
    base_url: str = ""


class Action(Protocol):
    """What happens.  `before` may answer in the registry's place; `after` may change its answer."""

    def before(self, exchange: Exchange) -> Response | None: ...
    def after(self, exchange: Exchange, response: Response) -> None: ...


class _Quiet:
    """Neither; actions override what they need."""

    __slots__ = ()

    def before(self, exchange: Exchange) -> Response | None:
        return None

    def after(self, exchange: Exchange, response: Response) -> None:
        return None


class _OnBody(_Quiet):
    """An action on whichever body there is."""

    __slots__ = ()

    def change(self, flow: Flow) -> None:
        raise NotImplementedError

    def before(self, exchange: Exchange) -> Response | None:
        if exchange.request.has_body:
            self.change(exchange.incoming.flow)
        return None

    def after(self, exchange: Exchange, response: Response) -> None:
        if not exchange.request.has_body:
            self.change(response.flow)


# --- answers in the registry's place


@dataclass(frozen=True, slots=True)
class Status(_Quiet):
    """Answer with a status.  `retry_after` in seconds or as an HTTP date; `code` is the registry's error code (by
    status when empty); `html` sends a page instead, `body` anything."""

    status: int
    retry_after: float | str | None = None
    code: str = ""
    html: bool = False
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def before(self, exchange: Exchange) -> Response:
        if self.html:
            response = page(self.status, "502 Bad Gateway" if self.status == 502 else "Something is wrong")
        elif self.body is not None:
            response = Response(self.status, {}, MemoryContent(self.body))
        else:
            response = error(self.status, self.code or _CODES.get(self.status, "UNKNOWN"), "injected")
        response.headers |= dict(self.headers)
        if self.retry_after is not None:
            text = f"{self.retry_after:g}" if isinstance(self.retry_after, float) else str(self.retry_after)
            response.headers["Retry-After"] = text
        return response


@dataclass(frozen=True, slots=True)
class HtmlBody(_Quiet):
    """Answer 200 (or another status) with a web page, as a captive portal does."""

    status: int = 200

    def before(self, exchange: Exchange) -> Response:
        return page(self.status)


@dataclass(frozen=True, slots=True)
class Refuse(_Quiet):
    """Close the connection without an answer and without reading the body."""

    def before(self, exchange: Exchange) -> Response | None:
        exchange.connection.abort()
        raise ConnectionCut("refused on purpose")


@dataclass(frozen=True, slots=True)
class RedirectLoop(_Quiet):
    """Redirect to a place that redirects for ever."""

    def before(self, exchange: Exchange) -> Response:
        return Response(307, {"Location": f"{exchange.base_url}/loop/1"})


# --- bodies


@dataclass(frozen=True, slots=True)
class Reset(_OnBody):
    """Reset the connection after so many bytes of the body; 0, or more than it has: instead of an answer."""

    after_bytes: int = 0

    def change(self, flow: Flow) -> None:
        flow.reset_at = self.after_bytes


@dataclass(frozen=True, slots=True)
class Stall(_OnBody):
    """Send (or take) nothing for so long after so many bytes, then go on; 0, or more than it has: before the answer."""

    seconds: float
    after_bytes: int = 0

    def change(self, flow: Flow) -> None:
        flow.pause_at, flow.pause_s = self.after_bytes, self.seconds


@dataclass(frozen=True, slots=True)
class SlowBody(_OnBody):
    """Move the body at this rate."""

    bytes_per_s: float

    def change(self, flow: Flow) -> None:
        flow.bytes_per_s = self.bytes_per_s


@dataclass(frozen=True, slots=True)
class WrongBytes(_Quiet):
    """Flip one bit of the body's byte at `offset`, counted from what is sent, or from its end when negative."""

    offset: int = 0
    bit: int = 0

    def before(self, exchange: Exchange) -> Response | None:
        if exchange.request.has_body:
            flow = exchange.incoming.flow
            length = int(exchange.request.headers.get("content-length", "0"))
            flow.flip_at, flow.flip_bit = self.offset + (length if self.offset < 0 else 0), self.bit
        return None

    def after(self, exchange: Exchange, response: Response) -> None:
        if exchange.request.has_body:
            return
        at = self.offset + (response.body_bytes if self.offset < 0 else 0)
        exchange.effect = 0 <= at < response.body_bytes
        response.flow.flip_at, response.flow.flip_bit = at, self.bit


@dataclass(frozen=True, slots=True)
class ShortBody(_Quiet):
    """Leave out the last bytes of the answer: after announcing them, and then the connection ends; or, with
    ``announced=False``, in a shorter answer that looks complete."""

    missing_bytes: int = 1
    announced: bool = True

    def after(self, exchange: Exchange, response: Response) -> None:
        left_out = min(self.missing_bytes, response.body_bytes)
        exchange.effect = left_out > 0
        if left_out:
            if self.announced:
                response.announced_bytes = response.body_bytes
                response.hang_up = True
            response.length -= left_out


@dataclass(frozen=True, slots=True)
class LongBody(_Quiet):
    """Send more bytes than there are, and announce them."""

    extra_bytes: int = 1

    def after(self, exchange: Exchange, response: Response) -> None:
        exchange.effect = response.body_bytes > 0
        if exchange.effect:
            response.extra_bytes = self.extra_bytes


@dataclass(frozen=True, slots=True)
class NoContentLength(_Quiet):
    """Leave the length out: the body is chunked, or ends with the connection."""

    chunked: bool = False

    def after(self, exchange: Exchange, response: Response) -> None:
        exchange.effect = response.body_bytes > 0 or response.head_only
        if exchange.effect:
            response.framing = "chunked" if self.chunked else "close"


@dataclass(frozen=True, slots=True)
class IgnoreRange(_Quiet):
    """Answer 200 and the whole body to a request for a range."""

    def before(self, exchange: Exchange) -> Response | None:
        exchange.effect = "range" in exchange.request.headers
        exchange.ignore_range = True
        return None


@dataclass(frozen=True, slots=True)
class WrongContentRange(_Quiet):
    """Answer 206 with the right bytes and a Content-Range that is so many bytes off."""

    shift_bytes: int = 1

    def after(self, exchange: Exchange, response: Response) -> None:
        exchange.effect = "Content-Range" in response.headers and response.status == 206
        if exchange.effect:
            start, length = response.start + self.shift_bytes, response.length
            size = response.headers["Content-Range"].rpartition("/")[2]
            response.headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{size}"


# --- what expires and what is lost


@dataclass(frozen=True, slots=True)
class ExpiredToken(_Quiet):
    """End the token that the request carries; the registry then answers as it does."""

    def before(self, exchange: Exchange) -> Response | None:
        exchange.effect = exchange.holder.revoke_token(exchange.request)
        return None


@dataclass(frozen=True, slots=True)
class ExpiredRedirect(_Quiet):
    """At a blob GET: redirect to a URL that has expired already.  At the object store: 403, as for one."""

    def before(self, exchange: Exchange) -> Response | None:
        if exchange.request.kind.startswith("store-"):
            return store_denied("Request has expired")
        exchange.redirect_life_s = -1.0
        return None

    def after(self, exchange: Exchange, response: Response) -> None:
        exchange.effect = response.status in (302, 303, 307, 308, 403)


@dataclass(frozen=True, slots=True)
class LostSession(_Quiet):
    """Forget the upload that the request names."""

    def before(self, exchange: Exchange) -> Response | None:
        exchange.effect = exchange.holder.drop_upload(exchange.request)
        return None


@dataclass(frozen=True, slots=True)
class Forget(_Quiet):
    """Lose a blob: the given one, else the one that the request names, at a manifest's PUT the last that it lists."""

    digest: str = ""

    def before(self, exchange: Exchange) -> Response | None:
        if not self.digest and exchange.request.kind == "manifest-put":
            exchange.forget_one = True
            return None
        exchange.effect = exchange.holder.forget(self.digest or exchange.request.subject)
        return None


# --- uploads


class _OnPatch(_Quiet):
    __slots__ = ()

    def change(self, exchange: Exchange) -> None:
        raise NotImplementedError

    def before(self, exchange: Exchange) -> Response | None:
        exchange.effect = exchange.request.kind == "upload-patch"
        if exchange.effect:
            self.change(exchange)
        return None


@dataclass(frozen=True, slots=True)
class AckLess(_OnPatch):
    """Keep, and acknowledge, so many bytes less of a chunk."""

    less_bytes: int = 1

    def change(self, exchange: Exchange) -> None:
        exchange.keep_less_bytes = self.less_bytes


@dataclass(frozen=True, slots=True)
class AckNothing(_OnPatch):
    """Keep nothing of a chunk, and acknowledge what was there before."""

    def change(self, exchange: Exchange) -> None:
        exchange.keep_less_bytes = 1 << 62


@dataclass(frozen=True, slots=True)
class DropBody(_OnPatch):
    """Keep nothing of a chunk, and acknowledge all of it."""

    def change(self, exchange: Exchange) -> None:
        exchange.keep_less_bytes = 1 << 62
        exchange.claim_all = True


@dataclass(frozen=True, slots=True)
class PatchAnswers201(_OnPatch):
    """201 where 202 is expected."""

    def change(self, exchange: Exchange) -> None:
        exchange.patch_status = 201


def store_denied(message: str) -> Response:
    """What an object store says to a signature that is wrong or too old."""
    text = f"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>{message}</Message></Error>"
    return Response(403, {"Content-Type": "application/xml"}, MemoryContent(text.encode()))
