"""Frames: encoded and decoded, never larger than raw, and never believed."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tonne.codec.frames import Decoder, Encoder, encoder_name
from tonne.errors import CorruptIndex
from tonne.model import Codec
from tonne.model.frame import FRAME_BYTES_MAX

contents = st.binary(max_size=3000) | st.builds(lambda piece, n: piece * n, st.binary(max_size=20), st.integers(0, 300))


@given(contents, st.integers(1, 5))
def test_frames_survive(content: bytes, level: int) -> None:
    codec, stored = Encoder(level).encode(content)
    assert len(stored) <= len(content)
    assert bytes(Decoder().decode(codec, stored, len(content))) == content
    if codec is Codec.RAW:
        assert stored is content
    else:
        assert len(stored) < len(content)


@given(contents)
def test_equal_content_gives_equal_bytes(content: bytes) -> None:
    encoder = Encoder(3)
    encoder.encode(b"something else before" * 20)
    assert encoder.encode(content) == Encoder(3).encode(memoryview(content))


def test_raw_content_is_not_copied() -> None:
    data = memoryview(bytearray(100))
    decoded = Decoder().decode(Codec.RAW, data, 100)
    assert decoded is data


def test_the_encoder_is_named_with_all_that_matters() -> None:
    assert str(zstandard.ZSTD_VERSION[0]) in encoder_name(3)
    assert encoder_name(3) != encoder_name(4)


def test_frames_that_must_fail() -> None:
    packed = zstandard.ZstdCompressor().compress(bytes(1000))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    huge = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\1\0\0"
    cases: list[tuple[int, bytes, int]] = [
        (Codec.RAW, bytes(10), 9),
        (Codec.RAW, bytes(10), 11),
        (Codec.ZSTD, packed, 999),
        (Codec.ZSTD, packed, 1001),
        (Codec.ZSTD, packed[:-1], 1000),
        (Codec.ZSTD, packed + b"x", 1000),
        (Codec.ZSTD, unsized, 1000),
        (Codec.ZSTD, b"none", 1000),
        (Codec.ZSTD, b"", 1000),
        (Codec.ZSTD, huge, 1000),
        (Codec.ZSTD, huge, 1 << 40),
        (Codec.RAW, b"", FRAME_BYTES_MAX + 1),
        (2, bytes(10), 10),
        (255, bytes(10), 10),
    ]
    for codec, stored, raw_bytes in cases:
        with pytest.raises(CorruptIndex):
            Decoder().decode(codec, stored, raw_bytes)


@given(st.data())
def test_damaged_frames_give_an_error_or_the_right_length(data: st.DataObject) -> None:
    stored = bytearray(zstandard.ZstdCompressor().compress(b"some text, " * 50))
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(Decoder().decode(Codec.ZSTD, bytes(stored), 550)) == 550
    except CorruptIndex:
        pass
