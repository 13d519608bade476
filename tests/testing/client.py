"""A client that does just what a test says: the standard library's, no retries, no following."""

from __future__ import annotations

import hashlib
import http.client
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True  # whether as many bytes came as were announced

    def __getitem__(self, name: str) -> str:
        return self.headers[name.lower()]


class Client:
    """One connection to ``HOST:PORT``; opened when it is needed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connection = http.client.HTTPConnection(address, timeout=20)

    def __call__(
        self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None, **more: str
    ) -> Answer:
        """`more` are headers with _ for -.  A target with a host is asked there, on a connection of its own."""
        parts = urlsplit(target)
        if parts.netloc and parts.netloc != self.address:
            with Client(parts.netloc) as other:
                return other(method, target, body, headers, **more)
        fields = {**(headers or {}), **{name.replace("_", "-"): value for name, value in more.items()}}
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        self._connection.request(method, path, body, fields)
        response = self._connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        try:
            return Answer(response.status, found, response.read())
        except http.client.IncompleteRead as error:
            self._connection.close()
            return Answer(response.status, found, error.partial, complete=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def close(self) -> None:
        self._connection.close()

    # --- what many tests do

    def push_blob(self, repository: str, data: bytes) -> str:
        digest = digest_of(data)
        start = self("POST", f"/v2/{repository}/blobs/uploads/")
        assert start.status == 202, start
        done = self("PUT", with_digest(start["location"], digest), data)
        assert done.status == 201, done
        return digest


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def with_digest(location: str, digest: str) -> str:
    return f"{location}{'&' if '?' in location else '?'}digest={digest}"


def raw(address: str, data: bytes) -> bytes:
    """Everything that comes back for these bytes, until the other side closes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(data)
        found = b""
        while piece := sock.recv(65536):
            found += piece
        return found
