"""A part of OCI distribution-spec v1.1, kept by the fault registry as by Debian's docker-registry."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testing.client import Client, digest_of, with_digest
from tonne.testing.processes import DebianRegistry
from tonne.testing.registry import FaultRegistry, Rules

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = b"{}"
LAYER = bytes(range(256)) * 40


@pytest.fixture(scope="module", autouse=True)
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One registry of each kind for all tests of the module."""
    with contextlib.ExitStack() as running:
        found = {
            "memory": running.enter_context(FaultRegistry()).address,
            "folder": running.enter_context(FaultRegistry(folder=tmp_path_factory.mktemp("fault"))).address,
            "redirecting": running.enter_context(FaultRegistry(Rules(redirect=True))).address,
        }
        if shutil.which("docker-registry"):
            found["docker"] = running.enter_context(DebianRegistry(tmp_path_factory.mktemp("docker"))).address
        yield found


@pytest.fixture(params=["docker", "memory", "folder", "redirecting"])
def client(request: pytest.FixtureRequest, addresses: dict[str, str]) -> Iterator[Client]:
    """Talks to each registry in turn, and follows one redirect as real clients do."""
    if request.param not in addresses:
        pytest.skip("NO docker-registry: ./dev test installs it")
    with Following(addresses[request.param]) as found:
        yield found


class Following(Client):
    def __call__(self, method: str, target: str, *arguments: Any, **more: Any) -> Any:
        answer = super().__call__(method, target, *arguments, **more)
        if answer.status == 307:
            return super().__call__(method, answer["location"], *arguments, **more)
        return answer


def errors(body: bytes) -> list[str]:
    return [item["code"] for item in json.loads(body)["errors"]]


def manifest(*layers: bytes, **more: Any) -> bytes:
    def descriptor(data: bytes, kind: str) -> dict[str, Any]:
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor(CONFIG, "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor(layer, "application/vnd.oci.image.layer.v1.tar") for layer in layers],
        **more,
    }
    return json.dumps(document).encode()


def push(client: Client, repository: str, tag: str, **more: Any) -> str:
    for data in (CONFIG, LAYER):
        client.push_blob(repository, data)
    data = manifest(LAYER, **more)
    put = client("PUT", f"/v2/{repository}/manifests/{tag}", data, Content_Type=OCI_MANIFEST)
    assert put.status == 201, put
    assert put["docker-content-digest"] == digest_of(data)
    return digest_of(data)


# --- blobs


def test_the_ping(client: Client) -> None:
    assert client("GET", "/v2/").status == 200


def test_a_blob_in_one_put(client: Client) -> None:
    digest = client.push_blob("conf/one", LAYER)
    head = client("HEAD", f"/v2/conf/one/blobs/{digest}")
    assert (head.status, head["content-length"], head.body) == (200, str(len(LAYER)), b"")
    assert head["docker-content-digest"] == digest
    assert client("GET", f"/v2/conf/one/blobs/{digest}").body == LAYER


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-299", 100, 300),
        ("bytes=10000-", 10000, 10240),
        ("bytes=10239-99999", 10239, 10240),
    ],
)
def test_a_range_of_a_blob(client: Client, asked: str, start: int, end: int) -> None:
    digest = client.push_blob("conf/range", LAYER)
    answer = client("GET", f"/v2/conf/range/blobs/{digest}", Range=asked)
    assert answer.status == 206
    assert answer.body == LAYER[start:end]
    assert answer["content-range"] == f"bytes {start}-{end - 1}/{len(LAYER)}"
    assert answer["content-length"] == str(end - start)


def test_a_range_outside_of_a_blob(client: Client) -> None:
    digest = client.push_blob("conf/range", LAYER)
    # docker-registry 2.8.2 announces more than it sends with this status.
    assert client("GET", f"/v2/conf/range/blobs/{digest}", Range="bytes=10240-10250").status == 416


def test_a_blob_that_is_not_there(client: Client) -> None:
    client.push_blob("conf/absent", LAYER)
    path = f"/v2/conf/absent/blobs/{digest_of(b'absent')}"
    assert client("HEAD", path).status == 404
    answer = client("GET", path)
    assert (answer.status, errors(answer.body)) == (404, ["BLOB_UNKNOWN"])


def test_a_blob_of_another_repository_is_not_there(client: Client) -> None:
    client.push_blob("conf/mine", LAYER)
    client.push_blob("conf/theirs", CONFIG)
    assert client("HEAD", f"/v2/conf/theirs/blobs/{digest_of(LAYER)}").status == 404


