"""kill -9 of `tonne pack` at any moment: the next run sends what was in flight, not what had come."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.system.command import Tonne
from tests.system.kills import (
    MIB,
    DebianFiles,
    Killer,
    Moment,
    forgotten_uploads,
    held_by,
    make_model,
    moments,
    received,
    settled,
)
from tests.system.trees import differences, facts_of
from tonne.testing.processes import DebianRegistry
from tonne.testing.registry import FaultRegistry

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

SMALL_BYTES = MIB  # root, pages, config and manifest of these images: may be sent by each run
OPTIONS = ("--pack-size", "40MiB", "--json")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


@pytest.fixture
def killer(tmp_path: Path) -> Killer:
    return Killer(Tonne(tmp_path / "cache"), tmp_path / "temporary")


def test_a_registry_that_keeps_what_came_gets_nothing_twice(
    tmp_path: Path, killer: Killer, source: Path, kills: int
) -> None:
    tonne = killer.tonne
    hits = partly = 0
    with FaultRegistry(folder=tmp_path / "registry") as registry:
        began_s = time.monotonic()
        whole = tonne.json("pack", source, f"{registry.address}/kill/whole:v1", *OPTIONS)
        took_s = time.monotonic() - began_s
        total = received(registry, "kill/whole")
        assert total > 160 * MIB
        for turn, moment in enumerate(moments(11, kills)):
            name = f"kill/turn-{turn}"
            words = ("pack", source, f"{registry.address}/{name}:v1", *OPTIONS)
            hit = killer.kill(moment, took_s, total, partial(held_by, registry, name), *words)
            held = settled(partial(held_by, registry, name))
            hits += hit
            partly += hit and SMALL_BYTES < held < total - SMALL_BYTES
            before = len(registry.requests)
            again = tonne.json(*words)
            assert again["digest"] == whole["digest"], moment
            sent = received(registry, name, before)
            assert sent <= total - held + SMALL_BYTES, (moment, sent, held, total)
            # What is counted by the command is what the registry saw.
            assert abs(again["sentBytes"] - sent) <= SMALL_BYTES
            assert forgotten_uploads(registry, name) == [], moment
            assert killer.leftovers() == []
        assert hits >= kills * 3 // 4, "too many kills came after the end"
        assert partly >= kills // 2, "no kill came while packs were being sent"
        tonne.run("pull", f"{registry.address}/kill/turn-0:v1", tmp_path / "pulled")
    assert differences(facts_of(source), facts_of(tmp_path / "pulled")) == []


def test_a_registry_that_drops_what_was_cut_gets_the_open_packs_again(
    killer: Killer, source: Path, docker_registry: Callable[..., DebianRegistry], kills: int
) -> None:
    """distribution 2.8 ends a session of which a PATCH was cut; a pack that is committed is not sent again."""
    tonne = killer.tonne
    registry = docker_registry()
    began_s = time.monotonic()
    whole = tonne.json("pack", source, f"{registry.address}/kill/whole:v1", *OPTIONS)
    took_s = time.monotonic() - began_s
    total = DebianFiles(registry, "kill/whole").stored()
    hits = partly = spared = 0
    for turn, moment in enumerate(moments(12, kills)):
        name = f"kill/turn-{turn}"
        files = DebianFiles(registry, name)
        words = ("pack", source, f"{registry.address}/{name}:v1", *OPTIONS)
        hit = killer.kill(moment, took_s, total, files.moved, *words)
        moved = settled(files.moved)
        stored = files.stored()
        hits += hit
        partly += hit and SMALL_BYTES < moved < total - SMALL_BYTES
        again = tonne.json(*words)
        assert again["digest"] == whole["digest"], moment
        assert again["sentBytes"] <= total - stored + SMALL_BYTES, (moment, again["sentBytes"], stored, total)
        spared += hit and stored > SMALL_BYTES
        assert files.stored() == total
        assert files.forgotten_uploads() == [], moment
        assert killer.leftovers() == []
    assert hits >= kills * 3 // 4, "too many kills came after the end"
    assert partly >= kills // 2, "no kill came while packs were being sent"
    assert spared, "no kill came after a pack was committed"


@pytest.mark.parametrize("share", [0.985, 1.0])
def test_killed_at_the_very_end(tmp_path: Path, killer: Killer, source: Path, share: float) -> None:
    """While the index is written and named: packs are there, and are not sent again."""
    tonne = killer.tonne
    with FaultRegistry(folder=tmp_path / "registry") as registry:
        whole = tonne.json("pack", source, f"{registry.address}/kill/whole:v1", *OPTIONS)
        total = sum(size for size in _sizes(registry, "kill/whole") if size > SMALL_BYTES)
        words = ("pack", source, f"{registry.address}/kill/late:v1", *OPTIONS)
        moment = Moment(share, True)
        assert killer.kill(moment, 0, total, lambda: held_by(registry, "kill/late"), *words), "it had ended"
        held = settled(lambda: held_by(registry, "kill/late"))
        assert held >= share * total
        before = len(registry.requests)
        assert tonne.json(*words)["digest"] == whole["digest"]
        assert received(registry, "kill/late", before) <= total - held + SMALL_BYTES
        assert forgotten_uploads(registry, "kill/late") == []
        assert killer.leftovers() == []


def _sizes(registry: FaultRegistry, repository: str) -> list[int]:
    found = (registry.contents.blob(repository, digest) for digest in registry.contents.digests(repository))
    return [content.size_bytes for content in found if content is not None]
