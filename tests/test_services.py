"""The registry that tests run beside themselves."""

from __future__ import annotations

import urllib.request

import pytest

from tests.services import DockerRegistry, StartRegistry

pytestmark = pytest.mark.system


def answers(registry: DockerRegistry) -> bool:
    with urllib.request.urlopen(f"{registry.url}/v2/", timeout=5) as response:
        return bool(response.status == 200)


@pytest.mark.parametrize("crash", [False, True])
def test_comes_back_on_the_same_port(docker_registry: StartRegistry, crash: bool) -> None:
    registry = docker_registry()
    address, pid = registry.address, registry.pid
    assert answers(registry)
    registry.restart(crash=crash)
    assert registry.address == address
    assert registry.pid != pid
    assert answers(registry)


def test_each_has_its_own_storage(docker_registry: StartRegistry) -> None:
    one, two = docker_registry(), docker_registry()
    assert one.address != two.address
    assert one.data != two.data
    one.stop()
    assert answers(two)


def test_says_why_it_does_not_start(docker_registry: StartRegistry) -> None:
    with pytest.raises(pytest.fail.Exception, match="no-such-driver"):
        docker_registry(settings={"storage": {"no-such-driver": {}}})