# --- uploads


def test_chunks_in_order_with_their_acknowledgements(client: Client) -> None:
    location = client("POST", "/v2/conf/chunks/blobs/uploads/")["location"]
    for start in range(0, len(LAYER), 4096):
        chunk = LAYER[start : start + 4096]
        answer = client("PATCH", location, chunk, Content_Range=f"{start}-{start + len(chunk) - 1}")
        assert answer.status == 202
        assert answer["range"] == f"0-{start + len(chunk) - 1}"
        location = answer["location"]
        status = client("GET", location)
        assert (status.status, status["range"]) == (204, f"0-{start + len(chunk) - 1}")
        location = status["location"]
    assert client("PUT", with_digest(location, digest_of(LAYER))).status == 201
    assert client("GET", f"/v2/conf/chunks/blobs/{digest_of(LAYER)}").body == LAYER


def test_a_stream_without_content_range(client: Client) -> None:
    location = client("POST", "/v2/conf/stream/blobs/uploads/")["location"]
    answer = client("PATCH", location, (LAYER[i : i + 1000] for i in range(0, len(LAYER), 1000)))
    assert (answer.status, answer["range"]) == (202, f"0-{len(LAYER) - 1}")
    assert client("PUT", with_digest(answer["location"], digest_of(LAYER))).status == 201


def test_the_last_chunk_may_come_with_the_put(client: Client) -> None:
    location = client("POST", "/v2/conf/last/blobs/uploads/")["location"]
    location = client("PATCH", location, LAYER[:5000], Content_Range="0-4999")["location"]
    assert client("PUT", with_digest(location, digest_of(LAYER)), LAYER[5000:]).status == 201
    assert client("GET", f"/v2/conf/last/blobs/{digest_of(LAYER)}").body == LAYER


def test_a_wrong_digest_is_refused(client: Client) -> None:
    location = client("POST", "/v2/conf/wrong/blobs/uploads/")["location"]
    answer = client("PUT", with_digest(location, digest_of(b"other")), LAYER)
    assert (answer.status, errors(answer.body)) == (400, ["DIGEST_INVALID"])
    assert client("HEAD", f"/v2/conf/wrong/blobs/{digest_of(b'other')}").status == 404


def test_a_cancelled_upload_is_gone(client: Client) -> None:
    location = client("POST", "/v2/conf/cancel/blobs/uploads/")["location"]
    assert client("DELETE", location).status == 204
    answer = client("GET", location)
    assert (answer.status, errors(answer.body)) == (404, ["BLOB_UPLOAD_UNKNOWN"])


def test_a_mount_from_another_repository(client: Client) -> None:
    digest = client.push_blob("conf/from", LAYER)
    answer = client("POST", f"/v2/conf/to/blobs/uploads/?mount={digest}&from=conf/from")
    assert answer.status == 201
    assert client("GET", f"/v2/conf/to/blobs/{digest}").body == LAYER


def test_a_mount_of_what_is_not_there_is_an_ordinary_upload(client: Client) -> None:
    client.push_blob("conf/from", LAYER)
    data = b"not yet there"
    answer = client("POST", f"/v2/conf/to/blobs/uploads/?mount={digest_of(data)}&from=conf/from")
    assert answer.status == 202
    assert client("PUT", with_digest(answer["location"], digest_of(data)), data).status == 201


def test_expect_continue_is_answered(client: Client) -> None:
    """curl waits a second for it at larger bodies."""
    location = client("POST", "/v2/conf/expect/blobs/uploads/")["location"]
    target = with_digest(location, digest_of(LAYER)).removeprefix(f"http://{client.address}")
    host, _, port = client.address.rpartition(":")
    head = f"PUT {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(LAYER)}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(head.encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        sock.sendall(LAYER)
        assert sock.recv(100).startswith(b"HTTP/1.1 201")


# --- manifests, tags, referrers


def test_a_manifest_by_tag_and_by_digest(client: Client) -> None:
    digest = push(client, "conf/manifest", "v1")
    for name in ("v1", digest):
        for method in ("GET", "HEAD"):
            answer = client(method, f"/v2/conf/manifest/manifests/{name}", Accept=OCI_MANIFEST)
            assert answer.status == 200
            assert answer["content-type"] == OCI_MANIFEST
            assert answer["docker-content-digest"] == digest
            assert answer["content-length"] == str(len(manifest(LAYER)))
            assert answer.body == (manifest(LAYER) if method == "GET" else b"")


