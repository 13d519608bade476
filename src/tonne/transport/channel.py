"""One libcurl handle with its connections, driven by a loop of our own.

libcurl's easy interface wakes at most once a second while nothing arrives, and its stall detection counts whole
seconds.  So each channel is a multi handle with one transfer: we wait in poll(2) and decide ourselves, to the
millisecond, when a transfer has stalled or its deadline has passed.  poll rather than select: a mount has more than
1,024 descriptors.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pycurl

from tonne.clock import Deadline
from tonne.errors import ProtocolError, Stalled
from tonne.settings import NetworkSettings
from tonne.transport.bodies import Body
from tonne.transport.failures import from_curl
from tonne.transport.fields import Head, is_loopback, split_origin

RECEIVE_BYTES = 512 * 1024  # the most that libcurl takes from the socket at once
SEND_BYTES = 512 * 1024
POLL_S_MAX = 1.0  # a deadline on another clock than the system's is looked at this often
_SUPPRESS_CONNECT_HEADERS = 265  # of libcurl's interface; pycurl has no name for it
_READ = select.POLLIN | select.POLLPRI
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL
_WATCHES = {
    pycurl.POLL_IN: _READ,
    pycurl.POLL_OUT: select.POLLOUT,
    pycurl.POLL_INOUT: _READ | select.POLLOUT,
    pycurl.POLL_NONE: 0,
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.  `where` is what errors blame; the URL never is, since it may be signed."""

    method: str
    url: str
    where: str
    headers: tuple[tuple[str, str], ...] = ()
    body: Body | None = None


