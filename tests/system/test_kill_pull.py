"""kill -9 of `tonne pull` at any moment: what is in the folder is not fetched again, and nothing else is left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.system.command import Tonne
from tests.system.kills import MIB, Killer, fetched, make_model, moments, settled
from tests.system.trees import differences, facts_of
from tonne.testing.registry import FaultRegistry

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

FRAME_BYTES = 4 * MIB
IN_FLIGHT_BYTES = 8 * 16 * MIB  # connections, and bytes of a request
SMALL_BYTES = FRAME_BYTES + MIB  # the frame that small files share, and the index: may be fetched by each run


def right_bytes(source: Path, folder: Path) -> int:
    """Bytes of whole frames of the shards that are right in a folder, under their names or in unfinished files.

    The shards do not pack, so a frame of content is a frame of stored bytes.
    """
    unfinished = list((folder / ".tonne-pull" / "files").glob("*"))
    found = 0
    for path in source.glob("shard-*"):
        expected = path.read_bytes()
        there = folder / path.name
        made = [there] if there.exists() else [p for p in unfinished if p.stat().st_size == len(expected)]
        best = 0
        for candidate in made:
            content = candidate.read_bytes()
            places = range(0, len(expected), FRAME_BYTES)
            same = (expected[at : at + FRAME_BYTES] == content[at : at + FRAME_BYTES] for at in places)
            best = max(best, sum(FRAME_BYTES for is_same in same if is_same))
        found += min(best, len(expected))
    return found


def test_what_is_in_the_folder_is_not_fetched_again(tmp_path: Path, kills: int) -> None:
    source = make_model(tmp_path / "model", shards=5)
    tonne = Tonne(tmp_path / "cache")
    killer = Killer(tonne, tmp_path / "temporary")
    expected = facts_of(source)
    hits = partly = 0
    with FaultRegistry(folder=tmp_path / "registry") as registry:
        reference = f"{registry.address}/kill/pull:v1"
        tonne.run("pack", source, reference)
        # Eight requests at once: so that there is something to kill on a fast machine too.
        registry.rules.bytes_per_s = 10 * MIB
        registry.forget_requests()
        began_s = time.monotonic()
        tonne.run("pull", reference, tmp_path / "whole")
        took_s = time.monotonic() - began_s
        total = fetched(registry)
        assert total > 200 * MIB
        assert differences(expected, facts_of(tmp_path / "whole")) == []
        for turn, moment in enumerate(moments(13, kills)):
            target = tmp_path / f"turn-{turn}"
            registry.forget_requests()
            hit = killer.kill(moment, took_s, total, lambda: fetched(registry), "pull", reference, target)
            first = settled(lambda: fetched(registry))
            held = right_bytes(source, target) if target.exists() else 0
            hits += hit
            partly += hit and 0 < held < total - SMALL_BYTES
            since = len(registry.requests)
            tonne.run("pull", reference, target)
            again = fetched(registry, since)
            assert again <= total - held + SMALL_BYTES, (moment, again, held, total)
            assert first + again <= total + IN_FLIGHT_BYTES + SMALL_BYTES, (moment, first, again, total)
            assert differences(expected, facts_of(target)) == [], moment
            assert not (target / ".tonne-pull").exists()
            assert killer.leftovers() == []
            # Nothing was put into the cache, and there is nothing to do any more.
            since = len(registry.requests)
            tonne.run("pull", reference, target)
            assert fetched(registry, since) <= SMALL_BYTES
            assert differences(expected, facts_of(target)) == [], moment
    assert hits >= kills * 3 // 4, "too many kills came after the end"
    assert partly >= kills // 4, "no kill came while files were being made"
