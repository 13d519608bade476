"""Programs that tests run beside themselves."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

READY_WITHIN_S = 20.0
STOPPED_WITHIN_S = 10.0


def require_command(name: str) -> str:
    """The path of a program, or the test is skipped."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: ./dev test installs it")
    return path


def free_port() -> int:
    """A loopback TCP port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class DockerRegistry:
    """A registry on a loopback port, with its blobs in `folder`/data and its output in `folder`/log.

    Runs Debian's docker-registry, or any program that takes the same configuration (`distribution` 3
    does). `settings` are sections of that configuration, over the ones here. For one thread; a stopped
    one starts again on the same port with the same data.
    """

    def __init__(
        self, folder: Path, *, program: str = "docker-registry", settings: Mapping[str, object] | None = None
    ) -> None:
        self.program = require_command(program)
        self.data = folder / "data"
        self.log = folder / "log"
        self.port = free_port()
        self._configuration = folder / "config.yml"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = dict(settings or {})
        self.data.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        """Host and port, as they stand in a reference."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns when /v2/ answers. Another program may have taken the port meanwhile: then the next."""
        for _ in range(3):
            self._spawn()
            if self._becomes_ready():
                return
            self.kill()
            if "address already in use" not in self.last_words():
                break
            self.port = free_port()
        pytest.fail(f"{self.program} does not answer on {self.url}; its last words:\n{self.last_words()}")

    def stop(self) -> None:
        """Asks it to end, as an administrator would."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, *, crash: bool = False, down_s: float = 0.0) -> None:
        """Ends it and starts it again, with `down_s` seconds between."""
        if crash:
            self.kill()
        else:
            self.stop()
        time.sleep(down_s)
        self._spawn()
        if not self._becomes_ready():
            pytest.fail(f"{self.program} did not come back on {self.url}; its last words:\n{self.last_words()}")

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _spawn(self) -> None:
        sections: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.data)},
                "delete": {"enabled": True},
                # Off, or it empties the folder of unfinished uploads under a test's feet.
                "maintenance": {"uploadpurging": {"enabled": False}},
            },
            "http": {"addr": self.address},
        } | self._settings
        # JSON is YAML.
        self._configuration.write_text(json.dumps(sections))
        command = [self.program, "serve", str(self._configuration)]
        # Dies with the test run, even when that is killed.
        if (setpriv := shutil.which("setpriv")) is not None:
            command = [setpriv, "--pdeathsig", "KILL", *command]
        # No tracing: distribution 3 would send its spans to a collector.
        environment = os.environ | {"OTEL_TRACES_EXPORTER": "none"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def _becomes_ready(self) -> bool:
        assert self._process is not None
        deadline_s = time.monotonic() + READY_WITHIN_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
            try:
                connection.request("GET", "/v2/")
                # 401 is an answer as well: the settings may ask for credentials.
                if connection.getresponse().status in (200, 401):
                    # Whoever answered was this one, unless it ended meanwhile for lack of the port.
                    return self._process.poll() is None
            except OSError:
                time.sleep(0.02)
            finally:
                connection.close()
        return False


# What the fixture `docker_registry` gives: takes the keywords of DockerRegistry, and gives a running one.
StartRegistry = Callable[..., DockerRegistry]
