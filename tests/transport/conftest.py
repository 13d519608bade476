from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

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


NAMED_HOST = "registry.example.test"  # reached through a proxy alone: the name does not exist


@dataclass(frozen=True)
class Authority:
    """A certificate for 127.0.0.1 and `NAMED_HOST` that is its own authority."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """A server's context with it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", f"subjectAltName=IP:127.0.0.1,DNS:{NAMED_HOST}"]
    subprocess.run(command, check=True, capture_output=True)
    return Authority(certificate, key)
