"""`tonne pack` against Debian's docker-registry and an OCI layout, interrupted in every way."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.system.command import Tonne
from tonne.clock import Deadline
from tonne.errors import Unreachable
from tonne.image.pack import PackOptions, PackResult, pack_folder
from tonne.model import parse_reference
from tonne.settings import CacheSettings, Settings
from tonne.source.compose import open_repository
from tonne.source.registry_upload import RegistryUpload
from tonne.testing.processes import DebianRegistry

pytestmark = [pytest.mark.system]

MIB = 1024 * 1024


def make_model(folder: Path, seed: int = 0, shards: int = 6, shard_bytes: int = 12 * MIB) -> Path:
    """Shards that do not pack, and small files."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(seed)
    for shard in range(shards):
        (folder / f"shard-{shard}").write_bytes(noise.bytes(shard_bytes))
    for place in range(30):
        (folder / f"part-{place}.json").write_text(json.dumps({"place": place, "seed": seed}))
    return folder


@pytest.fixture
def tonne(tmp_path: Path) -> Tonne:
    return Tonne(tmp_path / "cache")


def journals(tonne: Tonne) -> list[Path]:
    folder = tonne.cache / "pack"
    return sorted(folder.rglob("*")) if folder.exists() else []


def test_sessions_go_on_where_the_registry_acknowledged(
    tmp_path: Path, docker_registry: Callable[..., DebianRegistry]
) -> None:
    """Between two chunks of an upload: not a byte of the first is sent again."""
    source = make_model(tmp_path / "model", shards=4, shard_bytes=12 * MIB)
    address = docker_registry().address
    whole = pack(source, f"{address}/go/whole:v1", tmp_path)
    sent = 0

    def stop_at_the_third(size: int) -> None:
        nonlocal sent
        sent += size
        if sent > 2 * 16 * MIB:
            raise Unreachable("the network is gone", where=address)

    with pytest.raises(Unreachable):
        pack(source, f"{address}/go/on:v1", tmp_path, stop_at_the_third)
    again = pack(source, f"{address}/go/on:v1", tmp_path)
    assert again.resumed
    assert again.digest == whole.digest
    assert again.sent_bytes == whole.sent_bytes - 2 * 16 * MIB


def pack(source: Path, reference: str, folder: Path, before_append: Callable[[int], None] | None = None) -> PackResult:
    """Pack in this process; `before_append` is told the size of each chunk, and may raise."""
    settings = Settings(cache=CacheSettings(folder=folder / "cache"))
    parsed = parse_reference(reference)
    repository = open_repository(parsed, settings)
    try:
        with pytest.MonkeyPatch.context() as patched:
            if before_append is not None:
                append = RegistryUpload.append

                def told(self: RegistryUpload, chunk: memoryview, deadline: Deadline) -> None:
                    before_append(len(chunk))
                    append(self, chunk, deadline)

                patched.setattr(RegistryUpload, "append", told)
            return pack_folder(source, parsed, repository, repository, PackOptions(), settings)
    finally:
        repository.close()


@pytest.mark.slow
def test_ctrl_c_ends_it_soon_and_the_next_run_goes_on(
    tmp_path: Path, tonne: Tonne, docker_registry: Callable[..., DebianRegistry]
) -> None:
    source = make_model(tmp_path / "model", shards=30)
    registry = docker_registry()
    reference = f"{registry.address}/stop/it:v1"
    process = tonne.start("pack", source, reference, "--pack-size", "8MiB", "--json")
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s and stored_packs_of(registry) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    sent_s = time.monotonic()
    _, told = process.communicate(timeout=60)
    # A second, and as much for a loaded machine to notice.
    assert time.monotonic() - sent_s < 5
    assert process.returncode == 130
    assert json.loads(told.splitlines()[-1])["error"]["code"] == "interrupted"
    assert journals(tonne)
    done = tonne.json("pack", source, reference, "--pack-size", "8MiB")
    assert done["resumed"]
    assert done["sentBytes"] < done["new"]["storedBytes"]
    assert journals(tonne) == []


def stored_packs_of(registry: DebianRegistry) -> int:
    blobs = registry.data / "docker" / "registry" / "v2" / "blobs"
    return sum(path.stat().st_size > MIB for path in blobs.rglob("data")) if blobs.exists() else 0


def test_the_registry_restarts_in_the_middle(
    tmp_path: Path, tonne: Tonne, docker_registry: Callable[..., DebianRegistry]
) -> None:
    source = make_model(tmp_path / "model", shards=12)
    registry = docker_registry()
    reference = f"{registry.address}/restart/it:v1"
    process = tonne.start("pack", source, reference, "--pack-size", "8MiB", "--json")
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s and stored_packs_of(registry) < 2:
        time.sleep(0.02)
    registry.restart()
    out, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    direct = tonne.json("pack", source, f"{registry.address}/restart/direct:v1", "--pack-size", "8MiB")
    assert json.loads(out)["digest"] == direct["digest"]


