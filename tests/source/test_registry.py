"""Manifests, tags, mounts and removal against scripted registries."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.transport.scripted import Answer, ScriptedServer, Seen
from tonne import errors
from tonne.clock import Deadline
from tonne.model import Blob, Digest, RegistryReference
from tonne.settings import NetworkSettings
from tonne.source.quirks import QUIRKS, facts_of
from tonne.source.registry import RegistryRepository, open_registry
from tonne.source.seam import Document
from tonne.testing.clock import VirtualClock
from tonne.transport.registry import Registry
from tonne.wire.oci import MANIFEST_TYPE

Serve = Callable[..., ScriptedServer]
MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "layers": []}).encode()
DOCUMENT = Document(MANIFEST, MANIFEST_TYPE, Digest.of(MANIFEST))
OCI = {"Content-Type": MANIFEST_TYPE}


def soon() -> Deadline:
    return Deadline.after(20)


def opened(server: ScriptedServer, repository: str = "ml/bert", **changes: object) -> RegistryRepository:
    network = NetworkSettings(stall_timeout_s=0.1, backoff_max_s=0.5, **changes)  # type: ignore[arg-type]
    return open_registry(RegistryReference(server.host, repository), network, VirtualClock())


# --- reading manifests ----------------------------------------------------------------------------------------------


def test_a_manifest_by_tag_and_by_digest(serve: Serve) -> None:
    server = serve(lambda seen: Answer(200, MANIFEST, {**OCI, "Docker-Content-Digest": str(DOCUMENT.digest)}))
    repository = opened(server)
    assert repository.manifest("v1", soon()) == DOCUMENT
    assert repository.manifest(str(DOCUMENT.digest), soon()) == DOCUMENT
    assert [seen.target for seen in server.seen] == [
        "/v2/ml/bert/manifests/v1",
        f"/v2/ml/bert/manifests/{DOCUMENT.digest}",
    ]
    accepted = server.seen[0].headers["accept"]
    for kind in ("oci.image.manifest.v1", "oci.image.index.v1", "docker.distribution.manifest.v2"):
        assert kind in accepted
    repository.close()


@pytest.mark.parametrize(
    ("name", "answer", "error"),
    [
        (
            "v1",
            Answer(200, MANIFEST + b" ", {**OCI, "Docker-Content-Digest": str(DOCUMENT.digest)}),
            errors.CorruptBytes,
        ),
        (str(DOCUMENT.digest), Answer(200, MANIFEST + b" ", OCI), errors.CorruptBytes),
        ("v1", Answer(200, b"<html>", {"Content-Type": "text/html"}), errors.ProtocolError),
        ("v1", Answer(200, b"nonsense"), errors.CorruptDocument),
        ("v1", Answer(200, MANIFEST, OCI, cut=5), errors.ShortBody),
        ("v1", Answer(200, MANIFEST, OCI, stall=5), errors.Stalled),
        ("v1", Answer(200, b" " * 1001, OCI), errors.LongBody),
        ("v1", Answer(404), errors.MissingManifest),
        ("v1", Answer(404, b'{"errors":[{"code":"NAME_UNKNOWN"}]}'), errors.MissingRepository),
        ("v1", Answer(404, b"<html>", {"Content-Type": "text/html"}), errors.ProtocolError),
        ("v1", Answer(401), errors.Unauthenticated),
        ("v1", Answer(403, b'{"errors":[{"code":"DENIED","message":"no"}]}'), errors.Forbidden),
        ("v1", Answer(429, headers={"Retry-After": "9"}), errors.Busy),
        ("v1", Answer(500), errors.ServerError),
    ],
)
def test_what_a_manifest_may_meet(serve: Serve, name: str, answer: Answer, error: type[errors.TonneError]) -> None:
    server = serve(lambda seen: answer)
    repository = opened(server, manifest_bytes_max=1000)
    with pytest.raises(error) as caught:
        repository.manifest(name, soon())
    assert type(caught.value) is error
    assert caught.value.where == f"{server.host}/ml/bert"
    assert len(server.seen) == 1  # reads are tried again by who composes, not here
    repository.close()


def test_a_vague_media_type_is_looked_up_in_the_document(serve: Serve) -> None:
    server = serve(lambda seen: Answer(200, MANIFEST, {"Content-Type": "text/plain; charset=utf-8"}))
    repository = opened(server)
    assert repository.manifest("v1", soon()).media_type == MANIFEST_TYPE
    repository.close()


# --- storing manifests ----------------------------------------------------------------------------------------------


class ManifestRegistry:
    """Stores manifests; `faults` are what the next PUTs meet, with whether they are stored all the same."""

    def __init__(self, faults: list[tuple[Answer, bool]], digest_header: bool = True) -> None:
        self.faults = faults
        self.stored: dict[str, bytes] = {}
        self.digest_header = digest_header

    def script(self, seen: Seen) -> Answer:
        name = seen.path.rsplit("/", 1)[1]
        if seen.method == "PUT":
            assert seen.headers["content-type"] == MANIFEST_TYPE
            fault, store = self.faults.pop(0) if self.faults else (None, True)
            if store:
                self.stored[name] = seen.body
            return fault or Answer(201, headers={"Docker-Content-Digest": str(Digest.of(seen.body))})
        found = self.stored.get(name)
        if found is None:
            return Answer(404)
        headers = {**OCI, "Docker-Content-Digest": str(Digest.of(found))} if self.digest_header else OCI
        return Answer(200, found, headers)


LOST = Answer(raw=b"")
GATEWAY = Answer(504, b"<html>gateway time-out")


@pytest.mark.parametrize("digest_header", [True, False])
@pytest.mark.parametrize("fault", [LOST, GATEWAY, Answer(500), Answer(200, stall=0, length=5)])
@pytest.mark.parametrize("stored", [True, False])
def test_a_put_whose_answer_is_lost_is_looked_up(
    serve: Serve, fault: Answer, stored: bool, digest_header: bool
) -> None:
    registry = ManifestRegistry([(fault, stored)], digest_header)
    server = serve(registry.script)
    repository = opened(server)
    repository.put_manifest("v1", DOCUMENT, soon())
    assert registry.stored["v1"] == MANIFEST
    if fault is not LOST:  # there, libcurl may send once more by itself
        assert len(server.requests("PUT")) == (1 if stored else 2)
    repository.close()


def test_an_older_manifest_under_the_tag_is_not_ours(serve: Serve) -> None:
    registry = ManifestRegistry([(GATEWAY, False)])
    registry.stored["v1"] = b"{}"
    server = serve(registry.script)
    repository = opened(server)
    repository.put_manifest("v1", DOCUMENT, soon())
    assert registry.stored["v1"] == MANIFEST
    repository.close()


def test_with_one_attempt_the_error_of_the_put_is_seen(serve: Serve) -> None:
    registry = ManifestRegistry([(GATEWAY, False)])
    repository = opened(serve(registry.script), attempts=1)
    with pytest.raises(errors.ServerError):
        repository.put_manifest("v1", DOCUMENT, soon())
    repository.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(413), errors.TooLarge),
        (Answer(400, b'{"errors":[{"code":"MANIFEST_INVALID"}]}'), errors.Refused),
        (Answer(201, headers={"Docker-Content-Digest": "sha256:" + "0" * 64}), errors.CorruptBytes),
        (Answer(403), errors.Forbidden),
    ],
)
def test_refusals_of_a_manifest(serve: Serve, answer: Answer, error: type[errors.TonneError]) -> None:
    server = serve(lambda seen: answer)
    repository = opened(server)
    with pytest.raises(error):
        repository.put_manifest("v1", DOCUMENT, soon())
    # What was stored wrongly may have been damaged on its way, once.
    assert [seen.method for seen in server.seen].count("PUT") == (2 if error is errors.CorruptBytes else 1)
    repository.close()


def test_a_success_without_a_digest_is_looked_up(serve: Serve) -> None:
    """A captive portal says 200 to everything."""
    server = serve(lambda seen: Answer(200, b"<html>log in</html>", {"Content-Type": "text/html"}))
    repository = opened(server, attempts=1)
    with pytest.raises(errors.ProtocolError):
        repository.put_manifest("v1", DOCUMENT, soon())
    assert [seen.method for seen in server.seen][:2] == ["PUT", "HEAD"]
    with pytest.raises(errors.ProtocolError):
        repository.start(soon())
    repository.close()


def test_lost_blobs_are_named(serve: Serve) -> None:
    lost = "sha256:" + "d" * 64
    body = json.dumps({"errors": [{"code": "MANIFEST_BLOB_UNKNOWN", "detail": lost}]}).encode()
    repository = opened(serve(lambda seen: Answer(400, body)))
    with pytest.raises(errors.MissingBlob) as caught:
        repository.put_manifest("v1", DOCUMENT, soon())
    assert caught.value.fields["digests"] == lost
    repository.close()


def test_a_manifest_beyond_the_limit_is_not_sent(serve: Serve) -> None:
    server = serve(lambda seen: Answer(201))
    repository = opened(server)
    data = b" " * (4 * 1024 * 1024 + 1)
    with pytest.raises(errors.TooLarge):
        repository.put_manifest("v1", Document(data, MANIFEST_TYPE, Digest.of(data)), soon())
    assert server.seen == []
    repository.close()


# --- blobs ----------------------------------------------------------------------------------------------------------


def test_the_size_of_a_blob(serve: Serve) -> None:
    answers = {
        "a": Answer(200, headers={"Content-Length": str(1 << 40)}),
        "b": Answer(404),
        "c": Answer(200, length=None),
    }
    server = serve(lambda seen: answers[seen.path[-1]])
    repository = opened(server)
    digests = {letter: Digest("sha256", letter * 64) for letter in answers}
    assert repository.size(digests["a"], soon()) == 1 << 40
    assert repository.has(digests["a"], soon()) == 1 << 40
    assert repository.has(digests["b"], soon()) is None
    with pytest.raises(errors.MissingBlob):
        repository.size(digests["b"], soon())
    with pytest.raises(errors.ProtocolError):
        repository.size(digests["c"], soon())
    repository.close()


@pytest.mark.parametrize(
    ("answer", "mounted"),
    [
        (Answer(201), True),
        (Answer(202, headers={"Location": "/v2/ml/bert/blobs/uploads/u1"}), False),
        (Answer(403), False),
        (Answer(401), False),
        (Answer(404), False),
        (Answer(405), False),
    ],
)
def test_mounts_from_another_repository(serve: Serve, answer: Answer, mounted: bool) -> None:
    server = serve(lambda seen: answer if seen.method == "POST" else Answer(204))
    repository = opened(server)
    blob = Blob(Digest.of(b"x"), 1)
    assert repository.mount(blob, "ml/base", soon()) is mounted
    assert server.seen[0].path == "/v2/ml/bert/blobs/uploads/"
    assert server.seen[0].query == {"mount": [str(blob.digest)], "from": ["ml/base"]}
    assert [seen.path for seen in server.requests("DELETE")] == (
        ["/v2/ml/bert/blobs/uploads/u1"] if answer.status == 202 else []
    )
    repository.close()


def test_what_stores_is_tried_again(serve: Serve) -> None:
    answers = iter([Answer(503), Answer(500), Answer(202, headers={"Location": "/v2/ml/bert/blobs/uploads/u1"})])
    server = serve(lambda seen: next(answers))
    repository = opened(server)
    repository.start(soon())
    assert len(server.seen) == 3
    repository.close()


def test_an_upload_without_a_place_is_no_upload(serve: Serve) -> None:
    repository = opened(serve(lambda seen: Answer(202)), attempts=1)
    with pytest.raises(errors.ProtocolError):
        repository.start(soon())
    repository.close()


# --- tags and removal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absolute", [True, False])
def test_tags_come_from_all_pages_sorted(serve: Serve, absolute: bool) -> None:
    pages = [["z", "b"], ["a", "c"], ["d"]]

    def script(seen: Seen) -> Answer:
        number = int(seen.query.get("last", ["0"])[0])
        link = f"{server.url if absolute else ''}/v2/ml/bert/tags/list?n=2&last={number + 1}"
        headers = {"Link": f'<{link}>; rel="next"'} if number < 2 else {}
        return Answer(200, json.dumps({"name": "ml/bert", "tags": pages[number]}).encode(), headers)

    server = serve(script)
    repository = opened(server)
    assert list(repository.tags(soon())) == ["a", "b", "c", "d", "z"]
    assert server.seen[0].query == {"n": ["1000"]}
    repository.close()


def test_a_next_page_elsewhere_is_asked_here(serve: Serve) -> None:
    """Behind a proxy a registry may misname itself; credentials must not follow."""

    def script(seen: Seen) -> Answer:
        if "last" in seen.query:
            return Answer(200, b'{"tags":["b"]}')
        return Answer(
            200, b'{"tags":["a"]}', {"Link": "<http://other.example.test/v2/ml/bert/tags/list?last=a>; rel=next"}
        )

    repository = opened(serve(script))
    assert list(repository.tags(soon())) == ["a", "b"]
    repository.close()


def test_pages_that_lead_in_a_circle_end(serve: Serve) -> None:
    server = serve(lambda seen: Answer(200, b'{"tags":["a"]}', {"Link": f"<{seen.target}>; rel=next"}))
    repository = opened(server)
    assert list(repository.tags(soon())) == ["a"]
    assert len(server.seen) == 2
    repository.close()


def test_a_list_of_tags_without_an_end_is_an_error_and_not_cut_short(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tonne.source.registry.TAGS_MAX", 5)

    def script(seen: Seen) -> Answer:
        number = int(seen.query.get("last", ["0"])[0])
        tags = [f"v{number}", f"w{number}"]
        return Answer(
            200, json.dumps({"tags": tags}).encode(), {"Link": f"</v2/ml/bert/tags/list?last={number + 1}>; rel=next"}
        )

    server = serve(script)
    repository = opened(server)
    with pytest.raises(errors.ProtocolError, match="goes on after 5"):
        repository.tags(soon())
    assert len(server.seen) == 3
    repository.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(404, b'{"errors":[{"code":"NAME_UNKNOWN"}]}'), errors.MissingRepository),
        (Answer(404), errors.MissingRepository),
        (Answer(200, b"<html>"), errors.ProtocolError),
        (Answer(200, b'{"tags":[1]}'), errors.ProtocolError),
        (Answer(200, b'{"tags":"a"}'), errors.ProtocolError),
    ],
)
def test_lists_that_are_none(serve: Serve, answer: Answer, error: type[errors.TonneError]) -> None:
    repository = opened(serve(lambda seen: answer), attempts=1)
    with pytest.raises(error):
        list(repository.tags(soon()))
    repository.close()


def test_a_repository_without_tags(serve: Serve) -> None:
    repository = opened(serve(lambda seen: Answer(200, b'{"name":"ml/bert","tags":null}')))
    assert list(repository.tags(soon())) == []
    repository.close()


def test_removal(serve: Serve) -> None:
    answers = iter([Answer(202), Answer(503), Answer(404), Answer(404), Answer(405)])
    server = serve(lambda seen: next(answers))
    repository = opened(server)
    repository.delete(DOCUMENT.digest, "v1", soon())
    assert server.seen[0].target == f"/v2/ml/bert/manifests/{DOCUMENT.digest}"
    repository.delete(DOCUMENT.digest, "v1", soon())  # the first attempt's answer was lost, and it was done
    with pytest.raises(errors.MissingManifest):
        repository.delete(DOCUMENT.digest, "v1", soon())
    with pytest.raises(errors.Unsupported) as caught:
        repository.delete(DOCUMENT.digest, "v1", soon())
    assert "delete" in caught.value.next
    repository.close()


# --- the rest -------------------------------------------------------------------------------------------------------


def test_connections_are_shared_when_asked_for(serve: Serve) -> None:
    server = serve(lambda seen: Answer(200, MANIFEST, OCI))
    shared = Registry(server.host, NetworkSettings())
    first = open_registry(RegistryReference(server.host, "ml/bert"), NetworkSettings(), registry=shared)
    second = open_registry(RegistryReference(server.host, "ml/other"), NetworkSettings(), registry=shared)
    first.manifest("v1", soon())
    second.manifest("v1", soon())
    second.close()
    first.manifest("v1", soon())
    assert {seen.connection for seen in server.seen} == {1}
    assert (first.origin, second.origin) == (f"{server.host}/ml/bert", f"{server.host}/ml/other")
    shared.close()


@pytest.mark.parametrize(
    ("host", "settings", "base"),
    [
        ("registry.example.com", NetworkSettings(), "https://registry.example.com"),
        ("registry.example.com:5000", NetworkSettings(plain_http=True), "http://registry.example.com:5000"),
        ("127.0.0.1:5000", NetworkSettings(), "http://127.0.0.1:5000"),
        ("localhost", NetworkSettings(), "http://localhost"),
        ("[::1]:5000", NetworkSettings(), "http://[::1]:5000"),
        ("docker.io", NetworkSettings(), "https://registry-1.docker.io"),
    ],
)
def test_the_address_of_a_registry(host: str, settings: NetworkSettings, base: str) -> None:
    registry = Registry(host, settings)
    assert registry.base == base
    registry.close()


@pytest.mark.parametrize(
    ("host", "chunked", "most"),
    [
        ("123.dkr.ecr.eu-west-1.amazonaws.com", False, 40_000_000_000),
        ("ghcr.io", False, 10_000_000_000),
        ("europe-docker.pkg.dev", False, 10 * 1024**3),
        ("me.azurecr.io", True, 200 * 1024**3),
        ("registry.example.com:5000", True, None),
        ("ghcr.io.example.com", True, None),
    ],
)
def test_what_is_known_of_registries(host: str, chunked: bool, most: int | None) -> None:
    facts = facts_of(host)
    assert (facts.chunked, facts.blob_bytes_max) == (chunked, most)


def test_quirks_agree_with_themselves() -> None:
    for quirk in QUIRKS:
        facts = quirk.facts
        assert quirk.reason
        assert facts.chunk_bytes_min <= facts.chunk_bytes <= (facts.chunk_bytes_max or facts.chunk_bytes)
        assert facts.blob_bytes_max is None or facts.blob_bytes_max >= 4 * 1024**3
