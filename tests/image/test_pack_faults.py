"""Packing to a registry that fails in every way that it can fail while it is written to: the image is the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.image.packing import PACK_BYTES
from tonne.clock import Deadline
from tonne.errors import TonneError
from tonne.image.pack import PackOptions, PackResult, pack_folder
from tonne.model import Digest, parse_reference
from tonne.model.frame import FRAME_BYTES
from tonne.settings import CacheSettings, NetworkSettings, PackSettings, Settings
from tonne.source.compose import compose_reader, open_repository
from tonne.source.quirks import facts_of
from tonne.source.registry import RegistryRepository
from tonne.source.seam import Document
from tonne.testing.faults import Fault
from tonne.testing.registry import FaultRegistry, Rules
from tonne.testing.registry_actions import (
    AckLess,
    AckNothing,
    Action,
    DropBody,
    Forget,
    HtmlBody,
    LostSession,
    PatchAnswers201,
    Refuse,
    Reset,
    Stall,
    Status,
)

CHUNK_BYTES = 16 * 1024 * 1024

FAULTS: list[tuple[str, Action, int]] = [
    ("upload-start", Status(503), 2),
    ("upload-start", Status(500), 3),
    ("upload-start", Refuse(), 3),
    ("upload-patch", Status(500), 1),
    ("upload-patch", Status(503, retry_after=0.01), 2),
    ("upload-patch", Status(429, retry_after=0.01), 2),
    ("upload-patch", Reset(), 2),
    ("upload-patch", Stall(1.0), 2),
    ("upload-patch", LostSession(), 2),
    ("upload-patch", AckLess(1000), 1),
    ("upload-patch", AckNothing(), 2),
    ("upload-patch", DropBody(), 1),
    ("upload-patch", PatchAnswers201(), 1),
    ("upload-finish", Status(500), 1),
    ("upload-finish", Reset(), 2),
    ("upload-finish", LostSession(), 1),
    ("blob-head", Status(500), 1),
    ("manifest-put", Status(500), 1),
    ("manifest-put", Reset(), 1),
    ("manifest-put", Forget(), 1),
    ("manifest-get", Status(503), 1),
    ("manifest-get", HtmlBody(), 2),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lanes of some 24 and 12 MiB, in packs of more than a chunk."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "weights").write_bytes(np.random.default_rng(3).bytes(10 * FRAME_BYTES + 5))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def registry() -> Iterator[FaultRegistry]:
    with FaultRegistry() as running:
        yield running


def pack(registry: FaultRegistry, model: Path, folder: Path, attempts: int = 6) -> PackResult:
    network = NetworkSettings(
        attempts=attempts, backoff_first_s=0.01, backoff_max_s=0.05, stall_timeout_s=0.3, connect_timeout_s=2.0
    )
    settings = replace(
        Settings(), network=network, cache=CacheSettings(folder=folder / "cache"), pack=PackSettings(threads=2)
    )
    reference = parse_reference(f"{registry.address}/fault/model:v1")
    repository = open_repository(reference, settings)
    try:
        reader = compose_reader([repository], settings)
        options = PackOptions(pack_bytes=3 * PACK_BYTES)
        return pack_folder(model, reference, repository, reader, options, settings)
    finally:
        repository.close()


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> PackResult:
    with FaultRegistry() as running:
        return pack(running, model, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("kind", "action", "nth"), FAULTS, ids=str)
def test_a_fault_does_not_show(
    registry: FaultRegistry, model: Path, tmp_path: Path, expected: PackResult, kind: str, action: Action, nth: int
) -> None:
    registry.faults.add(Fault(kind, action, nth=nth))
    result = pack(registry, model, tmp_path)
    # A stall is on record once it is over, which may be after us.
    end_s = time.monotonic() + 10
    while not registry.faults.fired and time.monotonic() < end_s:
        time.sleep(0.02)
    assert registry.faults.fired, "the fault had no occasion"
    assert result.digest == expected.digest
    assert not (tmp_path / "cache" / "pack").exists()


@pytest.mark.parametrize(("kind", "action"), [("upload-patch", Status(500)), ("manifest-put", Status(500))], ids=str)
def test_a_fault_that_stays_is_an_error_and_the_next_run_goes_on(
    registry: FaultRegistry, model: Path, tmp_path: Path, expected: PackResult, kind: str, action: Action
) -> None:
    registry.faults.add(Fault(kind, action, nth=2 if kind == "upload-patch" else 1, times=None))
    with pytest.raises(TonneError) as raised:
        pack(registry, model, tmp_path, attempts=2)
    assert raised.value.exit_status == 5
    registry.faults.clear()
    result = pack(registry, model, tmp_path)
    assert result.resumed
    assert result.digest == expected.digest
    assert result.sent_bytes <= expected.sent_bytes - (CHUNK_BYTES if kind == "upload-patch" else 40 * 1024 * 1024)


def test_one_put_a_blob(model: Path, tmp_path: Path, expected: PackResult) -> None:
    """A registry that takes no chunks, which its host's name would tell; here the sink's facts say so."""
    with FaultRegistry(Rules()) as running, pytest.MonkeyPatch.context() as patched:
        facts = replace(facts_of("registry.example.com"), chunked=False)
        patched.setattr("tonne.source.registry.facts_of", lambda host: facts)
        running.faults.add(Fault("upload-finish", Reset(), nth=1))
        assert pack(running, model, tmp_path).digest == expected.digest
        assert not running.asked("upload-patch")


def test_a_registry_that_says_it_has_what_it_then_misses(
    registry: FaultRegistry, model: Path, tmp_path: Path, expected: PackResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """distribution with a cache of descriptors that is behind: HEAD finds the blob, the manifest does not."""
    sizes: dict[str, int] = {}
    has, put_manifest = RegistryRepository.has, RegistryRepository.put_manifest

    def stale(self: RegistryRepository, digest: Digest, deadline: Deadline) -> int | None:
        return sizes[str(digest)] if registry.faults.fired else has(self, digest, deadline)

    def noting(self: RegistryRepository, name: str, document: Document, deadline: Deadline) -> None:
        manifest = json.loads(document.data)
        sizes.update({item["digest"]: item["size"] for item in (manifest["config"], *manifest["layers"])})
        put_manifest(self, name, document, deadline)

    monkeypatch.setattr(RegistryRepository, "has", stale)
    monkeypatch.setattr(RegistryRepository, "put_manifest", noting)
    registry.faults.add(Fault("manifest-put", Forget()))
    assert pack(registry, model, tmp_path).digest == expected.digest
    assert registry.faults.fired
    assert len(registry.asked("manifest-put")) == 2
