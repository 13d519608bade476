"""A small HTTP/1.1 server on loopback whose answers a test writes, down to where a connection is cut."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

_REASONS = {200: "OK", 206: "Partial Content", 307: "Temporary Redirect", 401: "Unauthorized", 404: "Not Found"}


@dataclass(frozen=True)
class Seen:
    """A request as it came.  Header names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query)


@dataclass(frozen=True)
class Answer:
    """What to send back.

    `cut`: close the connection after so many bytes of the body; `stall`: wait (until the server stops) after them
    instead; `length`: announce another length, None for none at all; `raw`: send this and nothing else.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str | list[str]] = field(default_factory=dict)
    cut: int | None = None
    stall: int | None = None
    length: int | None = -1
    raw: bytes | None = None


def ranged(content: bytes, seen: Seen, **changes: object) -> Answer:
    """Content as a registry answers for it: 206 to a closed range, 200 without one."""
    text = seen.headers.get("range")
    if not text:
        return Answer(200, content, **changes)  # type: ignore[arg-type]
    first, last = (int(part) for part in text.removeprefix("bytes=").split("-"))
    field_value = f"bytes {first}-{last}/{len(content)}"
    return Answer(206, content[first : last + 1], {"Content-Range": field_value}, **changes)  # type: ignore[arg-type]


class ScriptedServer:
    """Calls `script` for each request, in one thread a connection.  A context manager; `seen` holds what came."""

    def __init__(self, script: Callable[[Seen], Answer], context: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.failures: list[BaseException] = []
        self.early: Callable[[Seen], Answer | None] = lambda _: None  # answers before the body of Expect: 100-continue
        self._context = context
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"{'https' if context else 'http'}://{self.host}"

    def requests(self, method: str, prefix: str = "/") -> list[Seen]:
        with self._lock:
            return [item for item in self.seen if item.method == method and item.path.startswith(prefix)]

    def __enter__(self) -> ScriptedServer:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for item in self._sockets:
            try:
                item.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            item.close()
        for thread in self._threads:
            thread.join(10)
        if error is None and self.failures:
            raise self.failures[0]

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(connection)
            self._start(self._serve, connection, number)

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            if self._context:
                connection = self._context.wrap_socket(connection, server_side=True)
                self._sockets.append(connection)
            with connection, connection.makefile("rb") as stream:
                while self._one(connection, stream, number):
                    pass
        except (OSError, ValueError):
            pass  # the client went, or we stop
        except BaseException as error:
            self.failures.append(error)

    def _one(self, connection: socket.socket, stream: object, number: int) -> bool:
        readline, read = stream.readline, stream.read  # type: ignore[attr-defined]
        line = readline().decode()
        if not line.strip():
            return False
        method, target, _ = line.split(" ", 2)
        headers: dict[str, str] = {}
        while (text := readline().decode("iso-8859-1").strip()) != "":
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        seen = Seen(method, target, headers, b"", number)
        if headers.get("expect", "").lower() == "100-continue":
            early = self.early(seen)
            if early is not None:
                self._note(seen)
                self._send(connection, seen, early)
                return False
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(headers.get("content-length", "0"))
        body = read(length) if length else b""
        if len(body) < length:
            return False
        seen = Seen(method, target, headers, body, number)
        self._note(seen)
        return self._send(connection, seen, self.script(seen))

    def _note(self, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)

    def _send(self, connection: socket.socket, seen: Seen, answer: Answer) -> bool:
        if answer.raw is not None:
            connection.sendall(answer.raw)
            return False
        lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Status')}"]
        for name, value in answer.headers.items():
            for item in [value] if isinstance(value, str) else value:
                lines.append(f"{name}: {item}")
        length = len(answer.body) if answer.length == -1 else answer.length
        given = any(name.lower() == "content-length" for name in answer.headers)
        if length is not None and answer.status != 204 and not given:
            lines.append(f"Content-Length: {length}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("iso-8859-1")
        stop = answer.cut if answer.cut is not None else answer.stall
        body = b"" if seen.method == "HEAD" else answer.body
        connection.sendall(head + (body if stop is None else body[:stop]))
        if answer.stall is not None:
            self._stopping.wait(60)
            return False
        return answer.cut is None and length is not None
