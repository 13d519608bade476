from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator

import pytest

from tests.transport.scripted import Answer, ScriptedServer, Seen


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    """Starts a scripted server; all end with the test, which fails when a script did."""
    running: list[ScriptedServer] = []

    def start(script: Callable[[Seen], Answer], context: ssl.SSLContext | None = None) -> ScriptedServer:
        server = ScriptedServer(script, context).__enter__()
        running.append(server)
        return server

    yield start
    for server in running:
        server.__exit__(None, None, None)
