"""Settings from the environment and the command line: the only place where either is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tonne.errors import BadSettings
from tonne.settings import CacheSettings, NetworkSettings, ReadSettings, Settings

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "kib": 1 << 10,
    "m": 1000**2,
    "mb": 1000**2,
    "mib": 1 << 20,
    "g": 1000**3,
    "gb": 1000**3,
    "gib": 1 << 30,
    "t": 1000**4,
    "tb": 1000**4,
    "tib": 1 << 40,
}


def parse_size(text: str, what: str) -> int:
    """``4GiB``, ``200 GB``, ``1048576`` as bytes; `BadSettings` otherwise."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise BadSettings(f"{what} is no size", where=text, todo="write it as 512MiB, 4GiB or 10TB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def settings_from(environment: Mapping[str, str], options: Mapping[str, Any]) -> Settings:
    """The command line wins over ``TONNE_*``, which wins over the defaults."""
    network, cache, read = NetworkSettings(), CacheSettings(), ReadSettings()
    ca_file = options.get("ca_file") or _path(environment.get("TONNE_CA"))
    if ca_file and not ca_file.is_file():
        raise BadSettings("the file of authorities does not exist", where=str(ca_file))
    docker_config = environment.get("DOCKER_CONFIG")
    network = replace(
        network,
        ca_file=ca_file,
        plain_http=bool(options.get("plain_http")) or environment.get("TONNE_PLAIN_HTTP", "") not in ("", "0"),
        attempts=options.get("attempts") or network.attempts,
        username=environment.get("TONNE_USERNAME", ""),
        password=environment.get("TONNE_PASSWORD", ""),
        token=environment.get("TONNE_TOKEN", ""),
        credentials_host=environment.get("TONNE_HOST", ""),
        docker_config=Path(docker_config) / "config.json"
        if docker_config
        else Path("~/.docker/config.json").expanduser(),
    )
    folder = options.get("cache") or _path(environment.get("TONNE_CACHE"))
    if folder is None:
        base = environment.get("XDG_CACHE_HOME")
        folder = Path(base) / "tonne" if base else cache.folder
    size = options.get("cache_size") or environment.get("TONNE_CACHE_SIZE")
    cache = replace(cache, folder=folder.expanduser(), size_bytes=parse_size(size, "the cache size") if size else None)
    read = replace(read, deadline_s=options.get("deadline_s") or read.deadline_s)
    return Settings(network=network, cache=cache, read=read)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
