"""What requests carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from tonne.errors import LongBody, ShortBody


class Body(Protocol):
    """What a request carries.  `rewind` is called before each sending."""

    length_bytes: int
    # Whether libcurl may send it again by itself when a kept connection turns out to be dead.  Not where the other
    # side may have taken the first sending and would then refuse or store the second.
    repeatable: bool
    expect: bool  # whether the registry may refuse before the body goes out (Expect: 100-continue)

    def rewind(self) -> None: ...
    def read(self, size_bytes: int) -> bytes: ...


class MemoryBody:
    """A body in memory, which is not copied as a whole."""

    expect = False

    def __init__(self, data: bytes | bytearray | memoryview = b"", repeatable: bool = True) -> None:
        self.repeatable = repeatable
        self._data = memoryview(data)
        self.length_bytes = len(self._data)
        self._at = 0

    def rewind(self) -> None:
        self._at = 0

    def read(self, size_bytes: int) -> bytes:
        piece = bytes(self._data[self._at : self._at + size_bytes])
        self._at += len(piece)
        return piece


class StreamBody:
    """A body of known length that `chunks` gives piece by piece, anew after each `rewind`.

    `ShortBody` and `LongBody` when the pieces do not add up to the length.
    """

    expect = True
    repeatable = False

    def __init__(self, length_bytes: int, chunks: Callable[[], Iterator[memoryview]]) -> None:
        self.length_bytes = length_bytes
        self._chunks = chunks
        self._iterator: Iterator[memoryview] = iter(())
        self._piece = memoryview(b"")
        self._left_bytes = length_bytes

    def rewind(self) -> None:
        self._iterator = self._chunks()
        self._piece = memoryview(b"")
        self._left_bytes = self.length_bytes

    def read(self, size_bytes: int) -> bytes:
        self._fill()
        taken = bytes(self._piece[: min(size_bytes, self._left_bytes)])
        self._piece = self._piece[len(taken) :]
        self._left_bytes -= len(taken)
        if not self._left_bytes:
            self._fill()  # before the last bytes go out: libcurl asks for no more than was announced
            if len(self._piece):
                raise LongBody("the content to send is longer than announced", announced_bytes=self.length_bytes)
        elif not taken and size_bytes:
            raise ShortBody("the content to send is shorter than announced", missing_bytes=self._left_bytes)
        return taken

    def _fill(self) -> None:
        """Get the next piece that is not empty, if the present one is used up."""
        while not len(self._piece):
            piece = next(self._iterator, None)
            if piece is None:
                return
            self._piece = piece.cast("B") if piece.format != "B" or piece.ndim != 1 else piece
