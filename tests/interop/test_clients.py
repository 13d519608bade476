"""Other people's clients carry our images between registries and layouts, and every copy mounts and verifies."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.interop.conftest import run
from tests.system.command import Tonne
from tests.system.trees import differences, facts_of
from tonne.testing.processes import DebianRegistry, stop

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

NAME = "team/model"


def check_copy(tonne: Tonne, reference: str, digest: str, source: Path, point: Path) -> None:
    """The copy has the digest, verifies to the registry's blobs, and shows the source's files when mounted."""
    assert tonne.json("inspect", reference)["digest"] == digest
    tonne.run("verify", reference, "--packs")
    with tonne.mounted(reference, point):
        assert differences(facts_of(source), facts_of(point)) == []


Copy = Callable[[str, str], None]


def skopeo_copy(program: str) -> Copy:
    def name(place: str) -> str:
        return place if place.startswith("oci:") else f"docker://{place}"

    def copy(source: str, target: str) -> None:
        run(program, "copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false", name(source), name(target))

    return copy


def crane_copy(program: str) -> Copy:
    def copy(source: str, target: str) -> None:
        if target.startswith("oci:"):
            run(program, "pull", "--insecure", "--format=oci", "--annotate-ref", source, target[4:].rpartition(":")[0])
        elif source.startswith("oci:"):
            run(program, "push", "--insecure", source[4:].rpartition(":")[0], target)
        else:
            run(program, "copy", "--insecure", source, target)

    return copy


def oras_copy(program: str) -> Copy:
    def copy(source: str, target: str) -> None:
        words = [program, "copy", "--no-tty"]
        words.append("--from-oci-layout" if source.startswith("oci:") else "--from-plain-http")
        words.append("--to-oci-layout" if target.startswith("oci:") else "--to-plain-http")
        run(*words, source.removeprefix("oci:"), target.removeprefix("oci:"))

    return copy


CLIENTS = {"skopeo": skopeo_copy, "crane": crane_copy, "oras": oras_copy}


@pytest.mark.usefixtures("needs_fuse")
@pytest.mark.parametrize("client", CLIENTS)
def test_copies_between_registries_and_a_layout(
    client: str,
    tmp_path: Path,
    model: Path,
    tonne: Tonne,
    tool: Callable[[str], str],
    debian: DebianRegistry,
    distribution: DebianRegistry,
) -> None:
    copy = CLIENTS[client](tool(client))
    layout = f"oci:{tmp_path / 'layout'}:v1"
    places = [
        f"{debian.address}/{NAME}:v1",
        f"{distribution.address}/{NAME}:v1",
        layout,
        f"{debian.address}/back/again:v1",
    ]
    digest = tonne.json("pack", model, places[0])["digest"]
    for number, (source, target) in enumerate(pairwise(places)):
        copy(source, target)
        # A cache of its own, so that every byte of the copy is read from the copy.
        where = target if client != "crane" or not target.startswith("oci:") else f"{target[:-3]}@{digest}"
        check_copy(Tonne(tmp_path / f"cache-{number}"), where, digest, model, tmp_path / f"mount-{number}")


def test_skopeo_alone_carries_a_layout_to_the_registry(
    tmp_path: Path, model: Path, tonne: Tonne, tool: Callable[[str], str], debian: DebianRegistry
) -> None:
    layout = f"oci:{tmp_path / 'layout'}:v1"
    digest = tonne.json("pack", model, layout)["digest"]
    skopeo_copy(tool("skopeo"))(layout, f"{debian.address}/{NAME}:v1")
    assert tonne.json("inspect", f"{debian.address}/{NAME}:v1")["digest"] == digest
    shown = json.loads(
        run(tool("skopeo"), "inspect", "--raw", "--tls-verify=false", f"docker://{debian.address}/{NAME}:v1")
    )
    assert shown["artifactType"] == "application/vnd.tonne.image.v1"


def test_oras_shows_our_artifact_type(
    model: Path, tonne: Tonne, tool: Callable[[str], str], distribution: DebianRegistry
) -> None:
    reference = f"{distribution.address}/{NAME}:v1"
    digest = tonne.json("pack", model, reference)["digest"]
    descriptor = json.loads(run(tool("oras"), "manifest", "fetch", "--plain-http", "--descriptor", reference))
    assert descriptor["digest"] == digest
    shown = json.loads(run(tool("oras"), "manifest", "fetch", "--plain-http", reference))
    assert shown["artifactType"] == "application/vnd.tonne.image.v1"


def test_containerd_stores_and_returns_our_artifact(
    tmp_path: Path, model: Path, tonne: Tonne, tool: Callable[[str], str], distribution: DebianRegistry
) -> None:
    reference = f"{distribution.address}/{NAME}:v1"
    packed = tonne.json("pack", model, reference)
    with Containerd(tmp_path / "containerd", tool("containerd"), tool("ctr")) as containerd:
        containerd.ctr("content", "fetch", "--plain-http", reference)
        manifest = containerd.ctr("content", "get", packed["digest"])
        for layer in json.loads(manifest)["layers"]:
            assert layer["digest"] in containerd.ctr("content", "ls", "-q").split()
        containerd.ctr("images", "tag", reference, f"{distribution.address}/{NAME}:from-containerd")
        containerd.ctr("images", "push", "--plain-http", f"{distribution.address}/{NAME}:from-containerd")
    again = Tonne(tmp_path / "cache-again")
    assert again.json("inspect", f"{distribution.address}/{NAME}:from-containerd")["digest"] == packed["digest"]
    again.run("verify", f"{distribution.address}/{NAME}:from-containerd")


class Containerd:
    """A containerd with state of its own, without the CRI plugin."""

    def __init__(self, folder: Path, program: str, ctr: str) -> None:
        self._folder = folder
        self._program = program
        self._ctr = ctr
        self._socket = folder / "containerd.sock"

    def __enter__(self) -> Containerd:
        self._folder.mkdir()
        config = self._folder / "config.toml"
        config.write_text(
            f"version = 3\nroot = '{self._folder / 'root'}'\nstate = '{self._folder / 'state'}'\n"
            "disabled_plugins = ['io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime', "
            "'io.containerd.grpc.v1.cri']\n"
            f"[grpc]\naddress = '{self._socket}'\n[ttrpc]\naddress = '{self._folder / 'ttrpc.sock'}'\n"
        )
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [self._program, "--config", str(config)], stdout=self._log, stderr=subprocess.STDOUT
        )
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if subprocess.run([self._ctr, "-a", str(self._socket), "version"], capture_output=True).returncode == 0:
                return self
            time.sleep(0.1)
        self.__exit__()
        raise RuntimeError((self._folder / "log").read_text()[-2000:])

    def __exit__(self, *_: object) -> None:
        stop(self._process)
        self._log.close()

    def ctr(self, *words: str) -> str:
        return run(self._ctr, "-a", self._socket, *words)