class Receiver(Protocol):
    """Takes the response.  Both may raise a `TonneError`, which ends the transfer and reaches the caller."""

    def begin(self, head: Head) -> None: ...
    def write(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Trust:
    """Files of certificate authorities; None where there is none."""

    ca_file: Path | None
    ca_folder: Path | None


class _Exchange:
    """The callbacks of one transfer.  An exception raised in one is kept, since libcurl cannot carry it."""

    def __init__(self, request: Request, receiver: Receiver) -> None:
        self.request = request
        self.receiver = receiver
        self.head: Head | None = None
        self.failure: BaseException | None = None
        self.moved_bytes = 0  # of headers and what is sent; libcurl counts what is received
        self._status = 0
        self._fields: dict[str, tuple[str, ...]] = {}

    def on_header(self, line: bytes) -> int:
        try:
            self.moved_bytes += len(line)
            self._take_header(line.decode("iso-8859-1").rstrip("\r\n"))
        except BaseException as error:
            self.failure = self.failure or error
            return -1
        return len(line)

    def _take_header(self, line: str) -> None:
        if self.head is not None:
            return  # a trailer
        if line.startswith("HTTP/"):
            status = line.split(" ", 2)[1:2]
            self._status = int(status[0]) if status and status[0].isdigit() else 0
            self._fields = {}
        elif line:
            name, _, value = line.partition(":")
            key = name.strip().lower()
            self._fields[key] = (*self._fields.get(key, ()), value.strip())
        elif self._status >= 200:  # 1xx are announcements, the answer follows
            self.head = Head(self._status, self._fields)
            self.receiver.begin(self.head)

    def writer(self) -> Callable[[bytes], int | None]:
        """The callback for the body.  It runs for each 16 KiB, whatever the buffer's size, and all threads wait for it:
        so it counts nothing and looks nothing up."""
        write = self.receiver.write

        def on_data(data: bytes) -> int | None:
            try:
                write(data)
            except BaseException as error:
                self.failure = self.failure or error
                return -1
            return None  # all taken

        return on_data

    def on_read(self, size_bytes: int) -> bytes | int:
        try:
            assert self.request.body is not None
            data = self.request.body.read(size_bytes)
            self.moved_bytes += len(data)
            return data
        except BaseException as error:
            self.failure = self.failure or error
            return pycurl.READFUNC_ABORT

    def on_seek(self, offset: int, origin: int) -> int:
        try:
            if offset or origin or self.request.body is None or not self.request.body.repeatable:
                return pycurl.SEEKFUNC_FAIL
            self.request.body.rewind()
        except BaseException as error:
            self.failure = self.failure or error
            return pycurl.SEEKFUNC_FAIL
        return pycurl.SEEKFUNC_OK


class Channel:
    """One handle and the connections that it keeps alive.  Used by one thread at a time, by any thread.

    After an error the connection concerned is closed and the channel is ready for the next request.
    """

    def __init__(self, network: NetworkSettings, trust: Trust, agent: str) -> None:
        self._network = network
        self._trust = trust
        self._agent = agent
        self._easy = pycurl.Curl()
        self._multi = pycurl.CurlMulti()
        self._poller = select.poll()
        self._watched: set[int] = set()
        self._due_s: float | None = None
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)

    def perform(self, request: Request, receiver: Receiver, deadline: Deadline, patience_s: float) -> Head:
        """Carry out one request; returns once the whole response went to `receiver`.

        `Stalled` after `patience_s` seconds without a byte in either direction, `DeadlineExceeded`, whatever the
        receiver raises, and what libcurl reports as one of `Unavailable` or `Corrupt`.
        """
        deadline.check("no time left for a request", request.where)
        exchange = _Exchange(request, receiver)
        self._prepare(request, exchange)
        self._multi.add_handle(self._easy)
        try:
            self._drive(exchange, deadline, patience_s)
            return self._outcome(exchange)
        finally:
            # Removing a handle in mid-transfer closes its connection, so nothing of this response reaches the next.
            self._multi.remove_handle(self._easy)

    def close(self) -> None:
        self._easy.close()
        self._multi.close()

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _drive(self, exchange: _Exchange, deadline: Deadline, patience_s: float) -> None:
        running = 1
        seen_bytes, seen_s = -1, time.monotonic()
        while running:
            now_s = time.monotonic()
            moved_bytes = exchange.moved_bytes + self._body_bytes()
            if moved_bytes != seen_bytes:
                seen_bytes, seen_s = moved_bytes, now_s
            elif now_s - seen_s >= patience_s:
                if self._connected():
                    raise Stalled(
                        "the transfer stalled",
                        where=exchange.request.where,
                        why=f"no byte for {patience_s:g} s",
                        body_bytes=self._body_bytes(),
                    )
                seen_s = now_s  # still connecting: that has a timeout of its own
            deadline.check("the transfer was not done in time", exchange.request.where)
            events = self._poller.poll(self._wait_ms(now_s, seen_s + patience_s, deadline))
            for descriptor, bits in events:
                if bits & select.POLLOUT and exchange.request.body is not None:
                    seen_s = time.monotonic()  # the peer takes bytes that libcurl had asked for earlier
                if bits & select.POLLNVAL:
                    self._on_socket(pycurl.POLL_REMOVE, descriptor, None, None)
                if descriptor in self._watched:
                    running = self._multi.socket_action(descriptor, _action(bits))[1]
            if self._due_s is not None and time.monotonic() >= self._due_s:
                self._due_s = None
                running = self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)[1]
            if exchange.failure is not None:
                raise exchange.failure

    def _wait_ms(self, now_s: float, stall_at_s: float, deadline: Deadline) -> int:
        wait_s = min(POLL_S_MAX, stall_at_s - now_s)
        if self._due_s is not None:
            wait_s = min(wait_s, self._due_s - now_s)
        left_s = deadline.left_s()
        if left_s is not None:
            wait_s = min(wait_s, left_s)
        return max(0, math.ceil(wait_s * 1000))

    def _body_bytes(self) -> int:
        return int(self._easy.getinfo(pycurl.SIZE_DOWNLOAD_T))

    def _connected(self) -> bool:
        return bool(self._easy.getinfo(pycurl.PRETRANSFER_TIME) > 0)

    def _on_socket(self, what: int, descriptor: int, _multi: object, _data: object) -> None:
        if what == pycurl.POLL_REMOVE:
            if descriptor in self._watched:
                self._watched.discard(descriptor)
                self._poller.unregister(descriptor)
        else:
            self._watched.add(descriptor)
            self._poller.register(descriptor, _WATCHES.get(what, _READ))

    def _on_timer(self, timeout_ms: int) -> None:
        self._due_s = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000

    def _outcome(self, exchange: _Exchange) -> Head:
        _, _, failed = self._multi.info_read()
        for _, code, message in failed:
            raise from_curl(
                code,
                message,
                exchange.request.where,
                errno=int(self._easy.getinfo(pycurl.OS_ERRNO)),
                began=self._body_bytes() > 0,
            )
        if exchange.head is None:
            raise ProtocolError("the answer has no header", where=exchange.request.where)
        return exchange.head

    # --- options ----------------------------------------------------------------------------------------------------

    def _prepare(self, request: Request, exchange: _Exchange) -> None:
        easy = self._easy
        easy.reset()
        easy.setopt(pycurl.NOSIGNAL, 1)
        easy.setopt(pycurl.URL, request.url.encode())
        easy.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        easy.setopt(pycurl.FOLLOWLOCATION, 0)
        easy.setopt(pycurl.PATH_AS_IS, 1)  # a signed path must arrive as it was signed
        easy.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS)
        easy.setopt(_SUPPRESS_CONNECT_HEADERS, 1)  # else a proxy's answer would pass for the registry's
        easy.setopt(pycurl.TCP_KEEPALIVE, 1)
        easy.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, round(self._network.connect_timeout_s * 1000)))
        easy.setopt(pycurl.BUFFERSIZE, RECEIVE_BYTES)
        easy.setopt(pycurl.USERAGENT, self._agent)
        if self._trust.ca_file:
            easy.setopt(pycurl.CAINFO, str(self._trust.ca_file))
        if self._trust.ca_folder:
            easy.setopt(pycurl.CAPATH, str(self._trust.ca_folder))
        if is_loopback(split_origin(request.url)[1]):
            easy.setopt(pycurl.PROXY, "")  # also overrides the environment, which libcurl reads by itself
        headers = [f"{name}: {value}" for name, value in request.headers]
        if request.method == "HEAD":
            easy.setopt(pycurl.NOBODY, 1)
        elif request.body is not None:
            request.body.rewind()
            easy.setopt(pycurl.UPLOAD, 1)
            easy.setopt(pycurl.UPLOAD_BUFFERSIZE, SEND_BYTES)
            easy.setopt(pycurl.INFILESIZE_LARGE, request.body.length_bytes)
            easy.setopt(pycurl.READFUNCTION, exchange.on_read)
            easy.setopt(pycurl.SEEKFUNCTION, exchange.on_seek)
            headers.append("Expect: 100-continue" if request.body.expect else "Expect:")
        if request.method not in ("GET", "HEAD"):
            easy.setopt(pycurl.CUSTOMREQUEST, request.method)
        easy.setopt(pycurl.HTTPHEADER, [line.encode("iso-8859-1") for line in headers])
        easy.setopt(pycurl.HEADERFUNCTION, exchange.on_header)
        easy.setopt(pycurl.WRITEFUNCTION, exchange.writer())


def _action(bits: int) -> int:
    action = 0
    if bits & (_READ | select.POLLHUP):
        action |= pycurl.CSELECT_IN
    if bits & select.POLLOUT:
        action |= pycurl.CSELECT_OUT
    if bits & _BROKEN:
        action |= pycurl.CSELECT_ERR
    return action