def test_versions_share_what_is_equal(
    tmp_path: Path, tonne: Tonne, docker_registry: Callable[..., DebianRegistry]
) -> None:
    source = make_model(tmp_path / "model")
    registry = docker_registry()
    reference = f"{registry.address}/share/a:latest"
    first = tonne.json("pack", source, reference)
    assert tonne.json("pack", source, reference)["unchanged"]
    (source / "shard-2").write_bytes(np.random.default_rng(9).bytes(12 * MIB))
    second = tonne.json("pack", source, reference)
    assert second["new"]["contentBytes"] == 12 * MIB
    assert second["bases"] == [first["digest"]]
    mounted = tonne.json("pack", source, f"{registry.address}/share/b:v1", "--base", reference)
    assert mounted["new"]["frames"] == 0
    assert mounted["sentBytes"] < MIB
    layout = tonne.json("pack", source, f"oci:{tmp_path / 'layout'}:v1", "--base", f"{registry.address}/share/b:v1")
    assert layout["new"]["frames"] == 0
    anew = tonne.json("pack", source, f"{registry.address}/share/c:v1", "--no-base")
    assert anew["bases"] == []
    assert anew["new"]["contentBytes"] > 70 * MIB


def test_a_layout_in_the_folder_itself_is_left_out(tmp_path: Path, tonne: Tonne) -> None:
    source = make_model(tmp_path / "model")
    reference = f"oci:{source / 'images'}:v1"
    first = tonne.json("pack", source, reference)
    second = tonne.json("pack", source, reference)
    assert first["files"] == second["files"] == 36
    assert any("images" in line for line in second["warnings"])


def test_another_client_sees_an_ordinary_artifact(
    tmp_path: Path,
    tonne: Tonne,
    docker_registry: Callable[..., DebianRegistry],
    needs_program: Callable[[str], str],
) -> None:
    source = make_model(tmp_path / "model", shards=1)
    reference = f"{docker_registry().address}/plain/artifact:v1"
    packed = tonne.json("pack", source, reference, "--annotation", "org.example.kind=test")
    skopeo = needs_program("skopeo")
    seen = subprocess.run(
        [skopeo, "inspect", "--tls-verify=false", "--raw", f"docker://{reference}"], capture_output=True, check=True
    )
    manifest = json.loads(seen.stdout)
    assert manifest["artifactType"] == "application/vnd.tonne.image.v1"
    assert manifest["annotations"]["org.example.kind"] == "test"
    copied = subprocess.run(
        [skopeo, "copy", "--src-tls-verify=false", f"docker://{reference}", f"oci:{tmp_path / 'copy'}:v1"],
        capture_output=True,
        check=False,
    )
    assert copied.returncode == 0, copied.stderr
    again = tonne.json("pack", source, f"oci:{tmp_path / 'copy'}:v1", "--annotation", "org.example.kind=test")
    assert again["unchanged"]
    assert again["digest"] == packed["digest"]


def test_what_a_user_may_get_wrong(tmp_path: Path, tonne: Tonne) -> None:
    source = make_model(tmp_path / "model", shards=1)
    layout = f"oci:{tmp_path / 'layout'}:v1"
    for words, code in (
        ((tmp_path / "absent", layout), "missing.path"),
        ((source / "shard-0", layout), "usage"),
        ((source, layout, "--annotation", "novalue"), "settings.invalid"),
        ((source, layout, "--pack-size", "many"), "settings.invalid"),
        ((source, layout, "--pack-size", "1KiB"), "settings.invalid"),
        ((source, layout, "--base", layout, "--no-base"), "settings.invalid"),
        ((source, layout, "--base", layout), "missing.manifest"),
        ((source, "localhost:1/x:v1"), "unavailable.connect"),
        ((source, "nonsense"), "reference.invalid"),
    ):
        assert tonne.error("--attempts", "1", "pack", *words)["code"] == code, words


def test_source_date_epoch(tmp_path: Path, tonne: Tonne, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_model(tmp_path / "model", shards=1)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    packed = tonne.json("pack", source, f"oci:{tmp_path / 'layout'}:v1", "--reproducible")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000001")
    assert tonne.json("pack", source, f"oci:{tmp_path / 'other'}:v1", "--reproducible")["digest"] != packed["digest"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    assert tonne.error("pack", source, f"oci:{tmp_path / 'other'}:v1", "--reproducible")["code"] == "settings.invalid"


def test_without_a_cache_nothing_is_left(tmp_path: Path, tonne: Tonne) -> None:
    source = make_model(tmp_path / "model", shards=1)
    tonne.run("pack", source, f"oci:{tmp_path / 'layout'}:v1", "--no-cache")
    assert not tonne.cache.exists()
