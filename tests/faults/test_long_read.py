"""A long read under credentials and redirects that live shortly, from a registry that is restarted in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tonne.clock import Deadline
from tonne.errors import ShortBody, TonneError, Unreachable
from tonne.image.opening import open_image
from tonne.image.view import View
from tonne.model import parse_reference
from tonne.settings import MIB, NetworkSettings, ReadSettings, Settings
from tonne.source.compose import compose_reader, open_repository
from tonne.testing.computed import ComputedImage
from tonne.testing.registry import Auth, FaultRegistry, Rules

STEP_BYTES = 2 * MIB
DOWN_S = 0.7  # how long the registry is away


@pytest.mark.parametrize(
    ("size_mib", "life_s", "seconds"),
    [
        pytest.param(48, 1.0, 7.0, id="48MiB"),
        pytest.param(1024, 2.0, 16.0, id="1GiB", marks=pytest.mark.slow),
    ],
)
def test_no_read_fails(size_mib: int, life_s: float, seconds: float) -> None:
    """Every read gives the right bytes, while tokens and redirects expire `seconds / life_s` times."""
    image = ComputedImage(size_mib * MIB, 4)
    rules = Rules(redirect=True, redirect_life_s=life_s, auth=Auth(token_life_s=life_s))
    settings = Settings(
        network=NetworkSettings(username="user", password="secret", request_bytes=4 * MIB),
        read=ReadSettings(read_ahead_bytes_max=16 * MIB),
    )
    events: list[TonneError] = []
    with FaultRegistry(rules) as registry:
        reference = parse_reference(registry.add_image("computed/long", "v1", image))
        source = compose_reader([open_repository(reference, settings)], settings, on_event=events.append)
        view = View(open_image(source, "v1", settings, Deadline.after(30)), settings)
        restart = threading.Thread(target=_restart, args=(registry,))
        try:
            began_s = time.monotonic()
            _read_all(view, image, seconds, halfway=restart.start)
            taken_s = time.monotonic() - began_s
        finally:
            view.close()
            source.close()
            restart.join()
        expiries = int(taken_s / life_s)
        tokens = registry.asked("token")
        denied = [record for record in registry.asked("store-get") if record.status == 403]
        redirects = [record for record in registry.asked("blob-get") if record.status == 307]
        assert expiries >= 6
        assert expiries // 2 <= len(tokens) <= 4 * expiries + 8  # renewed before they end, and not for each request
        assert denied, "no redirect expired under the reader"
        assert len(redirects) > len(denied)
        assert any(isinstance(event, Unreachable) for event in events), "nobody noticed the restart"
        # Told are the tries that the restart cost, connections that ended within a body too; nothing that expired.
        assert {type(event) for event in events} <= {Unreachable, ShortBody}
        assert registry.leaks == []
        assert any(record.scheme == "bearer" for record in registry.asked("blob-get"))


def _restart(registry: FaultRegistry) -> None:
    registry.stop()
    time.sleep(DOWN_S)
    registry.start()


def _read_all(view: View, image: ComputedImage, seconds: float, halfway: Callable[[], None]) -> None:
    """Every byte of every file in order, spread over at least `seconds`."""
    total = sum(image.file_bytes(file) for file in range(image.files))
    began_s, done, restarted = time.monotonic(), 0, False
    for number in range(image.files):
        file = view.open(view.resolve(image.path(number).encode(), Deadline.after(60)).inode, Deadline.after(60))
        for offset in range(0, image.file_bytes(number), STEP_BYTES):
            data = file.read(offset, STEP_BYTES, Deadline.after(60))
            assert data == image.expected(number, offset, STEP_BYTES)
            done += len(data)
            if not restarted and done > total / 2:
                restarted = True
                halfway()
            time.sleep(max(0.0, began_s + seconds * done / total - time.monotonic()))
    assert done == total