def test_a_manifest_that_is_not_there(client: Client) -> None:
    push(client, "conf/manifest", "v1")
    answer = client("GET", "/v2/conf/manifest/manifests/v2", Accept=OCI_MANIFEST)
    assert (answer.status, errors(answer.body)) == (404, ["MANIFEST_UNKNOWN"])
    assert client("HEAD", "/v2/conf/manifest/manifests/v2", Accept=OCI_MANIFEST).status == 404


def test_a_manifest_of_missing_blobs_names_them(client: Client) -> None:
    client.push_blob("conf/lost", CONFIG)
    answer = client("PUT", "/v2/conf/lost/manifests/v1", manifest(b"lost"), Content_Type=OCI_MANIFEST)
    assert answer.status in (400, 404)
    assert set(errors(answer.body)) == {"MANIFEST_BLOB_UNKNOWN"}
    assert digest_of(b"lost") in answer.body.decode()
    assert client("HEAD", "/v2/conf/lost/manifests/v1", Accept=OCI_MANIFEST).status == 404


def test_a_manifest_under_a_wrong_digest_is_refused(client: Client) -> None:
    push(client, "conf/manifest", "v1")
    path = f"/v2/conf/manifest/manifests/{digest_of(b'other')}"
    answer = client("PUT", path, manifest(LAYER), Content_Type=OCI_MANIFEST)
    assert (answer.status, errors(answer.body)) == (400, ["DIGEST_INVALID"])


def test_an_index_of_manifests(client: Client) -> None:
    digest = push(client, "conf/index", "one")
    entry = {"mediaType": OCI_MANIFEST, "digest": digest, "size": len(manifest(LAYER))}
    data = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}).encode()
    assert client("PUT", "/v2/conf/index/manifests/all", data, Content_Type=OCI_INDEX).status == 201
    assert client("GET", "/v2/conf/index/manifests/all", Accept=OCI_INDEX).body == data


def test_tags_are_listed(client: Client) -> None:
    for tag in ("v2", "v1", "v10"):
        push(client, "conf/tags", tag)
    answer = client("GET", "/v2/conf/tags/tags/list")
    assert answer.status == 200
    found = json.loads(answer.body)
    # 2.8.2 does not sort them.
    assert (found["name"], sorted(found["tags"])) == ("conf/tags", ["v1", "v10", "v2"])


def test_tags_of_a_repository_that_is_not_there(client: Client) -> None:
    answer = client("GET", "/v2/conf/nobody/tags/list")
    assert (answer.status, errors(answer.body)) == (404, ["NAME_UNKNOWN"])


def test_the_catalog_in_pages(client: Client) -> None:
    for name in ("conf/catalog-a", "conf/catalog-b"):
        push(client, name, "v1")
    first = client("GET", "/v2/_catalog?n=1")
    names = json.loads(first.body)["repositories"]
    while link := first.headers.get("link"):
        assert link.endswith('; rel="next"')
        first = client("GET", link[1 : link.index(">")])
        names += json.loads(first.body)["repositories"]
    assert {"conf/catalog-a", "conf/catalog-b"} <= set(names)
    assert names == sorted(set(names))


def test_a_manifest_that_was_deleted_takes_its_tags(client: Client) -> None:
    digest = push(client, "conf/delete", "v1")
    assert client("DELETE", f"/v2/conf/delete/manifests/{digest}").status == 202
    assert client("GET", "/v2/conf/delete/manifests/v1", Accept=OCI_MANIFEST).status == 404
    assert client("DELETE", f"/v2/conf/delete/manifests/{digest}").status == 404


def test_a_blob_that_was_deleted(client: Client) -> None:
    digest = client.push_blob("conf/delete-blob", LAYER)
    assert client("DELETE", f"/v2/conf/delete-blob/blobs/{digest}").status == 202
    assert client("HEAD", f"/v2/conf/delete-blob/blobs/{digest}").status == 404


# --- where 2.8.2 is too old, or does otherwise


@pytest.fixture(params=["memory", "folder"])
def modern(request: pytest.FixtureRequest, addresses: dict[str, str]) -> Iterator[Client]:
    with Client(addresses[request.param]) as found:
        yield found


