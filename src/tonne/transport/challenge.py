"""``WWW-Authenticate``: what a registry asks for.  Pure.

Sources: RFC 9110 11.6.1 (grammar; one field may hold several challenges), distribution docs/spec/auth/token.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|\Z))")
FIELD_CHARS_MAX = 8192  # longer ones are cut: no registry's challenge is a tenth of it


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge: scheme and parameter names in lower case."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def parse_challenges(values: Iterable[str]) -> list[Challenge]:
    """All challenges of the fields, in order.  What cannot be read ends the field that it stands in."""
    found: list[Challenge] = []
    for value in values:
        found.extend(_parse_field(value[:FIELD_CHARS_MAX]))
    return found


def _parse_field(text: str) -> list[Challenge]:
    found: list[Challenge] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(text):
        if text[at] in ", \t":
            at += 1
            continue
        name = _TOKEN.match(text, at)
        if not name:
            break
        at = _skip_space(text, name.end())
        if at < len(text) and text[at] == "=" and found:
            value, at = _parse_value(text, _skip_space(text, at + 1))
            if value is None:
                break
            parameters.setdefault(name[0].lower(), value)
            continue
        parameters = {}
        found.append(Challenge(name[0].lower(), parameters))
        # A scheme may carry one bare value (as Negotiate does); it is of no use here and must not be read as a name.
        bare = _TOKEN68.match(text, at) if at > name.end() else None
        if bare:
            at = bare.end()
    return found


def _parse_value(text: str, at: int) -> tuple[str | None, int]:
    quoted = _QUOTED.match(text, at)
    if quoted:
        return re.sub(r"\\(.)", r"\1", quoted[1]), quoted.end()
    plain = re.compile(r"[^\s,\"]*").match(text, at)  # more than a token: URLs come unquoted from some
    if not plain or not plain[0]:
        return None, at
    return plain[0], plain.end()


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at
