"""A tree of hard cases through everything, and back: pack, mount, pull, cp, mount of the copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.command import Tonne
from tests.system.trees import FRAME_BYTES, differences, facts_of, make_hard_tree
from tonne.testing.processes import DebianRegistry

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1800)]

MIB = 1024 * 1024


@pytest.mark.usefixtures("needs_fuse")
def test_a_hard_tree_comes_back_equal(
    tmp_path: Path, docker_registry: Callable[..., DebianRegistry], hard_tree: tuple[int, int]
) -> None:
    small_files, large_bytes = hard_tree
    source = tmp_path / "source"
    make_hard_tree(source, small_files, large_bytes)
    expected = facts_of(source)
    registry = docker_registry()
    reference = f"{registry.address}/hard/tree:v1"
    tonne = Tonne(tmp_path / "cache")

    packed = tonne.json("pack", source, reference, "--links", "keep")
    with tonne.mounted(reference, tmp_path / "mount") as mounted:
        assert mounted["digest"] == packed["digest"]
        assert differences(expected, facts_of(tmp_path / "mount")) == []
    tonne.run("pull", reference, tmp_path / "pulled")
    assert differences(expected, facts_of(tmp_path / "pulled")) == []
    tonne.run("verify", reference, tmp_path / "pulled")
    layout = f"oci:{tmp_path / 'layout'}:copy"
    tonne.run("cp", reference, layout)
    other = Tonne(tmp_path / "other-cache")
    with other.mounted(layout, tmp_path / "again") as mounted:
        assert mounted["digest"] == packed["digest"]
        assert differences(expected, facts_of(tmp_path / "again")) == []
    again = tonne.json("pack", source, f"{registry.address}/hard/tree:v2", "--links", "keep", "--base", reference)
    assert again["new"]["storedBytes"] == 0


@pytest.mark.usefixtures("needs_fuse")
def test_holes_take_no_room_after_a_pull(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.write(b"head")
        file.truncate(512 * MIB)
    tonne = Tonne(tmp_path / "cache")
    reference = f"oci:{tmp_path / 'layout'}:v1"
    packed = tonne.json("pack", source, reference)
    assert packed["storedBytes"] < MIB
    tonne.run("pull", reference, tmp_path / "pulled")
    stat = (tmp_path / "pulled" / "sparse").stat()
    assert stat.st_size == 512 * MIB
    # A hole is kept in whole frames: the one with the head in it is content.
    assert stat.st_blocks * 512 <= FRAME_BYTES
    with (tmp_path / "pulled" / "sparse").open("rb") as file:
        assert file.read(8) == b"head\0\0\0\0"
