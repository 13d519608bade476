"""`tonne verify` names what is bad: in the registry's copy, in the cache, in a folder."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.command import LIMIT_S, Tonne
from tonne.testing.processes import DebianRegistry

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

MIB = 1024 * 1024
FRAME_BYTES = 4 * MIB
DIFFERENT = 6  # the exit status


def verified(tonne: Tonne, *words: object) -> dict[str, Any]:
    """What `verify` says of something that is bad."""
    arguments = tonne.arguments("--json", "verify", *words)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == DIFFERENT, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["good"] is False
    return found


def flip(path: Path, offset: int, bit: int) -> None:
    """One bit, with size and mtime kept."""
    state = path.stat()
    with open(path, "r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ (1 << bit)]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    noise = np.random.default_rng(6)
    for name in ("one", "two"):
        (folder / name).write_bytes(noise.bytes(17 * MIB))
    return folder


def test_a_bad_frame_in_the_registry_is_named(
    tmp_path: Path, source: Path, docker_registry: Callable[..., DebianRegistry]
) -> None:
    tonne = Tonne(tmp_path / "cache")
    registry = docker_registry()
    reference = f"{registry.address}/rot/verify:v1"
    tonne.run("pack", source, reference)
    tonne.run("verify", reference)
    chance = random.Random(1)
    blobs = registry.data / "docker" / "registry" / "v2" / "blobs" / "sha256"
    contents = {path.name: path.read_bytes() for path in source.iterdir()}
    packs = [path for path in blobs.glob("*/*/data") if path.stat().st_size > MIB]
    assert packs
    for pack in packs:
        # The content does not pack, so it is found in the pack as it is.
        stored = pack.read_bytes()
        name, file_offset = chance.choice(
            [
                (name, at)
                for name, content in contents.items()
                for at in range(0, len(content), FRAME_BYTES)
                if content[at : at + 4096] in stored
            ]
        )
        start = stored.index(contents[name][file_offset : file_offset + 4096])
        at = start + chance.randrange(4096)
        bit = chance.randrange(8)
        flip(pack, at, bit)
        said = verified(tonne, reference)
        bad = {file["path"]: file["findings"] for file in said["files"] if not file["good"]}
        assert list(bad) == [name]
        (finding,) = bad[name]
        assert finding["fileOffset"] == file_offset
        assert finding["pack"] == f"sha256:{pack.parent.name}"
        assert finding["packOffset"] <= at < finding["packOffset"] + finding["length"]
        people = subprocess.run(tonne.arguments("verify", reference), capture_output=True, text=True, timeout=LIMIT_S)
        assert people.returncode == DIFFERENT
        assert any(
            line.startswith("BAD") and name in line and str(file_offset) in line for line in people.stdout.splitlines()
        )
        if len(packs) > 1:
            sample = verified(tonne, reference, "--sample", "100%")
            assert [item["packOffset"] for item in sample["findings"]] == [finding["packOffset"]]
        assert any(pack.parent.name in json.dumps(item) for item in verified(tonne, reference, "--packs")["findings"])
        flip(pack, at, bit)
    tonne.run("verify", reference, "--packs")


def test_a_changed_file_of_the_same_size_and_time_is_named(tmp_path: Path, source: Path) -> None:
    tonne = Tonne(tmp_path / "cache")
    reference = f"oci:{tmp_path / 'layout'}:v1"
    tonne.run("pack", source, reference)
    pulled = tmp_path / "pulled"
    tonne.run("pull", reference, pulled)
    tonne.run("verify", reference, pulled)
    chance = random.Random(2)
    for name in ("one", "two"):
        offset, bit = chance.randrange(17 * MIB), chance.randrange(8)
        flip(pulled / name, offset, bit)
        said = verified(tonne, reference, pulled)
        bad = {file["path"]: [item["what"] for item in file["findings"]] for file in said["files"] if not file["good"]}
        assert bad == {name: ["content"]}
        flip(pulled / name, offset, bit)
    tonne.run("verify", reference, pulled)
