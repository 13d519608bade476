"""Options and fixtures for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import hypothesis.configuration
import pytest

from tests.leftovers import MARK, Before, left_behind
from tonne.testing.processes import DebianRegistry

# A slow machine is not a failure, and the time of one example says nothing there.
hypothesis.settings.register_profile("tonne", deadline=None)
hypothesis.settings.load_profile("tonne")
hypothesis.configuration.set_hypothesis_home_dir(Path(__file__).parent.parent / ".cache" / "hypothesis")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-faults",
        action="store_true",
        help="inject every fault at every kind of request of every command, instead of pairs (takes 15 minutes)",
    )
    parser.addoption(
        "--full-size",
        action="store_true",
        help="hard trees of 100,000 files and 5 GiB, and 20 kills of each command (takes an hour and 30 GiB of disk)",
    )


@pytest.fixture(scope="session")
def all_faults(request: pytest.FixtureRequest) -> bool:
    """Whether to test the full product of faults and requests."""
    return bool(request.config.getoption("--all-faults"))


@pytest.fixture(autouse=True)
def nothing_left_behind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Fails a test that leaves a process or a mount, and clears it away.

    First among the fixtures of a test, so last to be torn down: what the others stop is gone by then.
    """
    mark = f"{os.getpid()}:{request.node.nodeid}"
    monkeypatch.setenv(MARK, mark)
    folder = tmp_path_factory.getbasetemp()
    before = Before.now(folder)
    yield
    if leftovers := left_behind(mark, before, folder):
        leftovers.remove()
        pytest.fail(f"the test left behind:\n{leftovers}")


@pytest.fixture(scope="session")
def needs_program() -> Callable[[str], str]:
    """Gives the path of a program, or skips the test where that is not installed."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"NO {name}: ./dev test installs it")
        return path

    return find


@pytest.fixture
def docker_registry(tmp_path: Path, needs_program: Callable[[str], str]) -> Iterator[Callable[..., DebianRegistry]]:
    """Starts a docker-registry with storage of its own at each call; all end with the test.

    Takes the keywords of `DebianRegistry`, which is a context manager: a module whose tests share one
    makes a fixture of that scope out of it.
    """
    with ExitStack() as running:

        def start(*, program: str = "docker-registry", extra: str = "") -> DebianRegistry:
            folder = tmp_path / f"registry-{len(list(tmp_path.glob('registry-*')))}"
            return running.enter_context(DebianRegistry(folder, needs_program(program), extra))

        yield start


@pytest.fixture(scope="session")
def needs_fuse() -> None:
    """Skips a test that mounts by FUSE where that cannot work, and says what is missing."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("NO FUSE: /dev/fuse is missing (in a container: run it with --device /dev/fuse)")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        pytest.skip(f"NO FUSE: /dev/fuse cannot be opened: {error.strerror}")
    pytest.importorskip(
        "pyfuse3", reason="NO FUSE: pyfuse3 is not installed: ./dev setup installs it", exc_type=ImportError
    )
