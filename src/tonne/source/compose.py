"""The one place where the concrete sources meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tonne.clock import SYSTEM_CLOCK, Clock
from tonne.errors import TonneError
from tonne.model import LayoutReference, Reference, RegistryReference
from tonne.settings import Settings
from tonne.source.failover import FailoverSource
from tonne.source.layout import open_layout
from tonne.source.limit import LimitSource
from tonne.source.retry import RetrySource
from tonne.source.seam import Repository, Source
from tonne.source.singleflight import SingleFlight
from tonne.transport.backoff import Backoff

if TYPE_CHECKING:
    from tonne.transport.registry import Registry


class Registries:
    """The registries of one command: the repositories of a host share its connections, tokens and redirects.

    Any thread may call; `close` closes what was opened.  Nothing survives a crash.
    """

    def __init__(self, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: dict[str, Registry] = {}

    def open_repository(self, reference: Reference) -> Repository:
        """What a reference names, as `open_repository`; closing a registry's leaves the registry to the others."""
        if isinstance(reference, LayoutReference):
            return open_layout(reference, self._clock)
        # Only here, so that work on layouts alone does not load libcurl.
        from tonne.source.registry import open_registry
        from tonne.transport.registry import Registry

        host, network = reference.host, self._settings.network
        with self._lock:
            if host not in self._opened:
                self._opened[host] = Registry(host, network.for_host(host), self._clock)
            return open_registry(reference, network, self._clock, self._opened[host])

    def close(self) -> None:
        """Close all connections.  Idempotent."""
        with self._lock:
            opened, self._opened = self._opened, {}
        for registry in opened.values():
            registry.close()


def open_repository(reference: Reference, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Repository:
    """What a reference names, to read, write and list, without wrappers.  Asks nobody yet."""
    if isinstance(reference, LayoutReference):
        return open_layout(reference, clock)
    from tonne.source.registry import open_registry

    return open_registry(reference, settings.network, clock)


def mount_name(source: Reference, target: Reference) -> str:
    """What `Sink.mount` of the target calls the source's repository; empty where blobs cannot be mounted from it."""
    if isinstance(source, RegistryReference) and isinstance(target, RegistryReference) and source.host == target.host:
        return source.repository
    if isinstance(source, LayoutReference) and isinstance(target, LayoutReference):
        return source.path
    return ""


def compose_reader(
    repositories: Sequence[Source],
    settings: Settings,
    clock: Clock = SYSTEM_CLOCK,
    on_event: Callable[[TonneError], None] | None = None,
) -> Source:
    """Reading from repositories that hold the same blobs, the preferred first, as commands and mounts do it.

    Places are counted for each repository, and are free while a retry waits.  `on_event` is told of each error that
    did not come through.  Closing the result closes the repositories.
    """
    network = settings.network
    backoff = Backoff.of(network)
    tried = [
        RetrySource(LimitSource(repository, network.connections), backoff, clock, on_event)
        for repository in repositories
    ]
    return SingleFlight(FailoverSource(tried, clock, on_event))
