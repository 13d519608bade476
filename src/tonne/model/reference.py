"""References: what a user types to name an image or a repository.

Sources: OCI distribution-spec "Definitions" (repository and tag grammar); distribution/reference (host and default
names); the ``oci:PATH:TAG`` form is containers-transports(5).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from tonne.errors import BadReference, CorruptDocument
from tonne.model.digest import Digest
from tonne.quoting import without_userinfo

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}\Z")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::([0-9]{{1,5}}))?\Z")
_REPOSITORY_CHARS_MAX = 255  # with the host, what common registries and docker's own grammar allow
_INPUT_CHARS_MAX = 8192  # far beyond any reference; bounds the work on nonsense

DEFAULT_TAG = "latest"
DOCKER_HUB = "docker.io"


@dataclass(frozen=True, slots=True)
class RegistryReference:
    """A repository in a registry, with a tag, a digest, both or neither (then the whole repository is meant)."""

    host: str  # with the port, if any
    repository: str
    tag: str = ""
    digest: Digest | None = None

    @property
    def name(self) -> str:
        """What stands in the URL of the manifest: the digest if there is one, else the tag (``latest`` if none)."""
        return str(self.digest) if self.digest else (self.tag or DEFAULT_TAG)

    @property
    def origin(self) -> str:
        """Host and repository, for messages and for telling repositories apart."""
        return f"{self.host}/{self.repository}"

    def pinned(self, digest: Digest) -> RegistryReference:
        return replace(self, digest=digest)

    def __str__(self) -> str:
        text = self.origin
        if self.tag:
            text += f":{self.tag}"
        if self.digest:
            text += f"@{self.digest}"
        return text


@dataclass(frozen=True, slots=True)
class LayoutReference:
    """An OCI image layout folder on disk, with a tag (``org.opencontainers.image.ref.name``), a digest or neither."""

    path: str
    tag: str = ""
    digest: Digest | None = None

    @property
    def name(self) -> str:
        return str(self.digest) if self.digest else (self.tag or DEFAULT_TAG)

    @property
    def origin(self) -> str:
        return f"oci:{self.path}"

    def pinned(self, digest: Digest) -> LayoutReference:
        return replace(self, digest=digest)

    def __str__(self) -> str:
        text = self.origin
        if self.tag:
            text += f":{self.tag}"
        if self.digest:
            text += f"@{self.digest}"
        return text


Reference = RegistryReference | LayoutReference


def parse_reference(text: str) -> Reference:
    """Parse what a user typed; raises `BadReference` that says which part is wrong.

    ``oci:FOLDER[:TAG][@DIGEST]`` is a layout.  Anything else is ``HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]``; the host may
    not be left out, except that names without one are refused with the Docker Hub spelling as advice.
    """
    # What is quoted: a password may stand where none belongs.
    quoted = text if text.startswith("oci:") else without_userinfo(text)
    if not text or len(text) > _INPUT_CHARS_MAX or any(ord(c) < 0x20 or c == "\x7f" for c in text):
        raise BadReference(
            "not a reference", where=repr(quoted[:80]), why="it is empty, too long or has control characters"
        )
    if text.startswith("oci:"):
        return _parse_layout(text)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", text):
        scheme, _, rest = quoted.partition("://")
        rest = rest.removeprefix("…@")
        raise BadReference(
            "not a reference", where=quoted, why="it is a URL", todo=f"leave out {scheme}://, write {rest}"
        )
    if "/" in (behind := text.rpartition("@")[2]) and behind != text:
        raise BadReference(
            "no user name or password belongs in a reference",
            where=f"…@{behind}",
            todo=f"write {behind}, and log in with `docker login` or set TONNE_USERNAME and TONNE_PASSWORD",
        )
    rest, digest = _split_digest(text)
    host, slash, path = rest.partition("/")
    if not slash or not (("." in host) or (":" in host) or host == "localhost"):
        raise BadReference(
            "no registry in the reference",
            where=text,
            why="the part before the first / is not a host name",
            todo=f"write the registry's host first, for Docker Hub {DOCKER_HUB}/{rest if slash else 'library/' + rest}",
        )
    match = _HOST.match(host)
    if not match or (match[1] and not 0 < int(match[1]) < 65536) or not _is_address(host):
        raise BadReference("bad registry host in the reference", where=host)
    repository, tag = path, ""
    if ":" in path.rsplit("/", 1)[-1]:
        repository, _, tag = path.rpartition(":")
        _check_tag(tag, text)
    if not _REPOSITORY.match(repository) or len(repository) > _REPOSITORY_CHARS_MAX:
        why = (
            "repositories are lower case" if repository != repository.lower() else "a repository is a-z 0-9 . _ - and /"
        )
        raise BadReference("bad repository in the reference", where=repository or text, why=why)
    return RegistryReference(host, repository, tag, digest)


def _is_address(host: str) -> bool:
    """Whether what stands in brackets, if anything does, is an address of IPv6."""
    if not host.startswith("["):
        return True
    try:
        ipaddress.IPv6Address(host[1 : host.index("]")])
    except ValueError:
        return False
    return True


def _parse_layout(text: str) -> LayoutReference:
    rest, digest = _split_digest(text[len("oci:") :])
    path, tag = rest, ""
    head, colon, tail = rest.rpartition(":")
    if colon and "/" not in tail:
        path, tag = head, tail
        _check_tag(tag, text)
    if not path:
        raise BadReference("no folder in the reference", where=text)
    return LayoutReference(path, tag, digest)


def _split_digest(text: str) -> tuple[str, Digest | None]:
    rest, at, tail = text.partition("@")
    if not at:
        return text, None
    try:
        return rest, Digest.parse(tail)
    except CorruptDocument:
        raise BadReference(
            "bad digest in the reference", where=tail.rpartition("@")[2], why="it is not sha256: and 64 hex digits"
        ) from None


def _check_tag(tag: str, text: str) -> None:
    if not _TAG.match(tag):
        raise BadReference("bad tag in the reference", where=text, why=f"{tag!r} is not up to 128 of A-Z a-z 0-9 . _ -")
