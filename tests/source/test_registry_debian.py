"""Against Debian's docker-registry: restarts, cut connections and passwords in the middle of the work."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pytest

from tests.transport.conftest import Authority
from tonne import errors
from tonne.clock import Deadline
from tonne.model import Blob, Digest, RegistryReference
from tonne.settings import NetworkSettings
from tonne.source.registry import RegistryRepository, open_registry
from tonne.testing.processes import DebianRegistry

pytestmark = pytest.mark.system
DATA = os.urandom(3 << 20)
BLOB = Blob(Digest.of(DATA), len(DATA))
CHUNK = 1 << 20
Start = Callable[..., DebianRegistry]


def soon() -> Deadline:
    return Deadline.after(30)


def opened(address: str, **changes: object) -> RegistryRepository:
    network = NetworkSettings(stall_timeout_s=5.0, backoff_first_s=0.05, backoff_max_s=0.5, **changes)  # type: ignore[arg-type]
    return open_registry(RegistryReference(address, "ml/bert"), network)


def send(repository: RegistryRepository) -> None:
    upload = repository.start(soon())
    for at in range(0, len(DATA), CHUNK):
        upload.append(memoryview(DATA)[at : at + CHUNK], soon())
    upload.finish(BLOB.digest, soon())


def read_back(repository: RegistryRepository, offset: int = 12_345, length: int = 1 << 20) -> None:
    out = bytearray(length)
    repository.read(BLOB, offset, memoryview(out), soon())
    assert out == DATA[offset : offset + length]


class CuttingProxy:
    """Passes TCP on to a registry; `cut_after` bytes from the client of the next connections are the last."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.cut_after: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> CuttingProxy:
        self._run(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for item in [self._listener, *self._sockets]:
            _end(item)
        for thread in self._threads:
            thread.join(10)

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            self._run(self._pass, client, server, True)
            self._run(self._pass, server, client, False)

    def _pass(self, source: socket.socket, sink: socket.socket, upward: bool) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                if upward and self.cut_after and passed + len(data) > self.cut_after[0]:
                    self.cut_after.pop(0)
                    break
                sink.sendall(data)
                passed += len(data)
        except OSError:
            pass
        _end(source)
        _end(sink)


def _end(item: socket.socket) -> None:
    try:
        item.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    item.close()


def test_a_restart_between_chunks_and_reads(docker_registry: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_HTTP_SECRET", "the same before and after")
    registry = docker_registry()
    repository = opened(registry.address)
    upload = repository.start(soon())
    upload.append(memoryview(DATA)[:CHUNK], soon())
    registry.restart()
    upload.append(memoryview(DATA)[CHUNK:], soon())
    token = upload.token
    registry.restart()
    again = opened(registry.address)
    resumed = again.resume(token, soon())
    assert resumed.acknowledged_bytes == len(DATA)
    resumed.finish(BLOB.digest, soon())
    registry.restart()
    read_back(repository)
    again.close()
    repository.close()


def test_a_registry_that_is_away_for_a_while(docker_registry: Start) -> None:
    registry = docker_registry()
    repository = opened(registry.address, attempts=60)  # however long the start takes
    send(repository)
    registry.stop()
    with pytest.raises(errors.Unreachable):
        read_back(repository)
    timer = threading.Timer(0.2, registry.start)
    timer.start()
    repository.check_rights(soon())  # what stores waits for it
    timer.join()
    read_back(repository)
    repository.close()


def test_a_patch_cut_in_the_middle_loses_the_session_and_says_so(docker_registry: Start) -> None:
    """2.8.2 forgets a session whose request was cut; the blob then starts over, and succeeds."""
    registry = docker_registry()
    with CuttingProxy(registry.address) as proxy:
        repository = opened(proxy.address)
        upload = repository.start(soon())
        upload.append(memoryview(DATA)[:CHUNK], soon())
        proxy.cut_after = [CHUNK + 300_000]  # the first chunk went through this very connection
        with pytest.raises(errors.SessionLost):
            upload.append(memoryview(DATA)[CHUNK:], soon())
        send(repository)
        read_back(repository)
        repository.close()


def test_a_single_put_cut_in_the_middle_is_sent_again(docker_registry: Start) -> None:
    registry = docker_registry()
    with CuttingProxy(registry.address) as proxy:
        repository = opened(proxy.address)
        proxy.cut_after = [500_000, 900_000]
        sendings: list[int] = []

        def chunks() -> Iterator[memoryview]:
            sendings.append(1)
            return (memoryview(DATA)[at : at + 300_000] for at in range(0, len(DATA), 300_000))

        repository.put(BLOB, chunks, soon())
        assert len(sendings) == 3
        read_back(repository)
        repository.close()


def test_passwords(docker_registry: Start, tmp_path: Path) -> None:
    # bcrypt of "word"
    (tmp_path / "htpasswd").write_text("me:$2b$05$abcdefghijklmnopqrstuuQDoL5Sa/TtfS/XN4AY/jgq.HBbO1BTu\n")
    registry = docker_registry(extra=f"auth:\n  htpasswd: {{realm: test, path: '{tmp_path}/htpasswd'}}\n")
    for settings in ({}, {"username": "me", "password": "wrong"}):
        repository = opened(registry.address, **settings)
        with pytest.raises(errors.Unauthenticated):
            repository.check_rights(soon())
        repository.close()
    repository = opened(registry.address, username="me", password="word")
    repository.check_rights(soon())
    send(repository)
    read_back(repository)
    repository.close()


def test_eight_threads_read_and_write(docker_registry: Start) -> None:
    registry = docker_registry()
    repository = opened(registry.address)
    send(repository)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(5):
                read_back(repository, number * 100_000 + step * 1000)
            blob = os.urandom(10_000)
            upload = repository.start(soon())
            upload.append(memoryview(blob), soon())
            upload.finish(Digest.of(blob), soon())
            assert repository.has(Digest.of(blob), soon()) == len(blob)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    repository.close()


def test_tls_with_http_2(docker_registry: Start, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_HTTP_TLS_CERTIFICATE", str(authority.certificate))
    monkeypatch.setenv("REGISTRY_HTTP_TLS_KEY", str(authority.key))
    registry = docker_registry()
    repository = opened(registry.address, ca_file=authority.certificate)
    send(repository)
    read_back(repository)
    other = Blob(Digest.of(DATA[:CHUNK]), CHUNK)
    repository.put(other, lambda: iter([memoryview(DATA)[:CHUNK]]), soon())
    assert repository.has(other.digest, soon()) == CHUNK
    with pytest.raises(errors.MissingManifest):
        repository.manifest("v1", soon())
    repository.close()
    log = registry.log.read_text()
    assert "HTTP/2.0" in log
    assert "HTTP/1.1" not in log
