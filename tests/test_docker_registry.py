"""The registry that tests run beside themselves."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

import pytest

from tonne.testing.processes import DebianRegistry

pytestmark = pytest.mark.system


def answers(registry: DebianRegistry) -> bool:
    with urllib.request.urlopen(f"http://{registry.address}/v2/", timeout=5) as response:
        return bool(response.status == 200)


def test_comes_back_on_the_same_port(docker_registry: Callable[..., DebianRegistry]) -> None:
    registry = docker_registry()
    address, pid = registry.address, registry.pid
    assert answers(registry)
    registry.restart()
    assert registry.address == address
    assert registry.pid != pid
    assert answers(registry)


def test_each_has_its_own_storage(docker_registry: Callable[..., DebianRegistry]) -> None:
    one, two = docker_registry(), docker_registry()
    assert one.address != two.address
    assert one.data != two.data
    one.stop()
    assert answers(two)
