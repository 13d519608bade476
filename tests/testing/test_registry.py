"""The fault registry's rules, records and life; real clients work with it."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testing.client import Client, digest_of, raw, with_digest
from tonne.testing.faults import Fault, Status
from tonne.testing.registry import Auth, FaultRegistry, Rules

DATA = bytes(range(256)) * 400
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def registry() -> Iterator[FaultRegistry]:
    with FaultRegistry() as found:
        yield found


@pytest.fixture
def client(registry: FaultRegistry) -> Iterator[Client]:
    with Client(registry.address) as found:
        yield found


def upload(client: Client) -> str:
    return client("POST", "/v2/a/b/blobs/uploads/")["location"]


# --- rules


def test_the_largest_manifest(registry: FaultRegistry, client: Client) -> None:
    registry.rules.manifest_bytes_max = 100
    digest = registry.add_blob("a/b", b"{}")
    document = {"schemaVersion": 2, "config": {"mediaType": "a", "digest": digest, "size": 2}, "layers": []}
    data = json.dumps(document).encode()
    assert len(data) > 100
    assert client("PUT", "/v2/a/b/manifests/v1", data, Content_Type=MANIFEST_TYPE).status == 413
    registry.rules.manifest_bytes_max = len(data)
    assert client("PUT", "/v2/a/b/manifests/v1", data, Content_Type=MANIFEST_TYPE).status == 201


def test_the_largest_blob_by_patch_put_and_stream(registry: FaultRegistry, client: Client) -> None:
    registry.rules.blob_bytes_max = 1000
    answer = client("PATCH", upload(client), DATA[:1000], Content_Range="0-999")
    assert client("PATCH", answer["location"], DATA[:1], Content_Range="1000-1000").status == 413
    assert client("PUT", with_digest(upload(client), digest_of(DATA)), DATA).status == 413
    pieces = (DATA[start : start + 300] for start in range(0, 3000, 300))
    assert client("PATCH", upload(client), pieces).status == 413


def test_chunks_that_are_too_small_or_too_large(registry: FaultRegistry, client: Client) -> None:
    registry.rules.chunk_bytes_min, registry.rules.chunk_bytes_max = 100, 1000
    start = client("POST", "/v2/a/b/blobs/uploads/")
    assert start["oci-chunk-min-length"] == "100"
    assert client("PATCH", start["location"], DATA[:1001], Content_Range="0-1000").status == 413
    answer = client("PATCH", start["location"], DATA[:1000], Content_Range="0-999")
    answer = client("PATCH", answer["location"], DATA[1000:1050], Content_Range="1000-1049")
    assert answer.status == 202
    assert client("PATCH", answer["location"], DATA[1050:1150], Content_Range="1050-1149").status == 400
    assert client("PUT", with_digest(answer["location"], digest_of(DATA[:1050]))).status == 201


def test_one_put_a_blob(registry: FaultRegistry, client: Client) -> None:
    registry.rules.one_put_only = True
    assert client("PATCH", upload(client), DATA).status == 405
    assert client("PUT", with_digest(upload(client), digest_of(DATA)), DATA).status == 201


def test_content_range_must_have_the_specifications_form_and_the_bodys_length(client: Client) -> None:
    assert client("PATCH", upload(client), DATA[:10], Content_Range="bytes 0-9/*").status == 416
    assert client("PATCH", upload(client), DATA[:10], Content_Range="0-10").status == 400


def test_locations_change_and_old_ones_may_be_refused(registry: FaultRegistry, client: Client) -> None:
    first = upload(client)
    second = client("PATCH", first, DATA[:10], Content_Range="0-9")["location"]
    assert first != second
    assert client("GET", first).status == 204
    registry.rules.fresh_location_only = True
    assert client("GET", second).status == 404
    registry.rules.absolute_locations = True
    assert upload(client).startswith(f"http://{registry.address}/v2/a/b/blobs/uploads/")
    bare = upload(client).partition("?")[0]
    assert client("GET", bare).status == 404


def test_what_can_be_switched_off(registry: FaultRegistry, client: Client) -> None:
    rules = registry.rules
    rules.can_mount = rules.can_delete = rules.can_list_referrers = rules.ranges = False
    digest = registry.add_blob("a/b", DATA)
    assert client("POST", f"/v2/c/d/blobs/uploads/?mount={digest}&from=a/b").status == 202
    assert client("DELETE", f"/v2/a/b/blobs/{digest}").status == 405
    assert client("DELETE", "/v2/a/b/manifests/v1").status == 405
    assert client("GET", f"/v2/a/b/referrers/{digest}").status == 404
    answer = client("GET", f"/v2/a/b/blobs/{digest}", Range="bytes=0-9")
    assert (answer.status, answer.body) == (200, DATA)


def test_pages_of_tags_are_no_longer_than_the_rule(registry: FaultRegistry, client: Client) -> None:
    registry.rules.tags_page_max = 2
    for tag in ("a", "b", "c"):
        registry.add_manifest("a/b", tag, b"{}", MANIFEST_TYPE)
    answer = client("GET", "/v2/a/b/tags/list?n=100")
    assert json.loads(answer.body)["tags"] == ["a", "b"]
    assert answer["link"] == '</v2/a/b/tags/list?n=2&last=b>; rel="next"'


def test_another_digest_algorithm(registry: FaultRegistry, client: Client) -> None:
    import hashlib

    digest = f"sha512:{hashlib.sha512(DATA).hexdigest()}"
    assert client("PUT", with_digest(upload(client), digest), DATA).status == 201
    assert client("GET", f"/v2/a/b/blobs/{digest}").body == DATA
    assert client("PUT", with_digest(upload(client), "sha256:short"), DATA).status == 400


# --- records and contents


def test_it_remembers_what_it_was_asked(registry: FaultRegistry, client: Client) -> None:
    digest = client.push_blob("a/b", DATA)
    client("GET", f"/v2/a/b/blobs/{digest}", Range="bytes=100-199")
    client("GET", f"/v2/a/b/blobs/{digest}")
    client("HEAD", f"/v2/c/d/blobs/{digest}")
    found = [(record.kind, record.status, record.range, record.sent_bytes) for record in registry.requests[2:]]
    assert found[:2] == [("blob-get", 206, (100, 200), 100), ("blob-get", 200, None, len(DATA))]
    assert found[2] == ("blob-head", 404, None, 0)
    assert registry.asked("upload-finish")[0].received_bytes == len(DATA)
    assert [record.subject for record in registry.asked(repository="c/d")] == [digest]
    assert registry.asked("blob-get", subject="sha256:00") == []
    assert registry.bytes_sent == 100 + len(DATA)
    stats = json.loads(client("GET", "/testing/stats").body)
    assert stats == {"requests": 5, "bytes_sent": 100 + len(DATA)}
    registry.forget_requests()
    assert registry.requests == []


def test_damage_at_rest_and_lost_blobs(registry: FaultRegistry, client: Client) -> None:
    digest = registry.add_blob("a/b", DATA)
    registry.damage(digest, 500, bit=7)
    body = client("GET", f"/v2/a/b/blobs/{digest}", Range="bytes=490-509").body
    assert body[:10] + body[11:] == DATA[490:500] + DATA[501:510]
    assert body[10] == DATA[500] ^ 128
    assert registry.forget(digest)
    assert client("GET", f"/v2/a/b/blobs/{digest}").status == 404
    assert not registry.forget(digest)
    with pytest.raises(ValueError):
        registry.damage(registry.add_blob("a/b", b"1"), 1)


# --- life


def test_a_restart_keeps_port_and_contents_and_uploads_as_the_rules_say(
    registry: FaultRegistry, client: Client
) -> None:
    digest = client.push_blob("a/b", DATA)
    address = registry.address
    for keep, status in ((True, 204), (False, 404)):
        registry.rules.keep_uploads_on_restart = keep
        location = client("PATCH", upload(client), DATA[:10], Content_Range="0-9")["location"]
        registry.stop()
        with pytest.raises(OSError):
            client("GET", "/v2/")
        client.close()
        registry.start()
        assert registry.address == address
        assert client("GET", location).status == status
    assert client("GET", f"/v2/a/b/blobs/{digest}").body == DATA


def test_many_clients_at_once(registry: FaultRegistry) -> None:
    digest = registry.add_blob("a/b", DATA)
    wrong: list[int] = []

    def read(number: int) -> None:
        with Client(registry.address) as client:
            for start in range(number, len(DATA) - 1000, 7919):
                body = client("GET", f"/v2/a/b/blobs/{digest}", Range=f"bytes={start}-{start + 999}").body
                if body != DATA[start : start + 1000]:
                    wrong.append(start)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(registry.asked("blob-get")) > 50


def test_a_defect_of_its_own_is_not_hidden() -> None:
    class Broken(Status):
        def before(self, exchange: object) -> None:  # type: ignore[override]
            raise RuntimeError("a defect")

    registry = FaultRegistry()
    registry.start()
    registry.faults.add(Fault("ping", Broken(200)))
    with Client(registry.address) as client:
        assert client("GET", "/v2/").status == 500
    with pytest.raises(AssertionError, match="a defect"):
        registry.stop()
    registry.stop()


def test_latency_and_rate(registry: FaultRegistry, client: Client) -> None:
    import time

    digest = registry.add_blob("a/b", DATA)
    for change, path in (("latency_s", "/v2/"), ("bytes_per_s", f"/v2/a/b/blobs/{digest}")):
        setattr(registry.rules, change, {"latency_s": 0.1, "bytes_per_s": len(DATA) * 10}[change])
        began_s = time.monotonic()
        assert client("GET", path).status == 200
        assert time.monotonic() - began_s >= 0.09


# --- real clients


def layout(folder: Path, needs_program: Callable[[str], str]) -> tuple[str, dict[str, bytes]]:
    """skopeo's path, and an OCI layout of one image with two layers in `folder`; its blobs by digest."""
    skopeo = needs_program("skopeo")
    blobs = [DATA, b"second layer" * 1000, b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers"}}']
    items = [{"mediaType": "", "digest": digest_of(data), "size": len(data)} for data in blobs]
    for item in items:
        item["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
    items[2]["mediaType"] = "application/vnd.oci.image.config.v1+json"
    document = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": items[2], "layers": items[:2]}
    blobs.append(json.dumps(document).encode())
    found = {digest_of(data): data for data in blobs}
    (folder / "blobs" / "sha256").mkdir(parents=True)
    for digest, data in found.items():
        (folder / "blobs" / "sha256" / digest[7:]).write_bytes(data)
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    entry = {
        "mediaType": MANIFEST_TYPE,
        "digest": digest_of(blobs[-1]),
        "size": len(blobs[-1]),
        "annotations": {"org.opencontainers.image.ref.name": "v1"},
    }
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return skopeo, found


RULES = {
    "plain": Rules(),
    "bearer": Rules(auth=Auth(token_life_s=30)),
    "basic": Rules(auth=Auth(scheme="basic")),
    "redirect": Rules(redirect=True),
    "bearer-redirect": Rules(auth=Auth(), redirect=True),
    "absolute": Rules(absolute_locations=True, fresh_location_only=True),
}


@pytest.mark.system
@pytest.mark.parametrize("name", RULES)
def test_skopeo_pushes_and_pulls(tmp_path: Path, needs_program: Callable[[str], str], name: str) -> None:
    skopeo, blobs = layout(tmp_path / "in", needs_program)
    with FaultRegistry(RULES[name]) as registry:
        place = f"docker://{registry.address}/sk/o-peo:v1"
        common = [skopeo, "copy", "--insecure-policy", "--preserve-digests"]
        to = ["--dest-tls-verify=false", "--dest-creds=user:secret", f"oci:{tmp_path}/in:v1", place]
        back = ["--src-tls-verify=false", "--src-creds=user:secret", place, f"oci:{tmp_path}/out:v1"]
        for arguments in (to, back):
            done = subprocess.run([*common, *arguments], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        pushed = registry.contents.digests("sk/o-peo") | set(registry.contents.manifests("sk/o-peo"))
        assert pushed == set(blobs)
        assert registry.leaks == []
        kinds = {record.kind for record in registry.requests}
        assert {"manifest-put", "manifest-get", "upload-start", "upload-finish", "blob-get"} <= kinds
        assert ("token" in kinds) == name.startswith("bearer")
        assert ("store-get" in kinds) == name.endswith("redirect")
    folder = tmp_path / "out" / "blobs" / "sha256"
    assert {f"sha256:{path.name}": path.read_bytes() for path in folder.iterdir()} == blobs


@pytest.mark.system
def test_skopeo_reports_an_injected_fault(tmp_path: Path, needs_program: Callable[[str], str]) -> None:
    skopeo, _ = layout(tmp_path / "in", needs_program)
    with FaultRegistry() as registry:
        registry.faults.add(Fault("manifest-put", Status(403, code="DENIED"), times=None))
        place = f"docker://{registry.address}/sk/opeo:v1"
        command = [skopeo, "copy", "--insecure-policy", "--dest-tls-verify=false", f"oci:{tmp_path}/in:v1", place]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode != 0
        assert registry.faults.fired


def test_a_client_that_tries_tls_first_is_told_at_once(registry: FaultRegistry) -> None:
    hello = bytes([0x16, 3, 1, 2, 0, 1]) + bytes(510)
    assert raw(registry.address, hello).startswith(b"HTTP/1.1 400 ")
    assert registry.requests == []


def test_over_tls(tmp_path: Path, needs_program: Callable[[str], str]) -> None:
    import http.client

    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    command = [needs_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with FaultRegistry(tls=server) as registry:
        digest = registry.add_blob("a/b", DATA)
        host, _, port = registry.address.rpartition(":")
        context = ssl.create_default_context(cafile=str(tmp_path / "cert"))
        connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
        connection.request("GET", f"/v2/a/b/blobs/{digest}")
        assert connection.getresponse().read() == DATA
        connection.close()
        # A client that does not trust it, and one that speaks no TLS, end by themselves.
        other = http.client.HTTPSConnection(host, int(port), timeout=20, context=ssl.create_default_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            other.request("GET", "/v2/")
        with Client(registry.address) as plain, pytest.raises((http.client.HTTPException, OSError)):
            plain("GET", "/v2/")
