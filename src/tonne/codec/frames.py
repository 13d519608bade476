"""Encoding a frame's content and decoding it again.

`Encoder` and `Decoder` hold a library context each: one per thread, not shared.  Both release the GIL while the library
works.  Encoding depends on nothing but the content and the level, so equal input gives equal bytes under one version
of libzstd (`encoder_name`).
"""

from __future__ import annotations

from typing import Final

import zstandard

from tonne.errors import CorruptIndex
from tonne.model import Codec
from tonne.model.frame import FRAME_BYTES_MAX

Bytes = bytes | bytearray | memoryview


def encoder_name(level: int) -> str:
    """Names everything that the stored bytes depend on besides the content.

    Its first word stands for what is fixed in the code: where is cut, when zstd is kept, the zstd level of index pages.
    """
    version = ".".join(str(part) for part in zstandard.ZSTD_VERSION)
    return f"tonne-1 zstd-{version} level-{level}"


class Encoder:
    """Encodes frames: zstd where it is smaller, raw otherwise."""

    def __init__(self, level: int) -> None:
        self._zstd: Final = zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True)

    def encode(self, content: Bytes) -> tuple[Codec, Bytes]:
        """The codec and the stored bytes, never more than the content; raw content is returned as it came."""
        if len(content) == 0:
            return Codec.RAW, content
        packed = self._zstd.compress(content)
        return (Codec.ZSTD, packed) if len(packed) < len(content) else (Codec.RAW, content)


class Decoder:
    """Decodes frames whose stored bytes were verified."""

    def __init__(self) -> None:
        self._zstd: Final = zstandard.ZstdDecompressor()

    def decode(self, codec: int, stored: Bytes, raw_bytes: int, parameters: int = 0) -> Bytes:
        """The content, exactly `raw_bytes` long; for raw frames the stored bytes themselves, not copied.

        Raises `CorruptIndex` when the frame cannot be decoded to that: its digest was right, so it was written wrongly.
        """
        if raw_bytes > FRAME_BYTES_MAX:
            raise CorruptIndex("a frame is larger than is allowed", why=f"{raw_bytes} bytes")
        if codec == Codec.RAW:
            if len(stored) != raw_bytes:
                raise CorruptIndex("a raw frame has the wrong length", why=f"{len(stored)} bytes, not {raw_bytes}")
            return stored
        if codec == Codec.ZSTD:
            return self._unzstd(stored, raw_bytes)
        raise CorruptIndex("a frame has an unknown codec", why=str(codec))

    def _unzstd(self, stored: Bytes, raw_bytes: int) -> bytes:
        try:
            # The decoder allocates what the header claims, so the claim is checked before it is believed.
            if zstandard.get_frame_parameters(stored).content_size != raw_bytes:
                raise CorruptIndex("a frame has the wrong length")
            data = self._zstd.decompress(stored, max_output_size=raw_bytes, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptIndex("a frame cannot be decoded", why=str(error)) from None
        if len(data) != raw_bytes:
            raise CorruptIndex("a frame has the wrong length")
        return data
