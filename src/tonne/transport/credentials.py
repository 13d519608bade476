"""Who we are to a registry: from the settings, docker's configuration file, or a credential helper.

Source: docker/cli cli/config/configfile (file format).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonne.clock import Deadline
from tonne.errors import BadSettings
from tonne.settings import NetworkSettings
from tonne.transport.helper import ask_helper

CONFIG_BYTES_MAX = 4 * 1024 * 1024  # docker's file has a few KiB
HUB_HOSTS = frozenset(("docker.io", "index.docker.io", "registry-1.docker.io"))
HUB_KEY = "https://index.docker.io/v1/"  # what docker calls its own registry, in the file and to helpers
_TOKEN_USER = "<token>"  # the user name with which a helper says that the secret is an identity token


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name with its password, or an identity token (OAuth 2 refresh token).  Neither appears in a repr."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header; empty without a user name."""
        if not self.username:
            return ""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def find_credentials(network: NetworkSettings, host: str, deadline: Deadline) -> Credentials | None:
    """The credentials for `host` (with its port, if any), None when there are none.

    The settings win, then docker's file: the host's helper, the general helper, the entries.  `BadSettings` when the
    file or a helper cannot be used: going on without would fail later with a less clear message.
    """
    if network.username:
        return Credentials(network.username, network.password)
    if network.docker_config is None:
        return None
    config = _load(network.docker_config)
    keys = _keys(host)
    helpers = config.get("credHelpers")
    for key in keys:
        if isinstance(helpers, dict) and isinstance(helpers.get(key), str):
            return _ask_helper(helpers[key], key, deadline)
    store = config.get("credsStore")
    if isinstance(store, str) and store:
        for key in keys[:1] if host in HUB_HOSTS else keys[:2]:
            found = _ask_helper(store, key, deadline)
            if found:
                return found
    entries = config.get("auths")
    for key in keys:
        if isinstance(entries, dict) and isinstance(entries.get(key), dict):
            found = _from_entry(entries[key], network.docker_config)
            if found:
                return found
    return None


def _keys(host: str) -> list[str]:
    if host in HUB_HOSTS:
        return [HUB_KEY, "docker.io", "index.docker.io", "https://index.docker.io/v2/"]
    return [host, f"https://{host}", f"https://{host}/", f"http://{host}", f"https://{host}/v1/", f"https://{host}/v2/"]


def _load(path: Path) -> dict[str, Any]:
    try:
        # Not only regular files: /dev/null is how some say that there is none.  A fifo is not waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadSettings("cannot read docker's configuration", where=str(path), why=error.strerror or "") from None
    if not data.strip():
        return {}
    try:
        document = json.loads(data) if len(data) <= CONFIG_BYTES_MAX else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadSettings("docker's configuration is not a JSON object", where=str(path))
    return document


def _from_entry(entry: dict[str, Any], path: Path) -> Credentials | None:
    texts = {name: value for name, value in entry.items() if isinstance(value, str)}
    username, password = texts.get("username", ""), texts.get("password", "")
    if texts.get("auth"):
        try:
            username, _, password = base64.b64decode(texts["auth"], validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise BadSettings("docker's configuration has an unreadable `auth`", where=str(path)) from None
        password = password.rstrip("\0")  # docker's own reader does so, for files of its early versions
    identity = texts.get("identitytoken", "")
    if not username and not identity:
        return None
    return Credentials(username, password, identity)


def _ask_helper(name: str, server: str, deadline: Deadline) -> Credentials | None:
    found = ask_helper(name, server, deadline)
    if found is None:
        return None
    username, secret = found
    return Credentials(identity_token=secret) if username == _TOKEN_USER else Credentials(username, secret)
