"""Verbs with a cache: what is read twice comes from it, a pull adds nothing to it, and rot in it is found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.tonne import run
from tests.image.sketch import Made, make, write_layout

TREE = """
    frame 65536
    level 0
    file large seed:1:1000000
    file small text:one
"""


@pytest.fixture(scope="module")
def made() -> Made:
    return make(TREE)


@pytest.fixture
def reference(tmp_path: Path, made: Made) -> str:
    write_layout(tmp_path / "layout", {"v1": made})
    return f"oci:{tmp_path}/layout:v1"


def stored_bytes(cache: Path) -> int:
    """What the files of the cache take on the disk, holes not counted."""
    return sum(path.lstat().st_blocks * 512 for path in cache.rglob("*") if path.is_file())


def test_a_pull_reads_the_cache_and_adds_nothing(made: Made, reference: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run("pull", reference, tmp_path / "first", cache=cache)
    assert stored_bytes(cache) < 200_000
    for name in ("large", "small"):
        assert run("cat", reference, name, cache=cache).stdout == made.contents[name.encode()]
    filled = stored_bytes(cache)
    assert filled > 1_000_000
    pack = made.manifest.packs[0].digest
    os.truncate(tmp_path / "layout" / "blobs" / "sha256" / pack.hex, 0)
    run("pull", reference, tmp_path / "second", cache=cache)
    for name in ("large", "small"):
        assert (tmp_path / "second" / name).read_bytes() == made.contents[name.encode()]
    assert stored_bytes(cache) <= filled + 4096 * 16


def test_rot_in_the_cache_is_named_and_never_read(made: Made, reference: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run("cat", reference, "large", cache=cache)
    frame = made.frames[made.extents[made.entry(b"large").inode][3].frame or 0]
    content = made.packs[0][frame.offset : frame.offset + 64]
    spoilt = 0
    for path in cache.rglob("*"):
        if not path.is_file():
            continue
        data = bytearray(path.read_bytes())
        at = data.find(content)
        if at >= 0:
            facts = path.stat()
            data[at + 7] ^= 16
            with path.open("r+b") as file:
                file.seek(at)
                file.write(data[at : at + 64])
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
            spoilt += 1
    assert spoilt == 1
    done = run("--json", "verify", reference, status=6, cache=cache)
    report = json.loads(done.stdout)
    assert [(item["what"], item["frame"]) for item in report["findings"]] == [("cached frame", frame.number)]
    assert all(item["good"] for item in report["files"])
    assert run("cat", reference, "large", cache=cache).stdout == made.contents[b"large"]
    assert json.loads(run("--json", "verify", reference, cache=cache).stdout)["good"] is True


def test_rot_that_a_reader_meets_first(made: Made, reference: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run("cat", reference, "large", cache=cache)
    for path in cache.rglob("*"):
        if path.is_file() and path.stat().st_size > 500_000:
            with path.open("r+b") as file:
                file.seek(300_000)
                file.write(bytes(1000))
    assert run("cat", reference, "large", cache=cache).stdout == made.contents[b"large"]
    run("pull", reference, tmp_path / "out", cache=cache)
    assert (tmp_path / "out" / "large").read_bytes() == made.contents[b"large"]
