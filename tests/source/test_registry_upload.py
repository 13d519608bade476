"""Upload sessions against a registry that forgets, lies and hangs up at chosen requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.scripted import Answer, ScriptedServer, Seen
from tonne import errors
from tonne.clock import Deadline
from tonne.model import Blob, Digest, RegistryReference
from tonne.settings import NetworkSettings
from tonne.source.registry import RegistryRepository, open_registry
from tonne.source.registry_calls import RepositoryCalls, with_query
from tonne.testing.clock import VirtualClock
from tonne.transport.fields import Head
from tonne.transport.registry import Registry, Reply

Serve = Callable[..., ScriptedServer]
Fault = Callable[["UploadRegistry", Seen], Answer]
DATA = bytes(range(256)) * 40
DIGEST = Digest.of(DATA)


class UploadRegistry:
    """Keeps sessions as the specification says; `faults` holds, for methods, what the next requests meet instead."""

    def __init__(self, min_length: int | None = None) -> None:
        self.sessions: dict[str, bytearray] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault | None]] = {}
        self.version = 0
        self.counter = 0
        self.min_length = min_length
        self.absolute = ""

    def script(self, seen: Seen) -> Answer:
        queue = self.faults.get(seen.method)
        fault = queue.pop(0) if queue else None
        return fault(self, seen) if fault else self.proper(seen)

    def where(self, name: str) -> dict[str, str]:
        """Another Location each time; only the newest is good."""
        self.version += 1
        held = len(self.sessions[name])
        location = f"{self.absolute}/v2/ml/bert/blobs/uploads/{name}?state=a%2Fb&version={self.version}"
        return {"Location": location, "Range": f"0-{max(0, held - 1)}"}

    def proper(self, seen: Seen) -> Answer:
        name = seen.path.rsplit("/", 1)[1]
        if seen.method == "POST":
            self.counter += 1
            name = f"u{self.counter}"
            self.sessions[name] = bytearray()
            extra = {} if self.min_length is None else {"OCI-Chunk-Min-Length": str(self.min_length)}
            return Answer(202, headers={**self.where(name), **extra})
        if seen.method == "HEAD":
            blob = self.blobs.get(name)
            return Answer(404) if blob is None else Answer(200, headers={"Content-Length": str(len(blob))})
        if name not in self.sessions:
            return Answer(404, b'{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}')
        held = self.sessions[name]
        if seen.method == "GET":
            return Answer(204, headers=self.where(name))
        if seen.method == "DELETE":
            del self.sessions[name]
            return Answer(204)
        assert seen.query["state"] == ["a/b"]
        assert seen.query["version"] == [str(self.version)], "not the newest Location"
        if seen.method == "PATCH":
            first, last = (int(part) for part in seen.headers["content-range"].split("-"))
            assert last - first + 1 == len(seen.body)
            if first != len(held):
                return Answer(416, headers=self.where(name))
            held += seen.body
            return Answer(202, headers=self.where(name))
        held += seen.body
        digest = seen.query["digest"][0]
        if digest != f"sha256:{hashlib.sha256(held).hexdigest()}":
            return Answer(400, b'{"errors":[{"code":"DIGEST_INVALID"}]}')
        self.blobs[digest] = bytes(self.sessions.pop(name))
        return Answer(201, headers={"Docker-Content-Digest": digest})


# --- faults ---------------------------------------------------------------------------------------------------------


def status(number: int) -> Fault:
    return lambda registry, seen: Answer(number)


def cut_after(share: float) -> Fault:
    """The connection ends; so much of the body was kept."""

    def fault(registry: UploadRegistry, seen: Seen) -> Answer:
        name = seen.path.rsplit("/", 1)[1]
        first = int(seen.headers["content-range"].split("-")[0])
        if name in registry.sessions and first == len(registry.sessions[name]):
            registry.sessions[name] += seen.body[: int(len(seen.body) * share)]
        return Answer(raw=b"")

    return fault


def lose_answer(registry: UploadRegistry, seen: Seen) -> Answer:
    registry.proper(seen)
    return Answer(raw=b"")


def partly(registry: UploadRegistry, seen: Seen) -> Answer:
    """Takes half of a chunk and says so."""
    name = seen.path.rsplit("/", 1)[1]
    registry.sessions[name] += seen.body[: (len(seen.body) + 1) // 2]
    return Answer(202, headers=registry.where(name))


def say_nothing(registry: UploadRegistry, seen: Seen) -> Answer:
    """Takes the chunk without a Range, and with 201 as ECR does."""
    answer = registry.proper(seen)
    headers = {name: value for name, value in answer.headers.items() if name != "Range"}
    return replace(answer, status=201, headers=headers)


def drop_body(registry: UploadRegistry, seen: Seen) -> Answer:
    return Answer(202, headers=registry.where(seen.path.rsplit("/", 1)[1]))


def forget(registry: UploadRegistry, seen: Seen) -> Answer:
    registry.sessions.clear()
    return registry.proper(seen)


def forget_bytes(registry: UploadRegistry, seen: Seen) -> Answer:
    del registry.sessions[seen.path.rsplit("/", 1)[1]][:10]
    return registry.proper(seen)


FAULTS: dict[str, Fault] = {
    "503": status(503),
    "500": status(500),
    "cut at once": cut_after(0),
    "cut in the middle": cut_after(0.4),
    "cut after all": cut_after(1),
    "answer lost": lose_answer,
    "partial acknowledgement": partly,
    "no acknowledgement": say_nothing,
    "body dropped": drop_body,
}


def never_loses(name: str) -> bool:
    return name in ("partial acknowledgement", "no acknowledgement")


# --- tests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(serve: Serve) -> UploadRegistry:
    made = UploadRegistry()
    made.server = serve(made.script)  # type: ignore[attr-defined]
    return made


def opened(registry: UploadRegistry, **changes: object) -> RegistryRepository:
    # The waits are virtual and the deadline is not, so they must fit.
    network = NetworkSettings(stall_timeout_s=1.0, backoff_max_s=0.5, **changes)  # type: ignore[arg-type]
    host = registry.server.host  # type: ignore[attr-defined]
    return open_registry(RegistryReference(host, "ml/bert"), network, VirtualClock())


@pytest.fixture
def repository(registry: UploadRegistry) -> Iterator[RegistryRepository]:
    made = opened(registry)
    yield made
    made.close()


def in_chunks(repository: RegistryRepository, size: int = 3000, data: bytes = DATA) -> None:
    upload = repository.start(soon())
    for at in range(0, len(data), size):
        upload.append(memoryview(data)[at : at + size], soon())
        assert upload.acknowledged_bytes == min(at + size, len(data))
    upload.finish(Digest.of(data), soon())


def soon() -> Deadline:
    return Deadline.after(20)


def test_chunks_arrive_in_order_under_the_newest_location(
    registry: UploadRegistry, repository: RegistryRepository
) -> None:
    in_chunks(repository)
    assert registry.blobs == {str(DIGEST): DATA}
    assert registry.sessions == {}


def test_absolute_locations_and_other_element_types(registry: UploadRegistry, repository: RegistryRepository) -> None:
    registry.absolute = registry.server.url  # type: ignore[attr-defined]
    upload = repository.start(soon())
    upload.append(memoryview(DATA).cast("I"), soon())
    upload.append(memoryview(b""), soon())
    upload.finish(DIGEST, soon())
    upload.finish(DIGEST, soon())
    assert registry.blobs[str(DIGEST)] == DATA
    with pytest.raises(RuntimeError):
        upload.append(memoryview(b"x"), soon())


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_fault_of_a_patch_is_survived(
    registry: UploadRegistry, repository: RegistryRepository, name: str, at: int
) -> None:
    registry.faults["PATCH"] = [None] * at + [FAULTS[name]]
    in_chunks(repository)
    assert registry.blobs[str(DIGEST)] == DATA


@pytest.mark.parametrize("name", [name for name in FAULTS if not never_loses(name)])
def test_with_one_attempt_the_raw_fault_is_seen(registry: UploadRegistry, name: str) -> None:
    repository = opened(registry, attempts=1)
    registry.faults["PATCH"] = [None, FAULTS[name]]
    upload = repository.start(soon())
    upload.append(memoryview(DATA)[:3000], soon())
    with pytest.raises(errors.Unavailable) as caught:
        upload.append(memoryview(DATA)[3000:], soon())
    assert caught.value.retryable
    # The session can be asked and continued.
    again = repository.resume(upload.token, soon())
    again.append(memoryview(DATA)[again.acknowledged_bytes :], soon())
    again.finish(DIGEST, soon())
    assert registry.blobs[str(DIGEST)] == DATA
    repository.close()


@settings(max_examples=40)
@given(
    patches=st.lists(st.sampled_from([None, *FAULTS]), max_size=8),
    gets=st.lists(st.sampled_from([None, "503", "cut"]), max_size=4),
    size=st.integers(2, 6000),  # a single first byte that is dropped looks as if it had arrived; its digest does not
    length=st.integers(2, 12_000),
)
def test_whatever_happens_the_blob_is_whole(
    patches: list[str | None], gets: list[str | None], size: int, length: int
) -> None:
    size = max(size, length // 12)
    data = (DATA * 2)[:length]
    registry = UploadRegistry()
    registry.faults["PATCH"] = [FAULTS[name] if name else None for name in patches]
    plain: dict[str, Fault] = {"503": status(503), "cut": lambda registry, seen: Answer(raw=b"")}
    registry.faults["GET"] = [plain[name] if name else None for name in gets]
    with ScriptedServer(registry.script) as server:
        registry.server = server  # type: ignore[attr-defined]
        repository = opened(registry, attempts=20)
        in_chunks(repository, size, data)
        repository.close()
    assert registry.blobs == {str(Digest.of(data)): data}


@pytest.mark.parametrize("data", [b"x", b"xy"])
@pytest.mark.parametrize("name", ["cut after all", "answer lost", "cut at once", "no acknowledgement"])
def test_one_byte_and_none_look_the_same_in_a_range(
    registry: UploadRegistry, repository: RegistryRepository, name: str, data: bytes
) -> None:
    registry.faults["PATCH"] = [FAULTS[name]]
    in_chunks(repository, 1, data)
    assert registry.blobs[str(Digest.of(data))] == data


@pytest.mark.parametrize("fault", [forget, forget_bytes])
def test_a_lost_session_is_said_to_be_lost(
    registry: UploadRegistry, repository: RegistryRepository, fault: Fault
) -> None:
    registry.faults["PATCH"] = [None, fault]
    upload = repository.start(soon())
    upload.append(memoryview(DATA)[:3000], soon())
    with pytest.raises(errors.SessionLost):
        upload.append(memoryview(DATA)[3000:6000], soon())


def test_a_registry_that_always_drops_bodies_ends_in_an_error(
    registry: UploadRegistry, repository: RegistryRepository
) -> None:
    registry.faults["PATCH"] = [drop_body] * 50
    upload = repository.start(soon())
    with pytest.raises(errors.ProtocolError):
        upload.append(memoryview(DATA), soon())
    assert len(registry.faults["PATCH"]) == 44  # six attempts


def test_progress_renews_the_budget(registry: UploadRegistry, repository: RegistryRepository) -> None:
    registry.faults["PATCH"] = [cut_after(0.2)] * 12  # twice as often as there are attempts
    upload = repository.start(soon())
    upload.append(memoryview(DATA), soon())
    upload.finish(DIGEST, soon())
    assert registry.blobs[str(DIGEST)] == DATA


@pytest.mark.parametrize("fault", [lose_answer, status(503), status(500), lambda registry, seen: Answer(raw=b"")])
def test_a_fault_of_the_last_put_is_survived(
    registry: UploadRegistry, repository: RegistryRepository, fault: Fault
) -> None:
    registry.faults["PUT"] = [fault]
    in_chunks(repository)
    assert registry.blobs[str(DIGEST)] == DATA


def test_a_wrong_digest_is_corrupt(registry: UploadRegistry, repository: RegistryRepository) -> None:
    upload = repository.start(soon())
    upload.append(memoryview(DATA)[1:], soon())
    with pytest.raises(errors.CorruptBytes):
        upload.finish(DIGEST, soon())


def test_a_blob_of_another_length_is_corrupt(registry: UploadRegistry, repository: RegistryRepository) -> None:
    def cut_short(registry: UploadRegistry, seen: Seen) -> Answer:
        registry.blobs[str(DIGEST)] = DATA[:-1]
        return Answer(201)  # without Docker-Content-Digest, so we look

    registry.faults["PUT"] = [cut_short]
    with pytest.raises(errors.CorruptBytes, match="another number of bytes"):
        in_chunks(repository)


def test_resuming_elsewhere_goes_on_where_the_registry_is(
    registry: UploadRegistry, repository: RegistryRepository
) -> None:
    upload = repository.start(soon())
    upload.append(memoryview(DATA)[:4000], soon())
    token = upload.token
    other = opened(registry)
    again = other.resume(token, soon())
    assert again.acknowledged_bytes == 4000
    again.append(memoryview(DATA)[4000:], soon())
    again.finish(DIGEST, soon())
    assert registry.blobs[str(DIGEST)] == DATA
    with pytest.raises(errors.SessionLost):
        other.resume(token, soon())
    for odd in ("", "{}", "[]", '{"location":1,"acknowledged_bytes":0}', '{"location":"x","acknowledged_bytes":-1}'):
        with pytest.raises(errors.SessionLost):
            other.resume(odd, soon())
    other.close()


def test_cancelling_removes_the_session_and_never_fails(
    registry: UploadRegistry, repository: RegistryRepository
) -> None:
    upload = repository.start(soon())
    upload.cancel(soon())
    assert registry.sessions == {}
    upload.cancel(soon())
    registry.faults["DELETE"] = [status(500)]
    upload.cancel(soon())


def test_rights_are_checked_by_beginning(registry: UploadRegistry, repository: RegistryRepository) -> None:
    repository.check_rights(soon())
    assert registry.counter == 1
    assert registry.sessions == {}
    registry.faults["POST"] = [status(403)]
    with pytest.raises(errors.Forbidden):
        repository.check_rights(soon())


def test_the_smallest_chunk_is_learned_once(serve: Serve) -> None:
    registry = UploadRegistry(min_length=32 << 20)
    registry.server = serve(registry.script)  # type: ignore[attr-defined]
    repository = opened(registry)
    for _ in range(2):
        facts = repository.facts(soon())
        assert (facts.chunk_bytes_min, facts.chunk_bytes) == (32 << 20, 32 << 20)
    assert registry.counter == 1
    assert registry.sessions == {}
    repository.close()


def test_chunks_that_memory_does_not_hold_are_not_sent(serve: Serve) -> None:
    registry = UploadRegistry(min_length=10**13)
    registry.server = serve(registry.script)  # type: ignore[attr-defined]
    repository = opened(registry)
    facts = repository.facts(soon())
    assert (facts.chunked, facts.chunk_bytes_min, facts.chunk_bytes) == (False, 0, 16 << 20)
    repository.close()


def test_a_401_in_the_middle_sends_the_chunk_again(registry: UploadRegistry) -> None:
    repository = opened(registry, username="me", password="pw")
    challenge = Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
    registry.faults["PATCH"] = [lambda registry, seen: challenge]
    in_chunks(repository)
    assert registry.blobs[str(DIGEST)] == DATA
    repository.close()


# --- one PUT a blob -------------------------------------------------------------------------------------------------


def pieces() -> Iterator[memoryview]:
    yield from (memoryview(DATA)[at : at + 999] for at in range(0, len(DATA), 999))


@pytest.mark.parametrize("fault", [None, lose_answer, status(503), lambda registry, seen: Answer(raw=b""), forget])
def test_a_blob_in_one_put(registry: UploadRegistry, repository: RegistryRepository, fault: Fault | None) -> None:
    registry.faults["PUT"] = [fault]
    calls: list[int] = []

    def chunks() -> Iterator[memoryview]:
        calls.append(1)
        return pieces()

    repository.put(Blob(DIGEST, len(DATA)), chunks, soon())
    assert registry.blobs[str(DIGEST)] == DATA
    assert len(calls) == (1 if fault in (None, lose_answer) else 2)


def test_one_put_with_one_attempt_or_wrong_content(registry: UploadRegistry) -> None:
    repository = opened(registry, attempts=1)
    registry.faults["PUT"] = [status(502)]
    with pytest.raises(errors.ServerError):
        repository.put(Blob(DIGEST, len(DATA)), pieces, soon())
    with pytest.raises(errors.CorruptBytes):
        repository.put(Blob(Digest.of(b"other"), len(DATA)), pieces, soon())
    repository.close()


def test_tokens_hold_no_more_than_is_needed(repository: RegistryRepository) -> None:
    upload = repository.start(soon())
    assert set(json.loads(upload.token)) == {"location", "acknowledged_bytes"}


def test_a_redirected_upload_keeps_method_and_body_but_not_credentials(registry: UploadRegistry, serve: Serve) -> None:
    front = serve(lambda seen: Answer(307, headers={"Location": registry.server.url + seen.target}))  # type: ignore[attr-defined]
    registry.absolute = front.url
    network = NetworkSettings(stall_timeout_s=1.0, token="secret")
    repository = open_registry(RegistryReference(front.host, "ml/bert"), network, VirtualClock())
    in_chunks(repository)
    repository.put(Blob(DIGEST, len(DATA)), pieces, soon())
    assert registry.blobs[str(DIGEST)] == DATA
    assert all(seen.headers["authorization"] == "Bearer secret" for seen in front.seen)
    assert all("authorization" not in seen.headers for seen in registry.server.seen)  # type: ignore[attr-defined]
    repository.close()


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/v2/ml/bert/blobs/uploads/u1?a=b%2Fc", "https://registry.example.com/v2/ml/bert/blobs/uploads/u1?a=b%2Fc"),
        ("http://registry.example.com/x?y", "https://registry.example.com/x?y"),
        ("http://registry.example.com:80/x", "https://registry.example.com/x"),
        ("http://registry.example.com:8080/x", "http://registry.example.com:8080/x"),
        ("https://uploads.example.com/x", "https://uploads.example.com/x"),
        ("", ""),
    ],
)
def test_where_an_upload_goes_on(location: str, expected: str) -> None:
    calls = RepositoryCalls(Registry("registry.example.com", NetworkSettings()), "ml/bert")
    reply = Reply(Head(202, {"location": (location,)}), b"", "https://registry.example.com/v2/ml/bert/blobs/uploads/")
    assert calls.location(reply) == expected
    calls.registry.close()


@pytest.mark.parametrize("location", ["ftp://registry.example.com/x", "http://[::1/x", "https://h:99999/x"])
def test_places_that_cannot_be_used(location: str) -> None:
    calls = RepositoryCalls(Registry("registry.example.com", NetworkSettings()), "ml/bert")
    with pytest.raises(errors.ProtocolError):
        calls.location(Reply(Head(202, {"location": (location,)}), b"", "https://registry.example.com/v2/"))
    calls.registry.close()


def test_a_query_is_added_without_touching_what_is_there() -> None:
    assert (
        with_query("https://h/p?sig=a%2Fb%20c", "digest", "sha256:a") == "https://h/p?sig=a%2Fb%20c&digest=sha256%3Aa"
    )
    assert with_query("https://h/p", "a", "b") == "https://h/p?a=b"
    assert with_query("https://h/p?digest=x", "digest", "y") == "https://h/p?digest=x"
