"""The one place where the concrete sources meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tonne.clock import SYSTEM_CLOCK, Clock
from tonne.errors import TonneError
from tonne.model import LayoutReference, Reference
from tonne.settings import Settings
from tonne.source.failover import FailoverSource
from tonne.source.layout import open_layout
from tonne.source.limit import LimitSource
from tonne.source.retry import RetrySource
from tonne.source.seam import Repository, Source
from tonne.source.singleflight import SingleFlight
from tonne.transport.backoff import Backoff


def open_repository(reference: Reference, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Repository:
    """What a reference names, to read, write and list, without wrappers.  Asks nobody yet."""
    if isinstance(reference, LayoutReference):
        return open_layout(reference, clock)
    # Only here, so that work on layouts alone does not load libcurl.
    from tonne.source.registry import open_registry

    return open_registry(reference, settings.network, clock)


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
