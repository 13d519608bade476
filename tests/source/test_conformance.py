"""Every kind of repository and every wrapper runs the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tonne.clock import SYSTEM_CLOCK
from tonne.model import Digest, LayoutReference, RegistryReference
from tonne.settings import Settings
from tonne.source.compose import compose_reader, open_repository
from tonne.source.failover import FailoverSource
from tonne.source.layout import LayoutRepository
from tonne.source.limit import LimitSource
from tonne.source.memory import MemoryRepository
from tonne.source.retry import RetrySource
from tonne.source.seam import Repository, Source
from tonne.source.singleflight import SingleFlight
from tonne.testing.clock import VirtualClock
from tonne.testing.conformance import Loaded, SourceConformance, load
from tonne.testing.conformance_sink import CatalogConformance, Empty, SinkConformance
from tonne.testing.processes import DebianRegistry
from tonne.transport.backoff import Backoff


def retry(source: Source) -> Source:
    # Back-off in virtual time costs nothing.
    return RetrySource(source, Backoff(6, 0.5, 30.0, 120.0), VirtualClock())


def composed(source: Source) -> Source:
    return compose_reader([source], Settings(), VirtualClock())


WRAPPERS: dict[str, Callable[[Source], Source]] = {
    "memory": lambda source: source,
    "retry": retry,
    "failover": lambda source: FailoverSource([source], SYSTEM_CLOCK),
    "failover-second": lambda source: FailoverSource([MemoryRepository("memory/empty"), source], SYSTEM_CLOCK),
    "limit": lambda source: LimitSource(source, 2),
    "limit-one": lambda source: LimitSource(source, 1),
    "single-flight": SingleFlight,
    "composed": composed,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
class TestWrappersOfMemory(SourceConformance):
    @pytest.fixture
    def loaded(self, wrapper: str) -> Loaded:
        repository = MemoryRepository()
        return Loaded(WRAPPERS[wrapper](repository), load(repository))


class TestMemory(SinkConformance, CatalogConformance):
    @pytest.fixture
    def empty(self) -> Empty:
        repository, neighbour = MemoryRepository(), MemoryRepository("memory/other")
        repository.siblings["other"] = neighbour
        return Empty(repository, lambda: repository, neighbour, "other")


class TestLayoutAsSource(SourceConformance):
    @pytest.fixture
    def loaded(self, tmp_path: Path) -> Loaded:
        repository = open_repository(LayoutReference(str(tmp_path / "layout")), Settings())
        return Loaded(repository, load(repository))


class TestLayout(SinkConformance, CatalogConformance):
    @pytest.fixture
    def empty(self, tmp_path: Path) -> Iterator[Empty]:
        def reopen() -> LayoutRepository:
            return LayoutRepository(str(tmp_path / "layout"))

        repository = reopen()
        neighbour = LayoutRepository(str(tmp_path / "other"))
        yield Empty(repository, reopen, neighbour, str(tmp_path / "other"))
        repository.close()
        neighbour.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, needs_program: Callable[[str], str]) -> Iterator[DebianRegistry]:
    with DebianRegistry(tmp_path_factory.mktemp("registry"), needs_program("docker-registry")) as running:
        yield running


@pytest.fixture
def repository_name(request: pytest.FixtureRequest) -> str:
    """One that no other test of this run uses."""
    return f"ml/{Digest.of(request.node.nodeid.encode()).hex[:16]}"


@pytest.mark.system
class TestDockerRegistryAsSource(SourceConformance):
    @pytest.fixture
    def loaded(self, registry: DebianRegistry, repository_name: str) -> Iterator[Loaded]:
        repository = open_repository(RegistryReference(registry.address, repository_name), Settings())
        yield Loaded(repository, load(repository))
        repository.close()


@pytest.mark.system
class TestDockerRegistry(SinkConformance, CatalogConformance):
    @pytest.fixture
    def empty(self, registry: DebianRegistry, repository_name: str) -> Iterator[Empty]:
        reference = RegistryReference(registry.address, repository_name)
        other_name = f"{repository_name}/other"

        def reopen() -> Repository:
            return open_repository(reference, Settings())

        repository = reopen()
        neighbour = open_repository(RegistryReference(registry.address, other_name), Settings())
        yield Empty(repository, reopen, neighbour, other_name)
        repository.close()
        neighbour.close()
