"""What a verb gets: settings, opened repositories, the store, progress, and the two ways to print a result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tonne.cli.bars import Bars
from tonne.clock import Deadline
from tonne.errors import TonneError
from tonne.image.fetch import Keeper
from tonne.image.opening import Image, open_image
from tonne.model import Reference, parse_reference
from tonne.settings import Settings
from tonne.source.compose import compose_reader, open_repository
from tonne.source.seam import Repository

if TYPE_CHECKING:
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
            from tonne.store import Store  # only here: many verbs work without it

            self._store = Store.open(self.settings.cache, on_event=self.warn)
            self._stack.callback(self._store.close)
        return self._store

    def repository(self, reference: Reference | str) -> Repository:
        """The repository that a reference names."""
        if isinstance(reference, str):
            reference = parse_reference(reference)
        repository = open_repository(reference, self.settings)
        self._stack.callback(repository.close)
        return repository

    def image(self, text: str, deadline: Deadline | None = None, store: Keeper | None = None) -> Image:
        """The image that a reference names, read through retry and the rest."""
        reference = parse_reference(text)
        source = compose_reader([self.repository(reference)], self.settings, on_event=self.warn)
        return open_image(source, reference.name, self.settings, deadline or self.deadline(), store, self.warn)

    def deadline(self) -> Deadline:
        """For one short piece of work, such as reading a manifest."""
        return Deadline.after(self.settings.read.deadline_s)

    def warn(self, error: TonneError) -> None:
        self.progress.say(f"warning: {error}")

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
