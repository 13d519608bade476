"""The composed reader: what the wrappers do together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.source.gates import Gate, Readers
from tonne.clock import Deadline
from tonne.errors import Busy, CorruptBytes, MissingBlob, Stalled, TonneError, Unauthenticated, Unreachable
from tonne.model import LayoutReference, RegistryReference
from tonne.settings import NetworkSettings, Settings
from tonne.source.compose import compose_reader, open_repository
from tonne.source.layout import LayoutRepository
from tonne.source.memory import MemoryRepository
from tonne.testing.clock import VirtualClock
from tonne.testing.conformance import TAG, load, read_all, soon

ONCE = Settings(network=NetworkSettings(attempts=1))


class Case:
    def __init__(self, settings: Settings | None = None) -> None:
        self.clock = VirtualClock()
        self.mirror, self.registry = MemoryRepository("mirror/repo"), MemoryRepository("registry/repo")
        self.content = load(self.mirror)
        load(self.registry)
        self.events: list[TonneError] = []
        self.source = compose_reader(
            [self.mirror, self.registry], settings or Settings(), self.clock, self.events.append
        )

    def reads(self, repository: MemoryRepository) -> int:
        return sum(asked.kind == "read" for asked in repository.asked)


def test_a_source_is_tried_again_before_the_next_is_asked() -> None:
    case = Case()
    case.mirror.fail("read", Stalled("no progress"), times=2)
    assert read_all(case.source, case.content.blob) == case.content.data
    assert (case.reads(case.mirror), case.reads(case.registry)) == (3, 0)
    assert [type(event) for event in case.events] == [Stalled] * 2


def test_a_source_that_is_down_costs_its_attempts_once() -> None:
    case = Case()
    case.mirror.fail("read", Unreachable("refused"), times=None)
    for _ in range(5):
        assert read_all(case.source, case.content.blob) == case.content.data
    assert (case.reads(case.mirror), case.reads(case.registry)) == (6, 5)
    assert len(case.events) == 6


def test_bytes_that_stay_wrong_come_from_the_next_and_are_blamed_each_time() -> None:
    case = Case()
    case.mirror.flip(case.content.blob.digest, 3, times=100)

    def check(found: memoryview) -> None:
        if not case.content.blob.digest.matches(found):
            raise CorruptBytes("wrong bytes came")

    out = bytearray(case.content.blob.size_bytes)
    case.source.read(case.content.blob, 0, memoryview(out), soon(), check)
    assert bytes(out) == case.content.data
    assert [event.fields["origin"] for event in case.events] == ["mirror/repo"] * 3


def test_a_source_that_is_busy_does_not_use_up_the_time_of_the_next() -> None:
    case = Case()
    case.mirror.fail("read", Busy("status 429", retry_after_s=50.0), times=None)
    out = bytearray(10)
    case.source.read(case.content.blob, 0, memoryview(out), Deadline.after(60.0, case.clock))
    assert bytes(out) == case.content.data[:10]
    assert case.clock.now_s() < 1.0


def test_with_one_attempt_the_raw_error_comes_through() -> None:
    case = Case(ONCE)
    case.mirror.fail("read", MissingBlob("gone"))
    case.registry.fail("read", Unauthenticated("who are you"))
    with pytest.raises(Unauthenticated, match="mirror/repo: gone"):
        read_all(case.source, case.content.blob)
    assert (case.reads(case.mirror), case.reads(case.registry)) == (1, 1)
    assert read_all(case.source, case.content.blob) == case.content.data


def test_each_source_has_its_own_places() -> None:
    settings = replace(Settings(), network=NetworkSettings(connections=2))
    case = Case(settings)
    case.mirror.fail("read", MissingBlob("gone"), times=1)
    gates = Gate(case.mirror), Gate(case.registry)
    with Readers(case.source, case.content.blob) as readers:
        first = readers.read(0)
        gates[0].wait_for(1)
        gates[0].let_go()
        gates[1].wait_for(1)
        others = [readers.read(offset) for offset in (1, 2, 3)]
        gates[0].wait_for(3)
        assert len(gates[0].arrived) == 3
        for gate in gates:
            gate.let_go(10)
        found = [future.result() for future in (first, *others)]
    assert found == [case.content.data[offset : offset + 100] for offset in range(4)]


def test_closing_the_reader_closes_the_repositories() -> None:
    case = Case()
    case.source.close()
    assert case.mirror.closed
    assert case.registry.closed


def test_references_open_what_they_name(tmp_path: Path) -> None:
    content = load(open_repository(LayoutReference(str(tmp_path / "layout")), Settings()))
    again = open_repository(LayoutReference(str(tmp_path / "layout"), TAG), Settings())
    assert isinstance(again, LayoutRepository)
    assert again.origin == f"oci:{tmp_path}/layout"
    assert again.manifest(TAG, soon()) == content.document
    # Asks nobody: there is no such host.
    registry = open_repository(RegistryReference("registry.invalid", "ml/bert"), Settings())
    assert registry.origin == "registry.invalid/ml/bert"
    registry.close()


def test_a_mirror_in_a_folder_stands_in_for_a_registry_that_is_down(tmp_path: Path) -> None:
    layout = open_repository(LayoutReference(str(tmp_path / "layout")), ONCE)
    content = load(layout)
    down = open_repository(RegistryReference("127.0.0.1:1", "ml/bert"), ONCE)
    events: list[TonneError] = []
    source = compose_reader([down, layout], ONCE, on_event=events.append)
    assert source.manifest(TAG, soon()) == content.document
    assert read_all(source, content.blob) == content.data
    assert isinstance(events[0], Unreachable)
    source.close()


def test_layouts_need_no_libcurl() -> None:
    code = "import sys, tonne.source.compose; sys.exit('pycurl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
