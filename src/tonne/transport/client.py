"""The HTTP client: a pool of channels, and receivers that bound what a response may occupy."""

from __future__ import annotations

import ssl
import threading
from collections import OrderedDict
from pathlib import Path

import tonne
from tonne.clock import SYSTEM_CLOCK, Clock, Deadline
from tonne.errors import LongBody, ProtocolError
from tonne.settings import NetworkSettings
from tonne.transport.channel import Channel, Receiver, Request, Trust
from tonne.transport.fields import Head, split_origin

ERROR_BODY_BYTES_MAX = 64 * 1024  # more of an error body says nothing more; the rest is not read
IDLE_HOSTS_MAX = 32  # redirects may lead to ever other hosts of a cloud's storage; each has connections to keep
# Where distributions keep their authorities; libcurl from a wheel looks where its builder's did.
_AUTHORITY_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class Client:
    """Carries out requests, each on a channel of its own, keeping connections alive between them.

    Safe to call from any number of threads: the lock covers only the lists of idle channels.  A channel that saw an
    error is kept, since libcurl has closed the connection concerned.  Must be opened after the last fork.
    """

    def __init__(self, network: NetworkSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.network = network
        self.clock = clock
        self._trust = _find_trust(network.ca_file)
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[str, str, int], list[Channel]] = OrderedDict()  # the last used at the end
        self._closed = False

    def exchange(self, request: Request, receiver: Receiver, deadline: Deadline, patience: float = 1.0) -> Head:
        """One request and its whole response; redirects and statuses are the caller's.

        `patience` multiplies `stall_timeout_s`, for requests on which the other side works long before it answers.
        """
        try:
            origin = split_origin(request.url)
        except ValueError:
            raise ProtocolError("not an address that can be asked", where=request.where) from None
        channel = self._take(origin)
        try:
            return channel.perform(request, receiver, deadline, patience * self.network.stall_timeout_s)
        finally:
            self._give_back(origin, channel)

    def close(self) -> None:
        """Close all idle connections; busy ones are closed when they come back.  Idempotent."""
        with self._lock:
            self._closed = True
            channels = [channel for group in self._idle.values() for channel in group]
            self._idle.clear()
        for channel in channels:
            channel.close()

    def _take(self, origin: tuple[str, str, int]) -> Channel:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            group = self._idle.get(origin)
            if group:
                return group.pop()  # the last used: its connection is the least likely to have been closed
        return Channel(self.network, self._trust, f"tonne/{tonne.__version__}")

    def _give_back(self, origin: tuple[str, str, int], channel: Channel) -> None:
        excess = [channel]
        with self._lock:
            if not self._closed:
                group = self._idle.setdefault(origin, [])
                self._idle.move_to_end(origin)
                if len(group) < max(1, self.network.connections):
                    group.append(channel)
                    excess = self._idle.popitem(last=False)[1] if len(self._idle) > IDLE_HOSTS_MAX else []
        for one in excess:
            one.close()


class Collect:
    """A receiver that keeps the body in memory: at most `limit_bytes` of a success (`LongBody` beyond), and the start
    of anything else.  `announces_only`: the answer to a HEAD, which has the length of a body and none."""

    def __init__(self, where: str, limit_bytes: int, announces_only: bool = False) -> None:
        self._announces_only = announces_only
        self._where = where
        self._limit_bytes = limit_bytes
        self._success = False
        self.body = bytearray()

    def begin(self, head: Head) -> None:
        self.body.clear()  # of an answer before: a challenge or a redirect
        self._success = 200 <= head.status < 300
        announced_bytes = 0 if self._announces_only else head.length_bytes or 0
        if self._success and announced_bytes > self._limit_bytes:
            self._too_long()

    def write(self, data: bytes) -> None:
        if not self._success:
            self.body += data[: max(0, ERROR_BODY_BYTES_MAX - len(self.body))]
            return
        if len(self.body) + len(data) > self._limit_bytes:
            self._too_long()
        self.body += data

    def _too_long(self) -> None:
        raise LongBody("the answer is too long", where=self._where, limit_bytes=self._limit_bytes)


def _find_trust(ca_file: Path | None) -> Trust:
    """The user's authority in addition to the system's, so that storage elsewhere is still trusted."""
    paths = ssl.get_default_verify_paths()
    system = [Path(text) for text in (paths.cafile, *_AUTHORITY_FILES) if text]
    found = next((path for path in system if path.is_file()), None)
    folder = Path(paths.capath) if paths.capath and Path(paths.capath).is_dir() else None
    return Trust(ca_file or found, folder)
