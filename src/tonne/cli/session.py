"""What a verb gets: settings, opened repositories, the store, progress, and the two ways to print a result.

What is heavy is imported where it is used: `tonne mount` waits for this process before its own can begin, and
`tonne --help` should not load NumPy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tonne.cli.bars import Bars
from tonne.clock import Deadline
from tonne.errors import TonneError, UsageError
from tonne.model import Reference, RegistryReference, parse_reference
from tonne.settings import Settings

if TYPE_CHECKING:
    from tonne.image.fetch import Keeper
    from tonne.image.opening import Image
    from tonne.source.compose import Registries
    from tonne.source.seam import Repository
    from tonne.store import Store


@dataclass(slots=True)
class Session:
    """One run of the command.  Everything opened through it is closed at its end, in reverse order."""

    as_json: bool = False
    quiet: bool = False
    use_cache: bool = True
    settings: Settings = field(default_factory=Settings)
    arguments: tuple[str, ...] = ()  # the command line as it was given, for a verb that goes on in another process
    _progress: Bars | None = None
    _store: Store | None = None
    _registries: Registries | None = None
    _warned: str = ""
    _hosts: set[str] = field(default_factory=set)  # registries that the environment's credentials go to
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def progress(self) -> Bars:
        """Bars on a terminal, plain lines elsewhere, nothing when quiet."""
        if self._progress is None:
            self._progress = Bars(sys.stderr, quiet=self.quiet)
            self._stack.callback(self._progress.close)
        return self._progress

    def store(self) -> Store | None:
        """The node's store; None with --no-cache."""
        if not self.use_cache:
            return None
        if self._store is None:
            from tonne.store import Store

            self._store = Store.open(self.settings.cache, on_event=self.warn)
            self._stack.callback(self._store.close)
        return self._store

    def check_hosts(self, *references: Reference | str) -> None:
        """Refuse to give the environment's credentials to several registries; a verb with several calls it first.

        Raises `UsageError` before anything is asked, unless TONNE_HOST says whose they are.
        """
        network = self.settings.network
        if network.credentials_host or not (network.username or network.token):
            return
        for each in references:
            reference = parse_reference(each) if isinstance(each, str) else each
            if isinstance(reference, RegistryReference):
                self._hosts.add(reference.host)
        if len(self._hosts) > 1:
            raise UsageError(
                "credentials for one registry and a command that names several",
                where=", ".join(sorted(self._hosts)),
                why="TONNE_USERNAME or TONNE_TOKEN does not say whose it is",
                todo="set TONNE_HOST to the host that they are for; log in to the other with `docker login HOST`",
            )

    def repository(self, reference: Reference | str) -> Repository:
        """The repository that a reference names; those of one registry share its connections and tokens."""
        from tonne.source.compose import Registries

        if isinstance(reference, str):
            reference = parse_reference(reference)
        self.check_hosts(reference)
        if self._registries is None:
            self._registries = Registries(self.settings)
            self._stack.callback(self._registries.close)
        repository = self._registries.open_repository(reference)
        self._stack.callback(repository.close)
        return repository

    def image(self, text: str, deadline: Deadline | None = None, store: Keeper | None = None) -> Image:
        """The image that a reference names, read through retry and the rest."""
        from tonne.image.opening import open_image
        from tonne.source.compose import compose_reader

        reference = parse_reference(text)
        source = compose_reader([self.repository(reference)], self.settings, on_event=self.warn)
        return open_image(source, reference.name, self.settings, deadline or self.deadline(), store, self.warn)

    def deadline(self) -> Deadline:
        """For one short piece of work, such as reading a manifest."""
        return Deadline.after(self.settings.read.deadline_s)

    def deadline_each(self) -> Deadline:
        """For work of any length, such as listing a tree: each read that it needs has an end, the whole has none."""
        return Deadline.each(self.settings.read.deadline_s)

    def warn(self, error: TonneError) -> None:
        """Show an error that did not come through.  One that only repeats, as tries do, is shown once."""
        text = str(error)
        if text != self._warned:
            self._warned = text
            self.progress.say(f"warning: {text}")

    def emit(self, document: Any, people: Callable[[], None]) -> None:
        """Print the document as JSON, or let `people` print for people."""
        self.progress.close()
        if self.as_json:
            json.dump(document, sys.stdout, ensure_ascii=False, indent=2)
            sys.stdout.write("\n")
        else:
            people()
        sys.stdout.flush()

    def close(self) -> None:
        self._stack.close()
