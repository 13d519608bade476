"""Blobs through redirects that expire, denials, and registries that ignore Range."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from email.utils import formatdate

import pytest

from tests.transport.scripted import Answer, ScriptedServer, Seen, ranged
from tonne import errors
from tonne.clock import Clock, Deadline
from tonne.model import Blob, Digest, RegistryReference
from tonne.settings import NetworkSettings
from tonne.source.registry import RegistryRepository, open_registry
from tonne.testing.clock import VirtualClock
from tonne.transport import ranges

DATA = os.urandom(100_000)
BLOB = Blob(Digest.of(DATA), len(DATA))
QUICK = NetworkSettings(stall_timeout_s=0.2, attempts=1)
Serve = Callable[..., ScriptedServer]


def read(repository: RegistryRepository, offset: int = 1000, length: int = 5000) -> bytes:
    out = bytearray(length)
    repository.read(BLOB, offset, memoryview(out), Deadline.after(10))
    return bytes(out)


class Site:
    """A registry with Basic authorization that redirects to a storage, whose signatures live `life_s`."""

    def __init__(self, serve: Serve, clock: Clock, life_s: float = 1200.0, chain: int = 0) -> None:
        self.clock, self.life_s, self.chain = clock, life_s, chain
        self.signed = 0
        self.ends: dict[str, float] = {}
        self.deny = 0  # so many requests of the storage are denied whatever they carry
        self.denial = Answer(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
        self.storage = serve(self.store)
        self.registry = serve(self.redirect)

    def redirect(self, seen: Seen) -> Answer:
        if not seen.headers.get("authorization"):
            return Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        self.signed += 1
        signature = f"s{self.signed}"
        self.ends[signature] = self.clock.now_s() + self.life_s
        wall_s = self.clock.wall_s()
        url = f"{self.storage.url}/bucket/{'hop/' * self.chain}{BLOB.digest.hex}?Signature={signature}"
        url += f"&Expires={int(wall_s + self.life_s)}"
        return Answer(307, b"<a>", {"Location": url, "Date": formatdate(wall_s, usegmt=True)})

    def store(self, seen: Seen) -> Answer:
        signature = seen.query.get("Signature", [""])[0]
        if self.deny or self.ends.get(signature, -1.0) <= self.clock.now_s():
            self.deny = max(0, self.deny - 1)
            return self.denial
        if "/hop/" in seen.path:
            return Answer(302, headers={"Location": seen.target.replace("/hop/", "/", 1)})
        return ranged(DATA, seen)

    def open(self, **settings: object) -> RegistryRepository:
        network = NetworkSettings(stall_timeout_s=0.5, attempts=1, username="me", password="pw", **settings)  # type: ignore[arg-type]
        return open_registry(RegistryReference(self.registry.host, "ml/bert"), network, self.clock)


def test_a_range_goes_out_closed_and_comes_back(serve: Serve) -> None:
    server = serve(lambda seen: ranged(DATA, seen))
    repository = open_registry(RegistryReference(server.host, "ml/bert"), QUICK)
    assert read(repository) == DATA[1000:6000]
    (seen,) = server.seen
    assert seen.target == f"/v2/ml/bert/blobs/{BLOB.digest}"
    assert seen.headers["range"] == "bytes=1000-5999"
    assert seen.headers["accept-encoding"] == "identity"
    out = bytearray(len(DATA))
    repository.read(BLOB, 0, memoryview(out), Deadline.after(5))
    assert out == DATA
    repository.read(BLOB, 7, memoryview(b""), Deadline.after(5))
    assert len(server.seen) == 2  # nothing is asked for no bytes
    repository.close()


def test_wrong_bytes_are_blamed_on_the_origin(serve: Serve) -> None:
    server = serve(lambda seen: ranged(DATA, seen))
    repository = open_registry(RegistryReference(server.host, "ml/bert"), QUICK)

    def check(out: memoryview) -> None:
        raise errors.CorruptBytes("wrong")

    with pytest.raises(errors.CorruptBytes) as caught:
        repository.read(BLOB, 0, memoryview(bytearray(10)), Deadline.after(5), check)
    assert caught.value.where == f"{server.host}/ml/bert"
    for offset, length in ((-1, 5), (len(DATA) - 1, 2)):
        with pytest.raises(ValueError):
            repository.read(BLOB, offset, memoryview(bytearray(length)), Deadline.after(5))
    repository.close()


def test_a_second_range_costs_no_redirect(serve: Serve) -> None:
    site = Site(serve, VirtualClock())
    repository = site.open()
    for offset in (0, 5000, 99_000):
        assert read(repository, offset, 1000) == DATA[offset : offset + 1000]
    assert len(site.registry.seen) == 2  # the challenge, then one redirect
    assert len(site.storage.seen) == 3
    repository.close()


def test_credentials_stay_with_the_registry(serve: Serve) -> None:
    site = Site(serve, VirtualClock(), chain=2)
    repository = site.open()
    read(repository)
    assert "authorization" in site.registry.seen[-1].headers
    assert len(site.storage.seen) == 3
    for seen in site.storage.seen:
        assert "authorization" not in seen.headers
        assert seen.headers["range"] == "bytes=1000-5999"
        assert seen.headers["referer"] == f"{site.registry.url}/v2/ml/bert/blobs/{BLOB.digest}"
    repository.close()


def test_a_redirect_is_renewed_before_it_expires(serve: Serve) -> None:
    clock = VirtualClock()
    site = Site(serve, clock, life_s=100)
    repository = site.open()
    for _ in range(6):
        read(repository)
        clock.advance(30)
    assert len(site.storage.seen) == 6  # none was denied
    assert site.signed == 2  # at 0 and at 90: a fifth of the life before its end
    repository.close()


@pytest.mark.parametrize("status", [401, 403, 410])
def test_a_denied_target_has_expired_and_is_renewed_outside_the_budget(serve: Serve, status: int) -> None:
    site = Site(serve, VirtualClock())
    site.denial = Answer(status)
    repository = site.open()
    read(repository)
    site.ends.clear()
    assert read(repository) == DATA[1000:6000]
    assert site.signed == 2
    repository.close()


def test_the_second_denial_is_real(serve: Serve) -> None:
    site = Site(serve, VirtualClock())
    repository = site.open()
    read(repository)
    site.deny = 2
    with pytest.raises(errors.Forbidden) as caught:
        read(repository)
    assert "Request has expired" in str(caught.value)
    assert "Signature" not in caught.value.line
    assert caught.value.where == f"{site.registry.host}/ml/bert (at 127.0.0.1)"
    assert site.signed == 2
    assert read(repository) == DATA[1000:6000]  # nothing of it is remembered
    repository.close()


def test_a_first_target_that_is_denied_is_renewed_once(serve: Serve) -> None:
    site = Site(serve, VirtualClock())
    repository = site.open()
    site.deny = 1
    assert read(repository) == DATA[1000:6000]
    assert site.signed == 2
    site.ends.clear()
    site.deny = 2
    with pytest.raises(errors.Forbidden):
        read(repository)
    repository.close()


def test_without_renewal_the_denial_is_seen(serve: Serve) -> None:
    clock = VirtualClock()
    site = Site(serve, clock, life_s=2)
    repository = site.open(renew=False)
    read(repository)
    clock.advance(3)
    with pytest.raises(errors.Forbidden):
        read(repository)
    assert site.signed == 1
    repository.close()


def test_one_thread_asks_for_a_new_target_for_all(serve: Serve) -> None:
    site = Site(serve, VirtualClock())
    repository = site.open()
    read(repository)
    site.ends.clear()
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(read(repository))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [DATA[1000:6000]] * 6
    assert site.signed == 2
    repository.close()


def test_redirects_in_a_circle_end(serve: Serve) -> None:
    server = serve(lambda seen: Answer(307, headers={"Location": seen.target}))
    repository = open_registry(RegistryReference(server.host, "ml/bert"), QUICK)
    for ask in (lambda: read(repository), lambda: repository.manifest("v1", Deadline.after(5))):
        server.seen.clear()
        with pytest.raises(errors.ProtocolError):
            ask()
        assert len(server.seen) <= 6
    repository.close()


@pytest.mark.parametrize("location", ["", "ftp://127.0.0.1/x", "file:///etc/passwd", "http://", "http://[x/y"])
def test_redirects_to_nowhere_are_refused(serve: Serve, location: str) -> None:
    server = serve(lambda seen: Answer(307, headers={"Location": location}))
    repository = open_registry(RegistryReference(server.host, "ml/bert"), QUICK)
    with pytest.raises(errors.ProtocolError):
        read(repository)
    repository.close()


def test_small_blobs_are_read_where_range_is_ignored(serve: Serve) -> None:
    server = serve(lambda seen: Answer(200, DATA))
    repository = open_registry(RegistryReference(server.host, "ml/bert"), QUICK)
    assert read(repository, 99_000, 1000) == DATA[99_000:]
    assert read(repository, 0, 10) == DATA[:10]
    repository.close()


def test_of_large_blobs_it_is_said_that_range_is_ignored(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "WHOLE_BODY_BYTES_MAX", 50_000)
    answers = iter([Answer(200, DATA)])
    server = serve(lambda seen: next(answers, None) or ranged(DATA, seen))
    repository = open_registry(RegistryReference(server.host, "ml/bert"), QUICK)
    assert read(repository) == DATA[1000:6000]  # a proxy cache that fills itself does so once
    server.script = lambda seen: Answer(200, DATA)
    server.seen.clear()
    with pytest.raises(errors.Unsupported, match="ignores Range"):
        read(repository)
    assert len(server.seen) == 2
    out = bytearray(len(DATA))
    repository.read(BLOB, 0, memoryview(out), Deadline.after(5))
    assert out == DATA
    repository.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(206, DATA[1000:6000], {"Content-Range": f"bytes 1000-5999/{len(DATA)}"}, cut=100), errors.ShortBody),
        (Answer(206, DATA[1000:6000], {"Content-Range": f"bytes 1000-5999/{len(DATA)}"}, stall=9), errors.Stalled),
        (Answer(206, DATA[1000:6001], {"Content-Range": f"bytes 1000-5999/{len(DATA)}"}, length=None), errors.LongBody),
        (
            Answer(206, DATA[1000:5999], {"Content-Range": f"bytes 1000-5999/{len(DATA)}"}, length=None),
            errors.ShortBody,
        ),
        (Answer(206, DATA[1000:6000]), errors.ProtocolError),
        (Answer(404, b'{"errors":[{"code":"BLOB_UNKNOWN"}]}'), errors.MissingBlob),
        (Answer(416), errors.ShortBody),
        (Answer(500), errors.ServerError),
        (Answer(429, headers={"Retry-After": "5"}), errors.Busy),
        (Answer(403), errors.Forbidden),
        (Answer(204), errors.ProtocolError),
        (Answer(raw=b""), errors.Unreachable),
    ],
)
def test_each_fault_is_its_own_error(serve: Serve, answer: Answer, error: type[errors.TonneError]) -> None:
    server = serve(lambda seen: answer)
    repository = open_registry(RegistryReference(server.host, "ml/bert"), QUICK)
    with pytest.raises(error) as caught:
        read(repository)
    assert caught.value.where == f"{server.host}/ml/bert"
    server.script = lambda seen: ranged(DATA, seen)
    assert read(repository) == DATA[1000:6000]
    repository.close()


def always(answer: Answer) -> Callable[[Seen], Answer]:
    return lambda seen: answer


def test_a_target_that_fails_is_forgotten(serve: Serve) -> None:
    """The storage behind may have moved; whoever tries again must not be sent to the old place."""
    site = Site(serve, VirtualClock())
    repository = site.open()
    read(repository)
    for answer in (Answer(404), Answer(500), Answer(raw=b"")):
        proper, site.storage.script = site.storage.script, always(answer)
        with pytest.raises(errors.TonneError):
            read(repository)
        site.storage.script = proper
        signed = site.signed
        assert read(repository) == DATA[1000:6000]
        assert site.signed == signed + 1
    repository.close()
