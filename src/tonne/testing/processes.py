"""Real servers as child processes on loopback, for tests, demonstrations and benchmarks."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 20.0  # a loaded machine starts a registry in seconds
STOP_S = 20.0


def free_port() -> int:
    """A loopback port on which nobody listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(address: str, process: subprocess.Popen[Any]) -> None:
    """Wait until something listens at ``host:port``; `RuntimeError` when the process ends or time is over."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on {address}; exit status {process.poll()}")


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process that we started: SIGTERM, and SIGKILL if that does not help."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class DebianRegistry:
    """Debian's docker-registry (distribution 2.8.2) on a free loopback port, with its data in `folder`.

    A context manager; `restart` keeps port and data, as an operator's restart does.
    """

    def __init__(self, folder: Path, program: str | None = None, extra: str = "") -> None:
        """`program`: another build of the same registry; `extra`: further YAML at the top level of its config."""
        found = program or shutil.which("docker-registry", path="/usr/bin:/usr/local/bin:/bin")
        if found is None:
            raise FileNotFoundError("docker-registry is missing: apt-get install docker-registry")
        self._program = found
        self._extra = extra
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.yml"
        storage = f"storage:\n  filesystem: {{rootdirectory: '{self.data}'}}\n  delete: {{enabled: true}}\n"
        if "storage:" in self._extra:
            storage = ""
        config.write_text(
            f"version: 0.1\nlog: {{level: warn}}\n{storage}http: {{addr: '{self.address}'}}\n{self._extra}"
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "serve", str(config)], stdout=log, stderr=subprocess.STDOUT
            )
        wait_for_port(self.address, self._process)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)
            self._process = None

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def bytes_sent(self) -> int:
        """Body bytes of all its answers so far, from its access log (combined log format)."""
        time.sleep(0.05)  # a line is written after its answer
        lines = self.log.read_text(errors="replace").splitlines()
        return sum(int(found[1]) for line in lines if (found := re.search(r'HTTP/[0-9.]+" [0-9]{3} ([0-9]+) ', line)))

    def __enter__(self) -> DebianRegistry:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
