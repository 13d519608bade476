"""A piece of content on its way through the pass."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from tonne.codec.frames import Bytes
from tonne.image.pack.ledger import NO_GROUP
from tonne.model import Codec, blake3_of

LOOK_BYTES = 4096  # zeros at the start before the rest is looked at


@dataclass(slots=True)
class Stored:
    """A frame as it goes into a pack."""

    codec: Codec
    data: Bytes
    digest: bytes  # BLAKE3 of data


@dataclass(slots=True)
class Cell:
    """Bytes of a file, or a group of small files, that become a frame, a hole, or are found elsewhere.

    `buffer` None: a hole of `length`, of any size.  `whole`: it is all of its file, so its digest is the file's.
    """

    inode: int
    offset: int
    length: int
    buffer: bytearray | None = None
    group: int = NO_GROUP
    whole: bool = False
    digest: bytes = b""
    zeros: bool = False
    hashed: Future[None] | None = None
    stored: Future[Stored] | None = None
    n: int = -1

    @property
    def content(self) -> memoryview:
        if self.buffer is None:
            raise ValueError("a hole has no content")
        return memoryview(self.buffer)[: self.length]

    def look(self) -> None:
        """Find out digest and whether all is zeros.  Zeros need no digest, but for that of their file."""
        content = self.content
        self.zeros = self.group == NO_GROUP and is_zeros(content)
        if not self.zeros or self.whole:
            self.digest = blake3_of(content)

    def encode(self, encode: Callable[[Bytes], tuple[Codec, Bytes]]) -> Stored:
        codec, data = encode(self.content)
        return Stored(codec, data, self.digest if codec is Codec.RAW else blake3_of(data))


def is_zeros(content: memoryview) -> bool:
    """Whether there is nothing but zeros; quick where there is not."""
    if len(content) and (content[0] or content[-1]):
        return False
    values = np.frombuffer(content, np.uint8)
    return not values[:LOOK_BYTES].any() and not values.any()
