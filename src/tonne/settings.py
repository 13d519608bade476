"""Settings in groups, each with its unit, its default and the reason.  The environment is read once, in tonne.cli.

``None`` always means "no limit" or "found out at run time", as the comment says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """How the network is used."""

    ca_file: Path | None = None  # None: the system's authorities
    plain_http: bool = False  # True: http:// for every host, not only loopback
    connect_timeout_s: float = 10.0  # a SYN is retried after 1, 3 and 7 s
    stall_timeout_s: float = 30.0  # no byte for this long is a stall; slow but moving transfers are none
    attempts: int = 6  # of one request, the first included; 0.5+1+2+4+8 s of back-off at most
    backoff_first_s: float = 0.5
    backoff_max_s: float = 30.0
    retry_after_max_s: float = 120.0  # the longest Retry-After that is obeyed; longer is an error at once
    connections: int = 8  # requests at once to one origin; more gains nothing on measured links
    request_bytes: int = 16 * MIB  # neighbouring frames are asked in one request up to this size
    manifest_bytes_max: int = 4 * MIB  # longer ones are refused unread; what registries should take by the spec
    renew: bool = True  # False: no renewal of tokens and redirects, for tests that want to see the raw fault
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)  # a bearer token given by the user
    credentials_host: str = ""  # the only host that username, password and token are for; empty: whichever is asked
    docker_config: Path | None = None  # None: $DOCKER_CONFIG/config.json or ~/.docker/config.json

    def for_host(self, host: str) -> NetworkSettings:
        """What holds for one host: without username, password and token when those are another's."""
        if self.credentials_host in ("", host):
            return self
        return replace(self, username="", password="", token="")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The local store."""

    folder: Path = Path("~/.cache/tonne")
    size_bytes: int | None = None  # None: no limit of ours; DiskFull is handled
    sync_bytes: int = 64 * MIB  # fdatasync after so much was written to a blob
    sync_s: float = 1.0  # or after so long


@dataclass(frozen=True, slots=True)
class PackSettings:
    """How a folder becomes an image."""

    pack_bytes: int | None = None  # None: 4 GiB, doubled while raw bytes / it exceed 1,200
    level: int = 1  # zstd; weights pack no better at 3 (bf16 0.78 either way), text a tenth, at half the speed
    threads: int | None = None  # None: one a core


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Reading through a view."""

    deadline_s: float = 60.0  # of one read; then EIO
    decoded_cache_bytes: int = 80 * MIB  # frames in memory, on their way or kept; with the rest a mount has 200 MiB
    read_ahead_bytes_max: int = 48 * MIB  # sequential reading grows to this
    whole_index_bytes: int = MIB  # an index up to this is fetched whole at the mount
    page_cache_bytes: int = 24 * MIB  # index pages kept in memory


@dataclass(frozen=True, slots=True)
class Settings:
    network: NetworkSettings = NetworkSettings()
    cache: CacheSettings = CacheSettings()
    pack: PackSettings = PackSettings()
    read: ReadSettings = ReadSettings()
