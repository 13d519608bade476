"""How a page is stored: raw, or zstd when that is smaller.  Bounded both ways."""

from __future__ import annotations

import zstandard

from tonne.errors import CorruptBytes, CorruptIndex
from tonne.model import Codec, blake3_of

PAGE_LEVEL = 3  # half of a page is digests, which no level makes smaller; the rest packs well at any level
# No option sets it, so the first word of the encoder's name stands for it: another level needs another word.


def store_page(data: bytes) -> tuple[Codec, bytes]:
    """The codec and the stored bytes of a page."""
    packed = zstandard.ZstdCompressor(level=PAGE_LEVEL, write_checksum=False, write_content_size=True).compress(data)
    return (Codec.ZSTD, packed) if len(packed) < len(data) else (Codec.RAW, data)


def load_page(stored: bytes | bytearray | memoryview, codec: int, raw_bytes: int, digest: bytes, where: str) -> bytes:
    """The page's bytes.

    Raises `CorruptBytes` when `stored` is not what `digest` names (fetch it again), `CorruptIndex` when it is but
    cannot be decoded to exactly `raw_bytes` (it was written wrongly).
    """
    if blake3_of(stored) != digest:
        raise CorruptBytes("an index page has the wrong digest", where=where)
    if codec == Codec.RAW:
        data = bytes(stored)
    elif codec == Codec.ZSTD:
        data = _decompress(stored, raw_bytes, where)
    else:
        raise CorruptIndex("an index page has an unknown codec", where=where, why=str(codec))
    if len(data) != raw_bytes:
        raise CorruptIndex("an index page has the wrong length", where=where)
    return data


def _decompress(stored: bytes | bytearray | memoryview, raw_bytes: int, where: str) -> bytes:
    try:
        # The decoder allocates what the header claims, so the claim is checked before it is believed.
        if zstandard.get_frame_parameters(stored).content_size != raw_bytes:
            raise CorruptIndex("an index page has the wrong length", where=where)
        return zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptIndex("an index page cannot be decoded", where=where, why=str(error)) from None
