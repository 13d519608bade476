"""Digests as OCI writes them, and the BLAKE3 that names frames, pages and contents.

Source: OCI image-spec, descriptor.md, "Digests".
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3

from tonne.errors import CorruptDocument

# Registries in use accept these two; both are in the OCI image spec's table of registered algorithms.
_HEX_LENGTH = {"sha256": 64, "sha512": 128}
_FORM = re.compile(r"(sha256|sha512):([0-9a-f]+)\Z")


class Hasher(Protocol):
    """What hashlib and blake3 objects have in common."""

    def update(self, data: bytes | bytearray | memoryview, /) -> object: ...
    def digest(self) -> bytes: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A valid OCI digest: ``sha256:<64 hex>`` or ``sha512:<128 hex>``, lower case.  No other can be made."""

    algorithm: str
    hex: str

    def __post_init__(self) -> None:
        if len(self.hex) != _HEX_LENGTH.get(self.algorithm, -1) or not _FORM.match(f"{self.algorithm}:{self.hex}"):
            raise CorruptDocument("not a valid digest", where=f"{self.algorithm}:{self.hex}"[:160])

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parse ``algorithm:hex``; raises `CorruptDocument` otherwise."""
        algorithm, _, hexadecimal = text.partition(":")
        return cls(algorithm, hexadecimal)

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Digest:
        """The SHA-256 of `data`."""
        return cls("sha256", hashlib.sha256(data).hexdigest())

    def hasher(self) -> Hasher:
        """A fresh hash object of this digest's algorithm."""
        return hashlib.new(self.algorithm)

    def matches(self, data: bytes | bytearray | memoryview) -> bool:
        """Whether `data` has this digest."""
        return hashlib.new(self.algorithm, data).hexdigest() == self.hex

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.hex}"


@dataclass(frozen=True, slots=True)
class Blob:
    """What is needed to ask a source for bytes: the digest and the length in bytes that the manifest promises."""

    digest: Digest
    size_bytes: int


def blake3_of(data: bytes | bytearray | memoryview) -> bytes:
    """The 32 bytes of plain BLAKE3 (no key, no context) of `data`.  One thread; releases the GIL."""
    return blake3(data).digest()
