"""Real registries and an image in them."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.system.command import Tonne
from tonne.testing.processes import DebianRegistry, free_port, stop, wait_for_port

MIB = 1024 * 1024


@pytest.fixture
def tool() -> Callable[[str], str]:
    """The path of a client or server; skips, saying so, where it was not built."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"NO {name}: ./dev interop builds it where there is a Go toolchain")
        return path

    return find


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of a few files, 30 MiB, in part compressible."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    source = random.Random(11)
    (folder / "a.bin").write_bytes(source.randbytes(20 * MIB + 5))
    (folder / "b.bin").write_bytes(bytes(range(256)) * (40 * 1024))
    (folder / "sub" / "config.json").write_text('{"a": 1}\n')
    return folder


@pytest.fixture
def tonne(tmp_path: Path) -> Tonne:
    return Tonne(tmp_path / "cache")


@pytest.fixture
def debian(docker_registry: Callable[..., DebianRegistry]) -> DebianRegistry:
    """Debian's docker-registry, distribution 2.8."""
    return docker_registry()


@pytest.fixture
def distribution(docker_registry: Callable[..., DebianRegistry], tool: Callable[[str], str]) -> DebianRegistry:
    """distribution 3."""
    return docker_registry(program=tool("registry"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a server by its arguments, ``{address}``, ``{host}`` and ``{port}`` filled in; gives the address."""
    with ExitStack() as running:

        def start(*arguments: str, **options: Any) -> str:
            port = free_port()
            address = f"127.0.0.1:{port}"
            words = [word.format(address=address, host="127.0.0.1", port=port) for word in arguments]
            log = running.enter_context((tmp_path / f"{Path(words[0]).name}-{port}.log").open("wb"))
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, **options)
            running.callback(stop, process)
            wait_for_port(address, process)
            return address

        yield start


def run(*words: object, **options: Any) -> str:
    """A client's run, which must succeed; its output."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=240, **options)
    assert done.returncode == 0, f"{words}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return str(done.stdout)
