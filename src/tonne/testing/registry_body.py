"""Bodies and answers of the fault registry: contents of any size, and the ways in which sending them goes wrong."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Content(Protocol):
    """Bytes that are served without being in one piece.  Any thread may call."""

    @property
    def size_bytes(self) -> int: ...

    def pieces(self, offset: int, length: int) -> Iterator[memoryview]:
        """The bytes from `offset`, as views that stay valid until the next one is taken."""


class MemoryContent:
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data).toreadonly()
        self.size_bytes = self._data.nbytes

    def pieces(self, offset: int, length: int) -> Iterator[memoryview]:
        if length:
            yield self._data[offset : offset + length]


class FileContent:
    """A file, mapped: the kernel's page cache is all the memory that it takes."""

    def __init__(self, path: Path) -> None:
        self.size_bytes = path.stat().st_size
        self._view = memoryview(b"")
        if self.size_bytes:
            with path.open("rb") as file:
                self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def pieces(self, offset: int, length: int) -> Iterator[memoryview]:
        if length:
            yield self._view[offset : offset + length]


class FlippedContent:
    """Another content with one wrong bit: damage at rest."""

    def __init__(self, inner: Content, offset: int, bit: int = 0) -> None:
        if not 0 <= offset < inner.size_bytes:
            raise ValueError(f"no byte {offset} in {inner.size_bytes}")
        self._inner, self._at, self._bit = inner, offset, bit
        self.size_bytes = inner.size_bytes

    def pieces(self, offset: int, length: int) -> Iterator[memoryview]:
        return flipped(self._inner.pieces(offset, length), self._at - offset, self._bit)


def flipped(pieces: Iterator[memoryview], at: int, bit: int) -> Iterator[memoryview]:
    """The same pieces with one bit of byte `at`, counted from the first piece, changed."""
    for piece in pieces:
        if 0 <= at < piece.nbytes:
            changed = bytearray(piece)
            changed[at] ^= 1 << bit
            piece = memoryview(changed)
        at -= piece.nbytes
        yield piece


def all_bytes(content: Content) -> bytes:
    """A whole content; for documents and for small images."""
    return b"".join(bytes(piece) for piece in content.pieces(0, content.size_bytes))


@dataclass(slots=True)
class Flow:
    """How a body moves, one way or the other.  Offsets in bytes from its start; None: not at all."""

    bytes_per_s: float | None = None
    pause_at: int | None = None
    pause_s: float = 0.0
    reset_at: int | None = None
    flip_at: int | None = None
    flip_bit: int = 0


@dataclass(slots=True)
class Response:
    """An answer before it is sent; actions change it.

    `start` and `length` choose what is sent of `body`.  `announced_bytes` is the Content-Length where it is not
    `length`; `extra_bytes` follow the body; with `hang_up` the connection ends after it.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Content = field(default_factory=lambda: MemoryContent(b""))
    start: int = 0
    length: int = -1
    head_only: bool = False
    framing: str = "length"  # or "close", or "chunked"
    announced_bytes: int | None = None
    extra_bytes: int = 0
    hang_up: bool = False
    flow: Flow = field(default_factory=Flow)

    def __post_init__(self) -> None:
        if self.length < 0:
            self.length = self.body.size_bytes

    @property
    def body_bytes(self) -> int:
        """What goes over the wire after the head."""
        return 0 if self.head_only or self.status in (204, 304) else self.length + self.extra_bytes


def document(status: int, body: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    data = json.dumps(body, separators=(",", ":")).encode()
    return Response(status, {"Content-Type": "application/json", **(headers or {})}, MemoryContent(data))


def error(status: int, code: str, message: str, detail: Any = None, headers: dict[str, str] | None = None) -> Response:
    """An error in the registry's form (distribution-spec, "Error Codes")."""
    body = {"code": code, "message": message, **({} if detail is None else {"detail": detail})}
    return document(status, {"errors": [body]}, headers)


def page(status: int, text: str = "Please log in to the network") -> Response:
    """What a captive portal or a proxy says."""
    data = f"<!DOCTYPE html><html><body><h1>{text}</h1></body></html>".encode()
    return Response(status, {"Content-Type": "text/html; charset=utf-8"}, MemoryContent(data))
