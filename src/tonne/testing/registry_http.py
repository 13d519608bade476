"""HTTP/1.1 on one connection, which can misbehave on purpose; bodies move as views of memory.

Source: RFC 9112 (framing), RFC 9110 section 10.1.1 (Expect).  Only what registries' clients use.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import responses as reasons

from tonne.testing.registry_body import Flow, Response, flipped

HEAD_BYTES_MAX = 64 * 1024  # signed URLs and tokens are a few KiB
LINE_BYTES_MAX = 4096
RECEIVE_BYTES = 1024 * 1024
DRAIN_BYTES_MAX = 64 * 1024 * 1024  # an unread body up to this is thrown away so that the connection can go on
_PACE_S = 0.01  # a paced body is sent in steps of so long


class ConnectionCut(Exception):
    """The other side is gone, or we hung up on it."""


class Stopped(ConnectionCut):
    """The server is being stopped."""


class Connection:
    """One accepted socket.  Used by its own thread; `abort` by any."""

    def __init__(self, sock: socket.socket, stopping: threading.Event) -> None:
        self._socket = sock
        self._stopping = stopping
        self._buffer = bytearray()

    # --- receiving

    def read_head(self) -> tuple[str, str, dict[str, str]] | None:
        """Method, target and headers; None when the other side has no more to ask."""
        try:
            while b"\r\n\r\n" not in self._buffer:
                if self._buffer and not self._buffer[:1].isalpha():
                    # A client that tries TLS first waits for an answer that tells it.
                    self.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                    return None
                if len(self._buffer) > HEAD_BYTES_MAX or not self._more():
                    return None
        except ConnectionCut:
            return None
        end = self._buffer.index(b"\r\n\r\n")
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        method, _, rest = lines[0].partition(" ")
        target = rest.rpartition(" ")[0]
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return method, target, headers

    def _more(self) -> bool:
        try:
            data = self._socket.recv(HEAD_BYTES_MAX)
        except OSError as error:
            raise ConnectionCut(str(error)) from error
        self._buffer += data
        return bool(data)

    def line(self) -> bytes:
        while b"\n" not in self._buffer:
            if len(self._buffer) > LINE_BYTES_MAX or not self._more():
                raise ConnectionCut("a line was cut")
        end = self._buffer.index(b"\n")
        line = bytes(self._buffer[:end]).rstrip(b"\r")
        del self._buffer[: end + 1]
        return line

    def receive_into(self, view: memoryview) -> int:
        """Some bytes, at least one; `ConnectionCut` at the end."""
        if self._buffer:
            count = min(len(self._buffer), view.nbytes)
            view[:count] = self._buffer[:count]
            del self._buffer[:count]
            return count
        try:
            count = self._socket.recv_into(view)
        except OSError as error:
            raise ConnectionCut(str(error)) from error
        if not count:
            raise ConnectionCut("the body was cut")
        return count

    # --- sending

    def send(self, data: bytes | memoryview) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionCut(str(error)) from error

    def pause(self, seconds: float) -> None:
        if self._stopping.wait(max(0.0, seconds)):
            raise Stopped("the server stops")

    def reset(self) -> None:
        """Hang up so that the other side sees a reset and not an end."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def abort(self) -> None:
        """Wake whoever waits on the socket: it is over."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class Pace:
    """Keeps a body to a rate: asked before so many bytes move, it waits until they may."""

    def __init__(self, connection: Connection, bytes_per_s: float | None) -> None:
        self._connection, self._rate = connection, bytes_per_s
        self._began_s, self._moved = time.monotonic(), 0

    def step_bytes(self, most: int) -> int:
        return most if not self._rate else max(1, min(most, int(self._rate * _PACE_S)))

    def take(self, count: int) -> None:
        if self._rate:
            self._moved += count
            self._connection.pause(self._began_s + self._moved / self._rate - time.monotonic())


class Incoming:
    """A request's body.  Used by the connection's thread."""

    def __init__(self, connection: Connection, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._left = 0 if self._chunked else int(headers.get("content-length", "0") or 0)
        self._expects = headers.get("expect", "").lower() == "100-continue"
        self._done = not self._chunked and not self._left
        self.received_bytes = 0
        self.flow = Flow()

    @property
    def waits_for_continue(self) -> bool:
        """Whether the client holds the body back until it is told to go on."""
        return self._expects and not self._done

    def pieces(self) -> Iterator[memoryview]:
        """The body as it comes, each piece valid until the next; `ConnectionCut` when it ends too early."""
        flow = self.flow
        if flow.flip_at is not None:
            yield from flipped(self._moving(flow), flow.flip_at, flow.flip_bit)
        else:
            yield from self._moving(flow)

    def _moving(self, flow: Flow) -> Iterator[memoryview]:
        pace = Pace(self._connection, flow.bytes_per_s)
        for piece in self._plain(flow, pace):
            self.received_bytes += piece.nbytes
            pace.take(piece.nbytes)
            yield piece
        # A body that is shorter than where it was to happen: then at its end.
        self._happen(flow, self.received_bytes, at_end=True)

    def _happen(self, flow: Flow, at: int, *, at_end: bool = False) -> None:
        if flow.pause_at is not None and (at >= flow.pause_at or at_end):
            flow.pause_at = None
            self._connection.pause(flow.pause_s)
        if flow.reset_at is not None and (at >= flow.reset_at or at_end):
            self._connection.reset()
            raise ConnectionCut("reset on purpose")

    def _plain(self, flow: Flow, pace: Pace) -> Iterator[memoryview]:
        if self.waits_for_continue:
            self._expects = False
            self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        while not self._done:
            if not self._left:
                self._next_chunk()
                continue
            self._happen(flow, self.received_bytes)
            most = min(self._left, pace.step_bytes(buffer.nbytes))
            for stop in (flow.pause_at, flow.reset_at):
                if stop is not None:
                    most = min(most, stop - self.received_bytes)
            count = self._connection.receive_into(buffer[:most])
            self._left -= count
            if not self._left:
                if self._chunked:
                    self._connection.line()
                else:
                    self._done = True
            yield buffer[:count]

    def _next_chunk(self) -> None:
        try:
            self._left = int(self._connection.line().split(b";")[0], 16)
        except ValueError:
            raise ConnectionCut("a chunk has no size") from None
        if not self._left:
            while self._connection.line():
                pass
            self._done = True

    def read_all(self, most_bytes: int) -> bytes | None:
        """A whole small body; None when it is larger, and then the rest is left unread."""
        data = bytearray()
        for piece in self.pieces():
            data += piece
            if len(data) > most_bytes:
                return None
        return bytes(data)

    def let_happen(self) -> None:
        """Read what is left as the flow says; not where the client still waits to be told to send."""
        if not self._done and not self.waits_for_continue:
            for _ in self.pieces():
                pass

    def drain(self) -> bool:
        """Throw the rest away; False when that is not worth it, and the connection should end."""
        if self._done:
            return True
        if self._expects:
            return False
        self.flow = Flow()
        drained = 0
        for piece in self._plain(self.flow, Pace(self._connection, None)):
            drained += piece.nbytes
            if drained > DRAIN_BYTES_MAX:
                return False
        return True


def send_response(connection: Connection, response: Response, sent: Callable[[int], None]) -> bool:
    """Send an answer as its fields say; whether the connection can go on.  `sent` is told of each piece of body."""
    flow = response.flow
    total = response.body_bytes
    _happen_at_head(connection, flow, total)
    headers = {"Content-Length": str(response.announced_bytes if response.announced_bytes is not None else total)}
    if response.head_only:
        headers["Content-Length"] = str(response.length)
    if response.status in (204, 304):
        del headers["Content-Length"]
    if response.framing != "length":
        headers = {"Transfer-Encoding": "chunked"} if response.framing == "chunked" else {"Connection": "close"}
    headers |= response.headers
    hang_up = response.hang_up or response.framing == "close"
    if hang_up:
        headers["Connection"] = "close"
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    connection.send(f"HTTP/1.1 {response.status} {reasons.get(response.status, 'Other')}\r\n{head}\r\n".encode())
    if total:
        _send_body(connection, response, sent)
    if response.framing == "chunked" and not response.head_only:
        connection.send(b"0\r\n\r\n")
    return not hang_up


def _happen_at_head(connection: Connection, flow: Flow, total: int) -> None:
    """What is due before the first byte, or after more bytes than there are."""
    if flow.pause_at is not None and (flow.pause_at == 0 or flow.pause_at >= total):
        flow.pause_at = None
        connection.pause(flow.pause_s)
    if flow.reset_at is not None and (flow.reset_at == 0 or flow.reset_at >= total):
        connection.reset()
        raise ConnectionCut("reset on purpose")


def _send_body(connection: Connection, response: Response, sent: Callable[[int], None]) -> None:
    flow = response.flow
    pieces = response.body.pieces(response.start, response.length)
    if flow.flip_at is not None:
        pieces = flipped(pieces, flow.flip_at, flow.flip_bit)
    pace = Pace(connection, flow.bytes_per_s)
    at = 0
    for piece in _with_extra(pieces, response.extra_bytes):
        while piece.nbytes:
            if flow.pause_at is not None and at >= flow.pause_at:
                flow.pause_at = None
                connection.pause(flow.pause_s)
            if flow.reset_at is not None and at >= flow.reset_at:
                connection.reset()
                raise ConnectionCut("reset on purpose")
            most = pace.step_bytes(piece.nbytes)
            for stop in (flow.pause_at, flow.reset_at):
                if stop is not None:
                    most = min(most, stop - at)
            part, piece = piece[:most], piece[most:]
            pace.take(part.nbytes)
            # Counted first: who has the last byte may ask at once what was sent.
            sent(part.nbytes)
            if response.framing == "chunked":
                connection.send(f"{part.nbytes:x}\r\n".encode())
            connection.send(part)
            if response.framing == "chunked":
                connection.send(b"\r\n")
            at += part.nbytes


def _with_extra(pieces: Iterator[memoryview], extra_bytes: int) -> Iterator[memoryview]:
    yield from pieces
    if extra_bytes:
        yield memoryview(b"x" * extra_bytes)