def test_a_chunk_out_of_order_is_416_and_changes_nothing(modern: Client) -> None:
    location = modern("POST", "/v2/conf/order/blobs/uploads/")["location"]
    location = modern("PATCH", location, LAYER[:100], Content_Range="0-99")["location"]
    assert modern("PATCH", location, LAYER[200:300], Content_Range="200-299").status == 416
    status = modern("GET", location)
    assert status["range"] == "0-99"
    rest = LAYER[100:]
    answer = modern("PATCH", status["location"], rest, Content_Range=f"100-{len(LAYER) - 1}")
    assert modern("PUT", with_digest(answer["location"], digest_of(LAYER))).status == 201


def test_an_old_registry_takes_chunks_in_any_order(addresses: dict[str, str]) -> None:
    """docker-registry 2.8.2 does not look at Content-Range; the fault registry can be told to do the same."""
    found = []
    with FaultRegistry(Rules(ignore_content_range=True)) as registry:
        for address in (registry.address, addresses.get("docker", registry.address)):
            with Client(address) as client:
                location = client("POST", "/v2/conf/order/blobs/uploads/")["location"]
                answer = client("PATCH", location, LAYER[:100], Content_Range="0-99")
                answer = client("PATCH", answer["location"], LAYER[200:300], Content_Range="200-299")
                found.append((answer.status, answer["range"]))
    assert found == [(202, "0-199")] * 2


def test_a_blob_in_one_post(modern: Client) -> None:
    answer = modern("POST", f"/v2/conf/post/blobs/uploads/?digest={digest_of(LAYER)}", LAYER)
    assert answer.status == 201
    assert modern("GET", f"/v2/conf/post/blobs/{digest_of(LAYER)}").body == LAYER


def test_tags_in_pages(modern: Client) -> None:
    for tag in ("d", "b", "e", "c", "a"):
        push(modern, "conf/pages", tag)
    target: str | None = "/v2/conf/pages/tags/list?n=2"
    pages = []
    while target:
        answer = modern("GET", target)
        pages.append(json.loads(answer.body)["tags"])
        link = answer.headers.get("link")
        target = link[1 : link.index(">")] if link else None
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert json.loads(modern("GET", "/v2/conf/pages/tags/list?n=0").body)["tags"] == []


def test_a_tag_deleted_alone(modern: Client) -> None:
    digest = push(modern, "conf/untag", "v1")
    push(modern, "conf/untag", "v2")
    assert modern("DELETE", "/v2/conf/untag/manifests/v1").status == 202
    assert json.loads(modern("GET", "/v2/conf/untag/tags/list").body)["tags"] == ["v2"]
    assert modern("GET", f"/v2/conf/untag/manifests/{digest}").status == 200


def test_referrers(modern: Client) -> None:
    subject = push(modern, "conf/subject", "v1")
    document = {"mediaType": OCI_MANIFEST, "digest": subject, "size": len(manifest(LAYER))}
    data = manifest(LAYER, subject=document, artifactType="application/vnd.example.signature")
    put = modern("PUT", f"/v2/conf/subject/manifests/{digest_of(data)}", data, Content_Type=OCI_MANIFEST)
    assert (put.status, put["oci-subject"]) == (201, subject)
    for query, count in (("", 1), ("?artifactType=application/vnd.example.signature", 1), ("?artifactType=other", 0)):
        answer = modern("GET", f"/v2/conf/subject/referrers/{subject}{query}")
        assert (answer.status, answer["content-type"]) == (200, OCI_INDEX)
        assert ("oci-filters-applied" in answer.headers) == bool(query)
        found = json.loads(answer.body)["manifests"]
        assert [item["digest"] for item in found] == [digest_of(data)] * count
    empty = modern("GET", f"/v2/conf/subject/referrers/{digest_of(b'nobody')}")
    assert (empty.status, json.loads(empty.body)["manifests"]) == (200, [])


def test_a_folder_is_read_again_by_another_registry(tmp_path: Path) -> None:
    with FaultRegistry(folder=tmp_path) as registry, Client(registry.address) as client:
        digest = push(client, "conf/kept", "v1")
        begun = client("POST", "/v2/conf/kept/blobs/uploads/")["location"]
        client("PATCH", begun, b"half a blob")
    with FaultRegistry(folder=tmp_path) as registry, Client(registry.address) as client:
        assert client("GET", "/v2/conf/kept/manifests/v1")["docker-content-digest"] == digest
        assert client("GET", f"/v2/conf/kept/blobs/{digest_of(LAYER)}").body == LAYER
        assert client("GET", begun).status == 404
