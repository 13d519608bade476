"""kill -9 of `tonne cp` at any moment: blobs go on where they were."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.system.command import Tonne
from tests.system.kills import (
    LANES,
    MIB,
    DebianFiles,
    Killer,
    fetched,
    forgotten_uploads,
    held_by,
    make_model,
    moments,
    received,
    settled,
)
from tonne.testing.processes import DebianRegistry
from tonne.testing.registry import FaultRegistry

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

CHUNK_BYTES = 16 * MIB
SMALL_BYTES = MIB  # manifest, config and index


@pytest.fixture
def killer(tmp_path: Path) -> Killer:
    return Killer(Tonne(tmp_path / "cache"), tmp_path / "temporary")


def packed(tmp_path: Path, tonne: Tonne, origin: FaultRegistry) -> str:
    reference = f"{origin.address}/kill/origin:v1"
    tonne.run("pack", make_model(tmp_path / "model"), reference, "--pack-size", "40MiB")
    origin.forget_requests()
    return reference


def test_to_a_registry_that_keeps_what_came(tmp_path: Path, killer: Killer, kills: int) -> None:
    tonne = killer.tonne
    hits = partly = 0
    with FaultRegistry(folder=tmp_path / "origin") as origin, FaultRegistry(folder=tmp_path / "target") as target:
        reference = packed(tmp_path, tonne, origin)
        began_s = time.monotonic()
        whole = tonne.json("cp", reference, f"{target.address}/kill/whole:v1")
        took_s = time.monotonic() - began_s
        total = received(target, "kill/whole")
        assert total > 160 * MIB
        for turn, moment in enumerate(moments(14, kills)):
            name = f"kill/turn-{turn}"
            words = ("cp", reference, f"{target.address}/{name}:v1", "--json")
            origin.forget_requests()
            hit = killer.kill(moment, took_s, total, partial(held_by, target, name), *words)
            held = settled(partial(held_by, target, name))
            hits += hit
            partly += hit and SMALL_BYTES < held < total - SMALL_BYTES
            since, here = len(target.requests), len(origin.requests)
            again = tonne.json(*words)
            assert again["digest"] == whole["digest"]
            sent = received(target, name, since)
            assert sent <= total - held + SMALL_BYTES, (moment, sent, held, total)
            assert fetched(origin, here) <= total - held + SMALL_BYTES
            assert fetched(origin) <= total + LANES * CHUNK_BYTES + SMALL_BYTES, "more than was in flight"
            assert forgotten_uploads(target, name) == [], moment
            assert killer.leftovers() == []
            assert target.contents.digests(name) == origin.contents.digests("kill/origin")
        assert hits >= kills * 3 // 4, "too many kills came after the end"
        assert partly >= kills // 2, "no kill came while blobs were being sent"


def test_to_a_registry_that_drops_what_was_cut(
    tmp_path: Path, killer: Killer, docker_registry: Callable[..., DebianRegistry], kills: int
) -> None:
    tonne = killer.tonne
    target = docker_registry()
    hits = partly = 0
    with FaultRegistry(folder=tmp_path / "origin") as origin:
        reference = packed(tmp_path, tonne, origin)
        began_s = time.monotonic()
        whole = tonne.json("cp", reference, f"{target.address}/kill/whole:v1")
        took_s = time.monotonic() - began_s
        total = DebianFiles(target, "kill/whole").stored()
        for turn, moment in enumerate(moments(15, kills)):
            files = DebianFiles(target, f"kill/turn-{turn}")
            words = ("cp", reference, f"{target.address}/kill/turn-{turn}:v1", "--json")
            hit = killer.kill(moment, took_s, total, files.moved, *words)
            moved, stored = settled(files.moved), files.stored()
            hits += hit
            partly += hit and SMALL_BYTES < moved < total - SMALL_BYTES
            here = len(origin.requests)
            again = tonne.json(*words)
            assert again["digest"] == whole["digest"]
            assert again["sentBytes"] <= total - stored + SMALL_BYTES, (moment, again, stored)
            assert fetched(origin, here) <= total - stored + SMALL_BYTES
            assert files.stored() == total
            assert files.forgotten_uploads() == [], moment
            assert killer.leftovers() == []
        assert hits >= kills * 3 // 4, "too many kills came after the end"
        assert partly >= kills // 2, "no kill came while blobs were being sent"


def test_to_a_layout(tmp_path: Path, killer: Killer, kills: int) -> None:
    tonne = killer.tonne
    hits = partly = 0
    with FaultRegistry(folder=tmp_path / "origin") as origin:
        reference = packed(tmp_path, tonne, origin)
        origin.rules.bytes_per_s = 20 * MIB  # a disk is faster than the kills
        began_s = time.monotonic()
        whole = tonne.json("cp", reference, f"oci:{tmp_path / 'whole'}:v1")
        took_s = time.monotonic() - began_s
        total = fetched(origin)
        names = files_of(tmp_path / "whole")
        assert total > 160 * MIB
        for turn, moment in enumerate(moments(16, kills)):
            folder = tmp_path / f"turn-{turn}"
            words = ("cp", reference, f"oci:{folder}:v1", "--json")
            origin.forget_requests()
            hit = killer.kill(moment, took_s, total, lambda: fetched(origin), *words)
            first = settled(lambda: fetched(origin))
            hits += hit
            partly += hit and SMALL_BYTES < first < total - SMALL_BYTES
            here = len(origin.requests)
            again = tonne.json(*words)
            assert again["digest"] == whole["digest"]
            # A chunk of each blob on its way may have been read and not yet been written.
            assert first + fetched(origin, here) <= total + LANES * CHUNK_BYTES + SMALL_BYTES, (moment, first)
            assert files_of(folder) == names, moment
            assert killer.leftovers() == []
            assert json.loads((folder / "index.json").read_text())["manifests"][0]["digest"] == whole["digest"]
        assert hits >= kills * 3 // 4, "too many kills came after the end"
        assert partly >= kills // 4, "no kill came while blobs were being copied"
        tonne.run("verify", f"oci:{tmp_path / 'turn-0'}:v1", "--packs")


def files_of(folder: Path) -> dict[str, int]:
    """Every file of a layout with its size."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
