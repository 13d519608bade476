"""Each fault as a client sees it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tests.testing.client import Answer, Client, digest_of, raw, with_digest
from tonne.testing.faults import (
    AckLess,
    AckNothing,
    Action,
    DropBody,
    ExpiredRedirect,
    ExpiredToken,
    Fault,
    Faults,
    Forget,
    HtmlBody,
    IgnoreRange,
    LongBody,
    LostSession,
    NoContentLength,
    PatchAnswers201,
    RedirectLoop,
    Refuse,
    Reset,
    ShortBody,
    SlowBody,
    Stall,
    Status,
    WrongBytes,
    WrongContentRange,
)
from tonne.testing.registry import Auth, FaultRegistry, Rules
from tonne.testing.registry_request import Request, parse_request

DATA = bytes(range(256)) * 400
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
RANGE = {"Range": "bytes=1000-1999"}


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> Iterator[FaultRegistry]:
    with FaultRegistry() as found:
        yield found
    if "idle" not in request.node.name:
        assert found.faults.fired, "a test of a fault in which none came up is void"


@pytest.fixture
def client(registry: FaultRegistry) -> Iterator[Client]:
    with Client(registry.address) as found:
        yield found


@pytest.fixture
def blob(registry: FaultRegistry) -> str:
    """The path of a blob of `DATA`."""
    return f"/v2/a/b/blobs/{registry.add_blob('a/b', DATA)}"


def upload(client: Client) -> str:
    return client("POST", "/v2/a/b/blobs/uploads/")["location"]


def once(registry: FaultRegistry, kind: str, action: Action) -> None:
    registry.faults.add(Fault(kind, action))


# --- answers in place of the registry's


def test_a_status_with_retry_after_and_the_registrys_error(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", Status(429, retry_after=2))
    answer = client("GET", blob)
    assert (answer.status, answer["retry-after"]) == (429, "2")
    assert json.loads(answer.body)["errors"][0]["code"] == "TOOMANYREQUESTS"
    assert client("GET", blob).body == DATA


def test_a_status_with_a_date_an_own_code_and_other_headers(registry: FaultRegistry, client: Client, blob: str) -> None:
    date = "Tue, 01 Dec 2026 03:00:00 GMT"
    once(registry, "blob-get", Status(503, retry_after=date, code="UNAVAILABLE", headers={"Server": "nginx"}))
    answer = client("GET", blob)
    assert (answer["retry-after"], answer["server"]) == (date, "nginx")
    assert json.loads(answer.body)["errors"][0]["code"] == "UNAVAILABLE"


def test_a_status_with_a_page_or_with_any_body(registry: FaultRegistry, client: Client, blob: str) -> None:
    registry.faults.add(Fault("blob-get", Status(502, html=True)), Fault("blob-get", Status(500, body=b"\x00\xff")))
    page = client("GET", blob)
    assert (page.status, page["content-type"][:9]) == (502, "text/html")
    assert page.body.startswith(b"<!DOCTYPE")
    assert client("GET", blob).body == b"\x00\xff"


def test_a_status_at_an_upload_leaves_the_connection_usable(registry: FaultRegistry, client: Client) -> None:
    location = upload(client)
    once(registry, "upload-patch", Status(503))
    assert client("PATCH", location, DATA, Content_Range=f"0-{len(DATA) - 1}").status == 503
    status = client("GET", location)
    assert (status.status, status["range"]) == (204, "0-0")
    assert registry.contents.uploads()[0].size_bytes == 0


def test_a_status_at_a_head_has_no_body(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-head", Status(500))
    assert client("HEAD", blob).status == 500
    assert client("HEAD", blob).status == 200


def test_a_page_with_200(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", HtmlBody())
    answer = client("GET", blob, headers=RANGE)
    assert (answer.status, b"<html>" in answer.body) == (200, True)


def test_a_refused_connection(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", Refuse())
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        client("GET", blob)
    client.close()
    assert client("GET", blob).body == DATA
    assert [record.status for record in registry.asked("blob-get")] == [0, 200]


def test_redirects_without_end(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", RedirectLoop())
    places = []
    answer = client("GET", blob)
    for _ in range(30):
        assert answer.status == 307
        places.append(answer["location"])
        answer = client("GET", answer["location"])
    assert len(set(places)) == 30


# --- bodies of answers


@pytest.mark.parametrize("after_bytes", [1, 500, 999])
def test_a_reset_in_the_body(registry: FaultRegistry, client: Client, blob: str, after_bytes: int) -> None:
    once(registry, "blob-get", Reset(after_bytes))
    with pytest.raises(ConnectionResetError):
        client("GET", blob, headers=RANGE)
    assert registry.asked("blob-get")[0].sent_bytes == after_bytes


def test_a_reset_before_the_answer(registry: FaultRegistry, client: Client, blob: str) -> None:
    registry.faults.add(Fault("blob-get", Reset()), Fault("blob-head", Reset(5000)), Fault("ping", Reset(5000)))
    for method, path in (("GET", blob), ("HEAD", blob), ("GET", "/v2/")):
        with pytest.raises(ConnectionResetError):
            client(method, path)
        client.close()
    assert len(registry.faults.fired) == 3


def timed(work: Callable[[], Answer]) -> tuple[Answer, float]:
    began_s = time.monotonic()
    return work(), time.monotonic() - began_s


@pytest.mark.parametrize("after_bytes", [0, 500, 5000])
def test_a_stall(registry: FaultRegistry, client: Client, blob: str, after_bytes: int) -> None:
    once(registry, "blob-get", Stall(0.15, after_bytes))
    answer, took_s = timed(lambda: client("GET", blob, headers=RANGE))
    assert (answer.body, took_s >= 0.15) == (DATA[1000:2000], True)


def test_a_stall_ends_when_the_registry_stops(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", Stall(600))
    failed: list[Exception] = []

    def ask() -> None:
        try:
            client("GET", blob)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not registry.faults.fired:
        time.sleep(0.005)
    began_s = time.monotonic()
    registry.stop()
    thread.join(10)
    assert time.monotonic() - began_s < 5
    assert len(failed) == 1


def test_a_slow_body(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", SlowBody(5000))
    answer, took_s = timed(lambda: client("GET", blob, headers=RANGE))
    assert (answer.body, took_s > 0.15) == (DATA[1000:2000], True)


@pytest.mark.parametrize(("offset", "at"), [(0, 0), (500, 500), (-1, 999)])
def test_one_wrong_bit(registry: FaultRegistry, client: Client, blob: str, offset: int, at: int) -> None:
    once(registry, "blob-get", WrongBytes(offset, bit=3))
    body = client("GET", blob, headers=RANGE).body
    right = DATA[1000:2000]
    assert [place for place in range(1000) if body[place] != right[place]] == [at]
    assert body[at] ^ right[at] == 8
    assert client("GET", blob).body == DATA


def test_a_body_that_ends_too_early(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", ShortBody(100))
    answer = client("GET", blob, headers=RANGE)
    assert (answer["content-length"], answer.complete, answer.body) == ("1000", False, DATA[1000:1900])


def test_a_short_body_that_looks_complete(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", ShortBody(100, announced=False))
    answer = client("GET", blob, headers=RANGE)
    assert (answer["content-length"], answer.complete, answer.body) == ("900", True, DATA[1000:1900])


def test_a_body_that_is_too_long(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", LongBody(7))
    answer = client("GET", blob, headers=RANGE)
    assert (answer["content-length"], answer.body) == ("1007", DATA[1000:2000] + b"x" * 7)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_without_length(registry: FaultRegistry, client: Client, blob: str, chunked: bool) -> None:
    once(registry, "blob-get", NoContentLength(chunked))
    answer = client("GET", blob, headers=RANGE)
    assert (answer.body, "content-length" in answer.headers) == (DATA[1000:2000], False)
    assert ("transfer-encoding" in answer.headers) == chunked
    assert client("GET", blob).body == DATA


def test_an_ignored_range(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", IgnoreRange())
    answer = client("GET", blob, headers=RANGE)
    assert (answer.status, answer.body) == (200, DATA)


def test_a_wrong_content_range(registry: FaultRegistry, client: Client, blob: str) -> None:
    once(registry, "blob-get", WrongContentRange(5))
    answer = client("GET", blob, headers=RANGE)
    assert answer.status == 206
    assert answer["content-range"] == f"bytes 1005-2004/{len(DATA)}"
    assert answer.body == DATA[1000:2000]


# --- bodies of requests


def test_a_cut_patch_is_kept_or_lost_as_the_rules_say(registry: FaultRegistry, client: Client) -> None:
    for keep, status in ((True, 204), (False, 404)):
        registry.rules.keep_cut_uploads = keep
        location = upload(client)
        once(registry, "upload-patch", Reset(5000))
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            client("PATCH", location, DATA, Content_Range=f"0-{len(DATA) - 1}")
        client.close()
        answer = client("GET", location)
        assert answer.status == status
        if keep:
            assert answer["range"] == "0-4999"
            rest = client("PATCH", answer["location"], DATA[5000:], Content_Range=f"5000-{len(DATA) - 1}")
            assert client("PUT", with_digest(rest["location"], digest_of(DATA))).status == 201


def test_a_patch_answered_after_a_stall(registry: FaultRegistry, client: Client) -> None:
    once(registry, "upload-patch", Stall(0.15, 5000))
    answer, took_s = timed(lambda: client("PATCH", upload(client), DATA, Content_Range=f"0-{len(DATA) - 1}"))
    assert (answer["range"], took_s >= 0.15) == (f"0-{len(DATA) - 1}", True)


def test_who_asks_for_the_status_takes_a_stalled_upload_over(registry: FaultRegistry, client: Client) -> None:
    location = upload(client)
    once(registry, "upload-patch", Stall(60, 5000))
    cut: list[Exception] = []

    def patch() -> None:
        try:
            client("PATCH", location, DATA, Content_Range=f"0-{len(DATA) - 1}")
        except Exception as error:
            cut.append(error)

    thread = threading.Thread(target=patch)
    thread.start()
    session = registry.contents.uploads()[0]
    while session.size_bytes < 5000:
        time.sleep(0.005)
    with Client(registry.address) as other:
        status = other("GET", location)
        assert status["range"] == "0-4999"
        done = other("PATCH", status["location"], DATA[5000:], Content_Range=f"5000-{len(DATA) - 1}")
        assert other("PUT", with_digest(done["location"], digest_of(DATA))).status == 201
    # The first is still held, and would have its bytes refused.
    registry.stop()
    thread.join(10)
    assert len(cut) == 1


def test_a_wrong_bit_on_the_way_in_is_found_by_the_digest(registry: FaultRegistry, client: Client) -> None:
    once(registry, "upload-finish", WrongBytes(50))
    answer = client("PUT", with_digest(upload(client), digest_of(DATA)), DATA)
    assert (answer.status, b"DIGEST_INVALID" in answer.body) == (400, True)


def test_a_slow_request_body(registry: FaultRegistry, client: Client) -> None:
    once(registry, "upload-finish", SlowBody(5000))
    target = with_digest(upload(client), digest_of(DATA[:1000]))
    answer, took_s = timed(lambda: client("PUT", target, DATA[:1000]))
    assert (answer.status, took_s > 0.15) == (201, True)


@pytest.mark.parametrize(
    ("action", "acknowledged", "kept", "status"),
    [
        (AckLess(100), "0-899", 900, 202),
        (AckNothing(), "0-499", 500, 202),
        (DropBody(), "0-999", 500, 202),
        (PatchAnswers201(), "0-999", 1000, 201),
    ],
)
def test_acknowledgements(
    registry: FaultRegistry, client: Client, action: Action, acknowledged: str, kept: int, status: int
) -> None:
    location = client("PATCH", upload(client), DATA[:500], Content_Range="0-499")["location"]
    once(registry, "upload-patch", action)
    answer = client("PATCH", location, DATA[500:1000], Content_Range="500-999")
    assert (answer.status, answer["range"]) == (status, acknowledged)
    assert client("GET", answer["location"])["range"] == acknowledged
    assert registry.contents.uploads()[0].size_bytes == kept
    end = int(acknowledged[2:]) + 1
    last = client("PATCH", answer["location"], DATA[end:2000], Content_Range=f"{end}-1999")
    done = client("PUT", with_digest(last["location"], digest_of(DATA[:2000])))
    assert done.status == (400 if isinstance(action, DropBody) else 201)


def test_a_lost_session(registry: FaultRegistry, client: Client) -> None:
    location = upload(client)
    once(registry, "upload-patch", LostSession())
    for method in ("PATCH", "GET"):
        answer = client(method, location, DATA[:10] if method == "PATCH" else None)
        assert (answer.status, b"BLOB_UPLOAD_UNKNOWN" in answer.body) == (404, True)


# --- what is lost, and what expires


def manifest(*blobs: bytes) -> bytes:
    items = [{"mediaType": "a/b", "digest": digest_of(data), "size": len(data)} for data in blobs]
    return json.dumps({"schemaVersion": 2, "config": items[0], "layers": items[1:]}).encode()


def test_a_blob_that_is_lost_while_the_manifest_is_put(registry: FaultRegistry, client: Client) -> None:
    for data in (b"{}", b"one", b"two"):
        registry.add_blob("a/b", data)
    once(registry, "manifest-put", Forget())
    path = "/v2/a/b/manifests/v1"
    answer = client("PUT", path, manifest(b"{}", b"one", b"two"), Content_Type=MANIFEST_TYPE)
    assert answer.status == 400
    found = json.loads(answer.body)["errors"]
    assert [(item["code"], item["detail"]) for item in found] == [("MANIFEST_BLOB_UNKNOWN", digest_of(b"two"))]
    client.push_blob("a/b", b"two")
    assert client("PUT", path, manifest(b"{}", b"one", b"two"), Content_Type=MANIFEST_TYPE).status == 201


def test_a_blob_that_is_lost_when_it_is_read(registry: FaultRegistry, client: Client, blob: str) -> None:
    other = registry.add_blob("c/d", b"other")
    registry.faults.add(Fault("blob-get", Forget()), Fault("blob-get", Forget(other), nth=1))
    assert client("GET", blob).status == 404
    assert client("GET", blob).status == 404
    assert client("HEAD", f"/v2/c/d/blobs/{other}").status == 404


def test_an_expired_redirect() -> None:
    with FaultRegistry(Rules(redirect=True)) as registry, Client(registry.address) as client:
        path = f"/v2/a/b/blobs/{registry.add_blob('a/b', DATA)}"
        registry.faults.add(Fault("blob-get", ExpiredRedirect()), Fault("store-get", ExpiredRedirect(), nth=2))
        bodies = [client("GET", client("GET", path)["location"], headers=RANGE) for _ in range(3)]
    assert [answer.status for answer in bodies] == [403, 403, 206]
    assert bodies[2].body == DATA[1000:2000]
    assert all(b"AccessDenied" in answer.body for answer in bodies[:2])
    assert len(registry.faults.fired) == 2


def test_an_expired_token() -> None:
    with FaultRegistry(Rules(auth=Auth())) as registry, Client(registry.address) as client:
        path = f"/v2/a/b/blobs/{registry.add_blob('a/b', DATA)}"
        basic = {"Authorization": "Basic dXNlcjpzZWNyZXQ="}
        answer = client("GET", "/token?service=tonne-testing&scope=repository:a/b:pull", headers=basic)
        bearer = {"Authorization": f"Bearer {json.loads(answer.body)['token']}"}
        registry.faults.add(Fault("blob-get", ExpiredToken(), nth=2))
        answers = [client("GET", path, headers=bearer) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 401, 401]
    assert 'error="invalid_token"' in answers[1]["www-authenticate"]
    assert len(registry.faults.fired) == 1


# --- where a fault has no effect, it says so


@pytest.mark.parametrize(
    "action",
    [
        IgnoreRange(),
        WrongContentRange(),
        ExpiredToken(),
        ExpiredRedirect(),
        LostSession(),
        AckLess(),
        PatchAnswers201(),
        WrongBytes(10**9),
    ],
)
def test_idle_faults_are_told_apart(registry: FaultRegistry, client: Client, blob: str, action: Action) -> None:
    once(registry, "blob-get", action)
    assert client("GET", blob).body == DATA
    assert registry.faults.fired == []
    assert [fault.action for fault, _ in registry.faults.idle] == [action]


def test_idle_at_an_answer_without_body(registry: FaultRegistry, client: Client, blob: str) -> None:
    for action in (ShortBody(), LongBody(), WrongBytes()):
        once(registry, "blob-head", action)
        assert client("HEAD", blob).status == 200
    assert (registry.faults.fired, len(registry.faults.idle)) == ([], 3)


# --- which request


def test_the_nth_of_a_kind_and_those_after_it(registry: FaultRegistry, client: Client, blob: str) -> None:
    registry.faults.add(Fault("blob-get", Status(500), nth=3, times=2))
    found = []
    for _ in range(6):
        client("HEAD", blob)
        found.append(client("GET", blob).status)
    assert found == [200, 200, 500, 500, 200, 200]


def test_several_kinds_predicates_and_the_order_of_faults(registry: FaultRegistry, client: Client, blob: str) -> None:
    registry.faults.add(
        Fault(("blob-get", "blob-head"), Status(500), nth=2),
        Fault("*", Status(502), when=lambda request: request.method == "HEAD", times=None),
    )
    found = [client(method, blob).status for method in ("GET", "HEAD", "HEAD", "GET")]
    assert found == [200, 500, 502, 200]
    registry.faults.clear()
    assert client("HEAD", blob).status == 200
    assert len(registry.faults.fired) == 2


def request() -> Request:
    return parse_request("GET", "/v2/a/b/blobs/x", {}, store=False)


def chances(seed: int) -> list[bool]:
    faults = Faults(seed)
    faults.add(Fault("blob-get", Status(500), times=None, probability=0.25))
    return [faults.take(request()) is not None for _ in range(400)]


def test_chance_comes_from_the_seed() -> None:
    assert chances(1) == chances(1)
    assert chances(1) != chances(2)
    assert 60 < sum(chances(1)) < 140


def test_kinds_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="blob-gte"):
        Fault("blob-gte", Status(500))
    with pytest.raises(ValueError):
        Fault("blob-get", Status(500), nth=0)


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", "/v2/", "ping"),
        ("GET", "/v2/a/b/blobs/sha256:00", "blob-get"),
        ("HEAD", "/v2/a/b/blobs/sha256:00", "blob-head"),
        ("POST", "/v2/a/b/blobs/uploads/", "upload-start"),
        ("POST", "/v2/a/b/blobs/uploads/?mount=x&from=y", "blob-mount"),
        ("PATCH", "/v2/a/b/blobs/uploads/1?_state=2", "upload-patch"),
        ("GET", "/v2/a/b/blobs/uploads/1", "upload-status"),
        ("PUT", "/v2/a/b/blobs/uploads/1?digest=x", "upload-finish"),
        ("DELETE", "/v2/a/b/blobs/uploads/1", "upload-cancel"),
        ("PUT", "/v2/a/b/manifests/v1", "manifest-put"),
        ("GET", "/v2/a/b/tags/list?n=1", "tags"),
        ("GET", "/v2/a/b/referrers/sha256:00", "referrers"),
        ("GET", "/token?scope=x", "token"),
        ("POST", "/v2/a/b/manifests/v1", "other"),
        ("GET", "/index.html", "other"),
    ],
)
def test_requests_are_told_apart(method: str, target: str, kind: str) -> None:
    found = parse_request(method, target, {}, store=False)
    assert found.kind == kind
    if "/a/b/" in target and kind != "other":
        assert found.repository == "a/b"


def test_no_two_requests_overlap_in_time_on_one_connection(registry: FaultRegistry, blob: str) -> None:
    """Pipelined requests are answered one after the other, faults or not."""
    registry.faults.add(Fault("blob-get", Stall(0.05)))
    line = f"GET {blob} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n"
    last = line.replace("Host: x", "Host: x\r\nConnection: close")
    answer = raw(registry.address, (line + last).encode())
    assert answer.count(b"HTTP/1.1 206") == 2
    times = [record.began_s for record in registry.asked("blob-get")]
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(times))
