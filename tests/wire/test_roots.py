"""The root and the packs' footers: totals that agree, and hostile ones that are refused."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.image.sketch import make
from tests.wire.rows import frame_table
from tonne.errors import CorruptIndex, TonneError, UnknownVersion
from tonne.image.pack.places import pack_takes
from tonne.model import Digest, Frame, blake3_of
from tonne.wire.pack import FRAMES_MAX, TRAILER_BYTES, encode_footer, parse_footer, parse_trailer
from tonne.wire.page import RawPage, fixed_pages, tree_pages
from tonne.wire.pagelist import PageAddress
from tonne.wire.record import CONTENT, FOOTER, FRAME, PACK, PART
from tonne.wire.root import IndexBuilder, Pack, PackKind, Part, Totals, parse_root

MADE = make("level 0\nframe 1024\nlanes 2\nfile a seed:1:20000\nfile b text:x")
HEADER = 128


def changed(offset: int, form: str, *values: Any) -> bytes:
    data = bytearray(MADE.root)
    struct.pack_into(form, data, offset, *values)
    return bytes(data)


def test_a_root_survives() -> None:
    root = parse_root(MADE.root)
    assert root.depth == 1
    assert root.totals == Totals(20001, 3, 2)
    assert root.pages_bytes == len(MADE.pages)
    assert root.frames == len(MADE.frames)
    assert [pack.digest for pack in root.packs] == [pack.digest for pack in MADE.manifest.packs]
    assert [pack.kind for pack in root.packs] == [PackKind.OURS] * 2
    assert root.packs[1].blob == MADE.manifest.packs[1].blob
    assert {part: listed.records for part, listed in root.parts.items()} == {
        Part.TREE: 3,
        Part.EXTENTS: sum(map(len, MADE.extents.values())),
        Part.FRAMES: len(MADE.frames),
        Part.CONTENTS: len(MADE.frames),
    }


packs_offset, parts_offset = struct.unpack_from("<II", MADE.root, 72)
HOSTILE: dict[str, tuple[bytes, type[TonneError]]] = {
    "empty": (b"", CorruptIndex),
    "cut": (MADE.root[:100], CorruptIndex),
    "cut at the end": (MADE.root[:-1], CorruptIndex),
    "too long": (MADE.root + b"x", CorruptIndex),
    "magic": (changed(0, "<B", 0), CorruptIndex),
    "version": (changed(8, "<H", 2), UnknownVersion),
    "depth 0": (changed(10, "<B", 0), CorruptIndex),
    "depth 3": (changed(10, "<B", 3), CorruptIndex),
    "length": (changed(12, "<I", 5), CorruptIndex),
    "incompatible feature": (changed(16, "<Q", 1 << 63), UnknownVersion),
    "entries": (changed(40, "<Q", 4), CorruptIndex),
    "pages blob too short": (changed(56, "<Q", 10), CorruptIndex),
    "many packs": (changed(64, "<I", 0xFFFFFFFF), CorruptIndex),
    "many parts": (changed(68, "<I", 0xFFFFFFFF), CorruptIndex),
    "no packs": (changed(64, "<I", 0), CorruptIndex),
    "packs elsewhere": (changed(72, "<I", 0xFFFFFF00), CorruptIndex),
    "parts elsewhere": (changed(76, "<I", 0xFFFFFF00), CorruptIndex),
    "pack kind": (changed(packs_offset, "<H", 99), UnknownVersion),
    "a tar layer": (changed(packs_offset, "<H", 2), UnknownVersion),
    "a raw layer": (changed(packs_offset, "<H", 3), UnknownVersion),
    "an object": (changed(packs_offset, "<H", 4), UnknownVersion),
    "a sealed pack": (changed(packs_offset + 4, "<I", 1), UnknownVersion),
    "pack without digest": (changed(packs_offset + 2, "<H", 0), UnknownVersion),
    "first frame": (changed(packs_offset + 16, "<Q", 1), CorruptIndex),
    "frames of a pack": (changed(packs_offset + 24, "<I", 1 << 30), CorruptIndex),
    "record length": (changed(parts_offset + 4, "<I", 129), UnknownVersion),
    "records": (changed(parts_offset + 8, "<Q", 99), CorruptIndex),
    "list elsewhere": (changed(parts_offset + 16, "<I", 0xFFFFFF00), CorruptIndex),
    "list too long": (changed(parts_offset + 20, "<I", 0xFFFFFF), CorruptIndex),
    "heap too long": (changed(parts_offset + 24, "<I", 0xFFFFFF), CorruptIndex),
    "a part twice": (changed(parts_offset + PART.itemsize, "<H", 1), CorruptIndex),
    "no tree": (changed(parts_offset, "<H", 77), CorruptIndex),
    "no frames": (changed(parts_offset + 2 * PART.itemsize, "<H", 77), CorruptIndex),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_roots_that_must_fail(what: str) -> None:
    data, error = HOSTILE[what]
    with pytest.raises(error):
        parse_root(data)


def test_what_a_later_version_may_add() -> None:
    assert parse_root(changed(24, "<Q", 1 << 40)).compatible == 1 << 40
    root = parse_root(changed(parts_offset + 3 * PART.itemsize, "<H", 77))
    assert Part.CONTENTS not in root.parts
    chunks = changed(parts_offset + 3 * PART.itemsize, "<H", int(Part.CHUNKS))
    assert Part.CHUNKS not in parse_root(chunks).parts


@given(st.data())
def test_a_damaged_root_is_refused_or_read_but_never_crashes(data: st.DataObject) -> None:
    spoilt = bytearray(MADE.root)
    for _ in range(data.draw(st.integers(1, 5))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_root(bytes(spoilt))
    except (CorruptIndex, UnknownVersion):
        pass


def test_depth_2_lists_the_same_pages() -> None:
    entries = MADE.entries
    flat, deep = IndexBuilder(), IndexBuilder(root_bytes_target=1)
    for builder in (flat, deep):
        stored = list(builder.store(Part.TREE, tree_pages(entries, 300)))
        assert len(stored) > 1
        stored += list(builder.store(Part.FRAMES, fixed_pages(frame_table([]))))
        tail, data = builder.finish(Totals(0, len(entries), 2), [])
        root = parse_root(data)
        assert root.pages_bytes == sum(map(len, stored)) + len(tail)
        assert (root.depth, bool(tail)) == ((1, False) if builder is flat else (2, True))
        assert root.parts[Part.TREE].records == len(entries)


def test_pages_that_were_stored_before_come_in_order() -> None:
    builder = IndexBuilder()
    page = PageAddress(0, 0, 0, 100, 100, 1, 0, bytes(32), b"")
    builder.add(Part.TREE, page)
    with pytest.raises(ValueError, match="order"):
        builder.add(Part.TREE, page)


def test_numbers_that_do_not_fit() -> None:
    builder = IndexBuilder(root_bytes_target=1)
    list(builder.store(Part.TREE, tree_pages(MADE.entries)))
    _, deep = builder.finish(Totals(0, len(MADE.entries), 0), [])
    claim = bytearray(deep)
    struct.pack_into("<Q", claim, 40, 0xFFFFFFFF)
    struct.pack_into("<Q", claim, HEADER + 8, 0xFFFFFFFF)
    with pytest.raises(CorruptIndex, match="numbered"):
        parse_root(bytes(claim))
    builder = IndexBuilder()
    list(builder.store(Part.TREE, [RawPage(0, 1, 0xFFFFFFFF, b"x")]))
    _, data = builder.finish(Totals(0, 0xFFFFFFFF, 0), [])
    with pytest.raises(CorruptIndex):
        parse_root(data)
    builder = IndexBuilder()
    list(builder.store(Part.TREE, tree_pages(MADE.entries)))
    pack = Pack(Digest.of(b""), 1, 0, 0xFFFFFFFF, 0)
    _, data = builder.finish(Totals(0, len(MADE.entries), 0), [pack])
    with pytest.raises(CorruptIndex):
        parse_root(data)
    assert PACK.itemsize == 96
    assert packs_offset == HEADER


def test_a_pack_has_so_many_frames_as_a_writer_puts_into_one() -> None:
    for count, fits in ((FRAMES_MAX, True), (FRAMES_MAX + 1, False)):
        builder = IndexBuilder()
        list(builder.store(Part.TREE, tree_pages(MADE.entries)))
        list(builder.store(Part.FRAMES, fixed_pages(np.zeros(count, FRAME))))
        pack = Pack(Digest.of(b""), 1, 0, count, 0)
        _, data = builder.finish(Totals(0, len(MADE.entries), 0), [pack])
        if fits:
            assert parse_root(data).frames == count
        else:
            with pytest.raises(CorruptIndex, match="frames"):
                parse_root(data)
    assert pack_takes(FRAMES_MAX - 1, 0, 1, 1 << 40)
    assert not pack_takes(FRAMES_MAX, 0, 1, 1 << 40)


# --- packs ---


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[Frame], list[bytes]]:
    frames, at = [], 0
    for number in range(draw(st.integers(0, 12))):
        size = draw(st.integers(1, 1000))
        frames.append(Frame(number, 0, at, size, size, 0, draw(st.binary(min_size=32, max_size=32))))
        at += size
    return frames, [draw(st.binary(min_size=32, max_size=32)) for _ in frames]


def footer_of(frames: list[Frame], contents: list[bytes], salt: bytes = bytes(16)) -> tuple[bytes, int]:
    rows = np.zeros(len(contents), CONTENT)
    for row, digest in zip(rows, contents, strict=True):
        row["digest"] = np.void(digest)
    body = sum(frame.stored_bytes for frame in frames)
    return encode_footer(frame_table(frames), rows, body, salt), body


@given(bodies(), st.integers(0, 9), st.binary(min_size=16, max_size=16))
def test_footers_survive(found: tuple[list[Frame], list[bytes]], pack: int, salt: bytes) -> None:
    frames, contents = found
    footer, body = footer_of(frames, contents, salt)
    trailer = parse_trailer(footer[-TRAILER_BYTES:], body + len(footer))
    assert (trailer.count, trailer.records_offset, trailer.salt) == (len(frames), body, salt)
    assert trailer.footer_bytes == len(footer)
    rows, digests = parse_footer(footer[:-TRAILER_BYTES], trailer, pack)
    expected = frame_table(frames)
    expected["pack"] = pack
    assert rows.tobytes() == expected.tobytes()
    assert digests.tobytes() == b"".join(contents)


def test_trailers_that_must_fail() -> None:
    frames = [Frame(0, 0, 0, 10, 10, 0, bytes(32))]
    footer, body = footer_of(frames, [bytes(32)])
    size = body + len(footer)
    trailer = footer[-TRAILER_BYTES:]

    def spoilt(offset: int, form: str, value: int) -> bytes:
        data = bytearray(trailer)
        struct.pack_into(form, data, offset, value)
        return bytes(data)

    cases: list[tuple[bytes, int, type[TonneError]]] = [
        (trailer[1:], size, CorruptIndex),
        (spoilt(0, "<B", 0), size, CorruptIndex),
        (spoilt(8, "<H", 2), size, UnknownVersion),
        (spoilt(10, "<H", 97), size, UnknownVersion),
        (spoilt(24, "<Q", 1), size, UnknownVersion),
        (spoilt(12, "<I", 0xFFFFFFFF), size, CorruptIndex),
        (spoilt(12, "<I", FRAMES_MAX + 1), body + (FRAMES_MAX + 1) * FOOTER.itemsize + TRAILER_BYTES, CorruptIndex),
        (spoilt(16, "<Q", 11), size, CorruptIndex),
        (trailer, size + 1, CorruptIndex),
    ]
    for data, length, error in cases:
        with pytest.raises(error):
            parse_trailer(data, length)


def test_footers_that_must_fail() -> None:
    good = [Frame(0, 0, 0, 10, 10, 0, bytes(32)), Frame(1, 0, 10, 10, 10, 0, bytes(32))]
    for frames in (
        [good[0], Frame(1, 0, 11, 9, 9, 0, bytes(32))],  # a gap
        [good[0], Frame(1, 0, 9, 11, 11, 0, bytes(32))],  # an overlap
        [Frame(0, 0, 1, 9, 9, 0, bytes(32)), good[1]],  # a beginning that is none
        [good[1], good[0]],
    ):
        footer, body = footer_of(frames, [bytes(32)] * 2)
        trailer = parse_trailer(footer[-TRAILER_BYTES:], body + len(footer))
        with pytest.raises(CorruptIndex):
            parse_footer(footer[:-TRAILER_BYTES], trailer, 0)
    footer, body = footer_of(good, [bytes(32)] * 2)
    trailer = parse_trailer(footer[-TRAILER_BYTES:], body + len(footer))
    for data in (footer[: -TRAILER_BYTES - 1], b"x" + footer[1:-TRAILER_BYTES]):
        with pytest.raises(CorruptIndex):
            parse_footer(data, trailer, 0)
    assert FOOTER.itemsize == 96
    assert trailer.digest == blake3_of(footer[:-TRAILER_BYTES])
