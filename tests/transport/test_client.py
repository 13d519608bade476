"""The client against a real server: what goes over the wire, and each way in which it can go wrong."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.transport.conftest import NAMED_HOST, Authority
from tests.transport.scripted import Answer, ScriptedServer, Seen
from tonne import errors
from tonne.clock import Deadline
from tonne.settings import NetworkSettings
from tonne.transport.bodies import MemoryBody, StreamBody
from tonne.transport.channel import Request
from tonne.transport.client import ERROR_BODY_BYTES_MAX, Client, Collect
from tonne.transport.fields import Head

QUICK = NetworkSettings(stall_timeout_s=0.1, connect_timeout_s=2.0)
DATA = os.urandom(300_000)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client(QUICK)
    yield made
    made.close()


def get(client: Client, url: str, deadline: Deadline | None = None, limit_bytes: int = 1 << 20) -> tuple[Head, bytes]:
    collect = Collect("h/r", limit_bytes)
    head = client.exchange(Request("GET", url, "h/r"), collect, deadline or Deadline.after(10))
    return head, bytes(collect.body)


def test_a_connection_is_used_again(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(200, DATA, {"X-Name": ["a", "b"]}))
    for _ in range(3):
        head, body = get(client, f"{server.url}/x?y=1")
        assert body == DATA
        assert head.all("x-name") == ("a", "b")
    assert {seen.connection for seen in server.seen} == {1}
    assert server.seen[0].headers["user-agent"].startswith("tonne/")
    assert server.seen[0].target == "/x?y=1"


def test_a_connection_that_the_server_closed_meanwhile_costs_no_error(
    serve: Callable[..., ScriptedServer], client: Client
) -> None:
    server = serve(lambda seen: Answer(200, b"x", cut=1, length=1))
    for _ in range(3):
        assert get(client, server.url)[1] == b"x"
    assert {seen.connection for seen in server.seen} == {1, 2, 3}


def test_of_many_hosts_only_the_last_keep_their_connections(
    serve: Callable[..., ScriptedServer], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tonne.transport.client.IDLE_HOSTS_MAX", 2)
    first, second, third = (serve(lambda seen: Answer(200, b"x")) for _ in range(3))
    for server in (first, second, first, third, first, third, second):
        get(client, server.url)
    assert [[seen.connection for seen in server.seen] for server in (first, second, third)] == [
        [1, 1, 1],
        [1, 2],  # had waited the longest when the third came
        [1, 1],
    ]


def test_threads_do_not_share_a_channel(serve: Callable[..., ScriptedServer], client: Client) -> None:
    barrier = threading.Barrier(4, timeout=5)

    def script(seen: Seen) -> Answer:
        barrier.wait()  # only passes when four requests are here at once
        return Answer(200, seen.target.encode() * 1000)

    server = serve(script)
    bodies: dict[int, bytes] = {}

    def work(number: int) -> None:
        bodies[number] = get(client, f"{server.url}/{number}")[1]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert bodies == {number: f"/{number}".encode() * 1000 for number in range(4)}


def test_a_stall_is_noticed_in_milliseconds(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(200, DATA, stall=1000 if seen.path == "/body" else 0))
    for path in ("/body", "/start"):
        start_s = time.monotonic()
        with pytest.raises(errors.Stalled) as caught:
            get(client, server.url + path)
        assert 0.09 <= time.monotonic() - start_s < 0.8
        assert caught.value.where == "h/r"
    assert get_after_error(client, serve) == DATA


def get_after_error(client: Client, serve: Callable[..., ScriptedServer]) -> bytes:
    return get(client, serve(lambda seen: Answer(200, DATA)).url)[1]


def test_a_server_that_never_answers_stalls(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(errors.Stalled):
        get(client, f"http://127.0.0.1:{listener.getsockname()[1]}/")


def test_patience_waits_longer(serve: Callable[..., ScriptedServer], client: Client) -> None:
    def script(seen: Seen) -> Answer:
        time.sleep(0.3)
        return Answer(201)

    server = serve(script)
    head = client.exchange(Request("GET", server.url, "h/r"), Collect("h/r", 10), Deadline.after(10), patience=10)
    assert head.status == 201


def test_slow_is_no_stall(serve: Callable[..., ScriptedServer], client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
                for _ in range(8):
                    time.sleep(0.05)
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        assert get(client, f"http://127.0.0.1:{listener.getsockname()[1]}/")[1] == b"x" * 8
        thread.join()


def test_the_deadline_ends_a_transfer(serve: Callable[..., ScriptedServer]) -> None:
    client = Client(NetworkSettings(stall_timeout_s=30))
    server = serve(lambda seen: Answer(200, DATA, stall=10))
    start_s = time.monotonic()
    with pytest.raises(errors.DeadlineExceeded):
        get(client, server.url, Deadline.after(0.1))
    assert time.monotonic() - start_s < 0.8
    with pytest.raises(errors.DeadlineExceeded):
        get(client, server.url, Deadline.after(0))
    assert len(server.seen) == 1
    client.close()


def test_a_cut_body_is_short(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(200, DATA, cut=1000))
    with pytest.raises(errors.ShortBody):
        get(client, server.url)


def test_a_reset_or_silent_connection_is_unreachable(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(raw=b""))
    with pytest.raises(errors.Unreachable):
        get(client, server.url)


def test_nobody_listens(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(errors.Unreachable):
        get(client, f"http://127.0.0.1:{port}/")


def test_an_unknown_host_is_one(client: Client) -> None:
    with pytest.raises(errors.UnknownHost):
        get(client, "http://no-such-host.invalid/")


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH\r\n", b"\x15\x03\x01\x00\x02\x02\x16"])
def test_what_is_no_http_is_a_protocol_error(serve: Callable[..., ScriptedServer], client: Client, raw: bytes) -> None:
    with pytest.raises(errors.ProtocolError):
        get(client, serve(lambda seen: Answer(raw=raw)).url)


def test_a_url_that_cannot_be_asked(client: Client) -> None:
    for url in ("ftp://127.0.0.1/", "file:///etc/passwd", "nonsense"):
        with pytest.raises(errors.ProtocolError):
            get(client, url)


def test_answers_are_bounded(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(200, DATA, length=None if seen.path == "/open" else -1))
    for path in ("/", "/open"):
        with pytest.raises(errors.LongBody):
            get(client, server.url + path, limit_bytes=len(DATA) - 1)
        assert get(client, server.url + path, limit_bytes=len(DATA))[1] == DATA


def test_of_an_error_only_the_start_is_kept(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(500, DATA))
    head, body = get(client, server.url, limit_bytes=1)
    assert head.status == 500
    assert body == DATA[:ERROR_BODY_BYTES_MAX]


def test_bodies_in_memory_and_streamed(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(201))
    pieces = [memoryview(DATA)[:7], memoryview(b""), memoryview(DATA)[7:200_000], memoryview(DATA)[200_000:]]
    for body in (MemoryBody(DATA), StreamBody(len(DATA), lambda: iter(pieces)), MemoryBody()):
        head = client.exchange(Request("PUT", server.url, "h/r", (), body), Collect("h/r", 1), Deadline.after(10))
        assert head.status == 201
    assert [seen.body == DATA for seen in server.seen] == [True, True, False]
    assert [seen.headers.get("content-length") for seen in server.seen] == [str(len(DATA)), str(len(DATA)), "0"]
    assert ["expect" in seen.headers for seen in server.seen] == [False, True, False]


@pytest.mark.parametrize(("announced", "error"), [(len(DATA) + 1, errors.ShortBody), (len(DATA) - 1, errors.LongBody)])
def test_a_stream_of_another_length_fails(
    serve: Callable[..., ScriptedServer], client: Client, announced: int, error: type[errors.TonneError]
) -> None:
    server = serve(lambda seen: Answer(201))
    body = StreamBody(announced, lambda: iter([memoryview(DATA)]))
    with pytest.raises(error):
        client.exchange(Request("PUT", server.url, "h/r", (), body), Collect("h/r", 1), Deadline.after(10))


def test_what_the_stream_raises_reaches_the_caller(serve: Callable[..., ScriptedServer], client: Client) -> None:
    def broken() -> Iterator[memoryview]:
        yield memoryview(DATA)
        raise errors.SourceChanged("the file changed")

    server = serve(lambda seen: Answer(201))
    body = StreamBody(len(DATA) * 2, broken)
    with pytest.raises(errors.SourceChanged):
        client.exchange(Request("PUT", server.url, "h/r", (), body), Collect("h/r", 1), Deadline.after(10))


def test_a_refusal_comes_before_a_streamed_body_is_sent(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(201))
    server.early = lambda seen: Answer(413, b"too large")
    started: list[bool] = []

    def pieces() -> Iterator[memoryview]:
        started.append(True)
        yield memoryview(DATA)

    request = Request("PUT", server.url, "h/r", (), StreamBody(len(DATA), pieces))
    assert client.exchange(request, Collect("h/r", 1), Deadline.after(10)).status == 413
    assert started == []


def test_loopback_is_never_proxied_and_others_are(
    serve: Callable[..., ScriptedServer], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(lambda seen: Answer(200, b"from the proxy"))
    server = serve(lambda seen: Answer(200, b"direct"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    assert get(client, server.url)[1] == b"direct"
    assert get(client, "http://registry.example.test/v2/")[1] == b"from the proxy"
    assert proxy.seen[0].target == "http://registry.example.test/v2/"


def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    client.close()
    with pytest.raises(RuntimeError):
        get(client, "http://127.0.0.1:1/")


def test_tls_needs_a_known_authority(
    serve: Callable[..., ScriptedServer], client: Client, authority: Authority
) -> None:
    server = serve(lambda seen: Answer(200, DATA), authority.context())
    with pytest.raises(errors.TlsFailure) as caught:
        get(client, server.url)
    assert "--ca" in caught.value.line
    trusting = Client(NetworkSettings(ca_file=authority.certificate))
    assert get(trusting, server.url)[1] == DATA
    trusting.close()


def test_a_server_without_tls_is_said_to_have_none(serve: Callable[..., ScriptedServer], client: Client) -> None:
    server = serve(lambda seen: Answer(200, DATA))
    with pytest.raises(errors.TlsFailure):
        get(client, server.url.replace("http:", "https:"))


class Tunnel:
    """A proxy for CONNECT that leads everything to one address, or refuses."""

    def __init__(self, port: int, status: str) -> None:
        self._port, self._status = port, status
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client:
            self.asked.append(client.recv(65536).decode().split("\r\n")[0])
            client.sendall(f"HTTP/1.1 {self._status}\r\nX-Proxy: yes\r\n\r\n".encode())
            if not self._status.startswith("200"):
                return
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                self._copy(client, server)
                back.join(10)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def __enter__(self) -> Tunnel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(10)


def test_tls_goes_through_a_proxys_tunnel(
    serve: Callable[..., ScriptedServer], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(lambda seen: Answer(404, DATA, {"X-Registry": "yes"}), authority.context())
    trusting = Client(NetworkSettings(ca_file=authority.certificate))
    with Tunnel(server.port, "200 Connection established") as tunnel:
        monkeypatch.setenv("https_proxy", tunnel.url)
        head, _ = get(trusting, f"https://{NAMED_HOST}/v2/")
        assert head.status == 404  # the registry's, not the proxy's 200
        assert head.first("x-registry") == "yes"
        assert head.first("x-proxy") == ""
        trusting.close()
    assert tunnel.asked == [f"CONNECT {NAMED_HOST}:443 HTTP/1.1"]


def test_a_proxy_that_refuses_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tunnel(0, "407 Proxy Authentication Required") as tunnel:
        monkeypatch.setenv("https_proxy", tunnel.url)
        with pytest.raises(errors.Unreachable, match="proxy") as caught:
            get(client, f"https://{NAMED_HOST}/v2/")
        assert "407" in str(caught.value)


@pytest.mark.parametrize("repeatable", [True, False])
def test_on_a_dead_connection_only_what_may_be_repeated_is(
    serve: Callable[..., ScriptedServer], client: Client, repeatable: bool
) -> None:
    """A server that closes a kept connection just as the next request arrives: libcurl sends it again on a new one."""
    server: ScriptedServer = serve(lambda seen: Answer(200) if len(server.seen) != 2 else Answer(raw=b""))
    get(client, server.url)
    request = Request("PUT", server.url, "h/r", (), MemoryBody(DATA, repeatable=repeatable))
    if repeatable:
        assert client.exchange(request, Collect("h/r", 1), Deadline.after(10)).status == 200
    else:
        with pytest.raises(errors.Unreachable):
            client.exchange(request, Collect("h/r", 1), Deadline.after(10))
    assert [seen.body == DATA for seen in server.requests("PUT")] == [True, True][: 2 if repeatable else 1]
