"""distribution 3 over an S3 server redirects reads to signed URLs: mount, pull and verify follow and renew them."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.command import Tonne
from tests.system.trees import differences, facts_of
from tonne.testing.processes import DebianRegistry

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BUCKET = "models"
KEY, SECRET = "access-key-of-a-test", "secret-key-of-a-test"

_STORAGE = """
storage:
  s3:
    region: us-east-1
    regionendpoint: http://{address}
    forcepathstyle: true
    bucket: {bucket}
    accesskey: {key}
    secretkey: {secret}
    secure: false
  delete: {{enabled: true}}
"""


def moto(server: Callable[..., str], tool: Callable[[str], str], folder: Path) -> str:
    """An S3 server that checks no signatures."""
    address = server(os.path.join(os.path.dirname(sys.executable), "moto_server"), "-H", "{host}", "-p", "{port}")
    request = urllib.request.Request(f"http://{address}/{BUCKET}", method="PUT")
    request.add_header("Authorization", f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request")
    with urllib.request.urlopen(request, timeout=20):
        pass
    return address


def versitygw(server: Callable[..., str], tool: Callable[[str], str], folder: Path) -> str:
    """An S3 server over a folder, which does check signatures."""
    (folder / BUCKET).mkdir(parents=True)
    environment = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    return server(tool("versitygw"), "--port", "{address}", "posix", str(folder), env=environment)


@pytest.mark.usefixtures("needs_fuse")
@pytest.mark.parametrize("store", [moto, versitygw])
def test_reads_follow_signed_urls(
    store: Callable[..., str],
    tmp_path: Path,
    model: Path,
    tonne: Tonne,
    server: Callable[..., str],
    tool: Callable[[str], str],
    docker_registry: Callable[..., DebianRegistry],
) -> None:
    address = store(server, tool, tmp_path / "objects")
    registry = docker_registry(
        program=tool("registry"), extra=_STORAGE.format(address=address, bucket=BUCKET, key=KEY, secret=SECRET)
    )
    reference = f"{registry.address}/team/model:v1"
    tonne.run("pack", model, reference)
    pack = tonne.json("inspect", reference)["packs"][0]["digest"]
    assert redirects_to(f"http://{registry.address}/v2/team/model/blobs/{pack}").startswith(f"http://{address}/")
    with Tonne(tmp_path / "cache-mount").mounted(reference, tmp_path / "mount"):
        assert differences(facts_of(model), facts_of(tmp_path / "mount")) == []
    other = Tonne(tmp_path / "cache-pull")
    other.run("pull", reference, tmp_path / "pulled")
    assert differences(facts_of(model), facts_of(tmp_path / "pulled")) == []
    other.run("verify", reference, "--packs")


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def redirects_to(url: str) -> str:
    """Where a GET is redirected to; empty when it is not."""
    opener = urllib.request.build_opener(_Stay)
    try:
        with opener.open(url, timeout=20):
            return ""
    except urllib.error.HTTPError as error:
        return str(error.headers.get("Location", ""))
