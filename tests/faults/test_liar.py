"""Two sources of which one lies: right bytes, and the liar is blamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.image.sketch import Made, make
from tests.image.test_pull import check_equal
from tonne.clock import Deadline
from tonne.errors import Corrupt, CorruptBytes, TonneError
from tonne.image.opening import open_image
from tonne.image.pull import pull
from tonne.model import Digest, parse_reference
from tonne.progress import Silent
from tonne.settings import NetworkSettings, ReadSettings, Settings
from tonne.source.compose import compose_reader, open_repository
from tonne.testing.faults import Action, Fault, IgnoreRange, LongBody, ShortBody, WrongBytes
from tonne.testing.registry import FaultRegistry

TREE = """
    level 0
    frame 16384
    lanes 2
    file large seed:1:200000
    file small text:one
"""
SETTINGS = Settings(
    network=NetworkSettings(backoff_first_s=0.005, backoff_max_s=0.02, request_bytes=65536),
    read=ReadSettings(whole_index_bytes=0),
)
ONE_TRY = Settings(network=NetworkSettings(attempts=1, request_bytes=65536), read=ReadSettings(whole_index_bytes=0))


@pytest.fixture(scope="module")
def made() -> Made:
    return make(TREE)


@pytest.fixture
def two(made: Made) -> Iterator[tuple[FaultRegistry, FaultRegistry]]:
    """The one that is preferred, and another."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(FaultRegistry()) for _ in range(2))
        for registry in (first, second):
            for data in made.blobs.values():
                registry.add_blob("a/b", data)
            registry.add_manifest("a/b", "v1", made.document.data, made.document.media_type)
        yield first, second


def pulled(registries: tuple[FaultRegistry, ...], folder: Path, settings: Settings) -> list[TonneError]:
    """Pull from registries, the first preferred; what was told of on the way."""
    events: list[TonneError] = []
    repositories = [open_repository(parse_reference(f"{registry.address}/a/b:v1"), settings) for registry in registries]
    source = compose_reader(repositories, settings, on_event=events.append)
    try:
        image = open_image(source, "v1", settings, Deadline.after(30), on_event=events.append)
        pull(image, folder, settings, Silent(), on_event=events.append)
    finally:
        source.close()
    return events


@pytest.mark.parametrize(
    ("lie", "kind"),
    [
        (WrongBytes(50), Corrupt),
        (WrongBytes(-1), Corrupt),
        (ShortBody(5, announced=False), Corrupt),
        (LongBody(5), Corrupt),
        (IgnoreRange(), None),
    ],
    ids=["early bit", "last bit", "short", "long", "ignored range"],
)
@pytest.mark.parametrize("settings", [SETTINGS, ONE_TRY], ids=["tries", "one try"])
def test_the_liar_is_blamed(
    made: Made,
    two: tuple[FaultRegistry, FaultRegistry],
    tmp_path: Path,
    lie: Action,
    kind: type[TonneError] | None,
    settings: Settings,
) -> None:
    liar, honest = two
    liar.faults.add(Fault("blob-get", lie, times=None))
    events = pulled(two, tmp_path / "target", settings)
    check_equal(made, tmp_path / "target")
    assert liar.faults.fired
    if kind is None:  # no lie, only waste
        assert events == []
        return
    assert honest.asked("blob-get")
    assert events
    for event in events:
        assert isinstance(event, kind)
        assert event.where.startswith(f"{liar.address}/a/b"), event
        assert honest.address not in str(event)


def test_damage_at_rest_is_named(made: Made, two: tuple[FaultRegistry, FaultRegistry], tmp_path: Path) -> None:
    """One bit of one pack: only that frame is asked elsewhere."""
    liar, honest = two
    pack = str(made.manifest.packs[0].digest)
    liar.damage(pack, 20_000, 3)
    events = pulled(two, tmp_path / "target", SETTINGS)
    check_equal(made, tmp_path / "target")
    blamed = [event for event in events if isinstance(event, CorruptBytes)]
    assert blamed
    assert {event.fields["origin"] for event in blamed} == {f"{liar.address}/a/b"}
    assert all(event.fields["offset"] <= 20_000 for event in blamed)
    assert all(pack in str(event) for event in blamed)
    assert Digest.parse(pack) in made.blobs
    assert honest.asked("blob-get", subject=pack)


def test_where_both_lie_nothing_is_written(
    made: Made, two: tuple[FaultRegistry, FaultRegistry], tmp_path: Path
) -> None:
    for registry in two:
        registry.faults.add(Fault("blob-get", WrongBytes(50), times=None))
    with pytest.raises(CorruptBytes) as raised:
        pulled(two, tmp_path / "target", SETTINGS)
    assert all(registry.address in str(raised.value) for registry in two)
    assert not (tmp_path / "target" / "large").exists()
