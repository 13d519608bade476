"""Globs over paths, as a .gitignore has them: for `pack --exclude`, .tonneignore, and `pull --include --exclude`.

Paths are bytes, relative to the tree's root, without a leading slash.  Source of the rules: gitignore(5), "PATTERN
FORMAT".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tonne.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Pattern:
    expression: re.Pattern[bytes]
    negated: bool
    folders_only: bool


class Patterns:
    """A list of globs of which the last that matches decides; ``!GLOB`` takes back.  Immutable.

    A glob without a slash (but for one at its end) matches a name at any depth, one with a slash a path from the root.
    ``*`` and ``?`` stop at a slash, ``**`` does not; a slash at the end means folders only; ``#`` begins a comment;
    a backslash takes the next character as it is.
    """

    def __init__(self, lines: Iterable[str | bytes]) -> None:
        self._patterns = [made for line in lines if (made := _compile(_bytes(line))) is not None]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, path: bytes, is_folder: bool) -> bool:
        """Whether the last pattern that concerns `path` takes it.  What lies below a matched folder is the caller's."""
        for pattern in reversed(self._patterns):
            if (is_folder or not pattern.folders_only) and pattern.expression.match(path):
                return not pattern.negated
        return False


class Selection:
    """Which entries of a tree are wanted: all, or those that `include` matches, without those that `exclude` matches.

    A matched folder stands for all that is in it.  Immutable.
    """

    def __init__(self, include: Sequence[str | bytes] = (), exclude: Sequence[str | bytes] = ()) -> None:
        self._include = Patterns(include)
        self._exclude = Patterns(exclude)

    @property
    def everything(self) -> bool:
        """Whether nothing is left out, so that no path has to be looked at."""
        return not self._include and not self._exclude

    def includes(self, path: bytes, is_folder: bool) -> bool:
        """Whether this entry is asked for by name, its folders aside."""
        return not self._include or self._include.matches(path, is_folder)

    def excludes(self, path: bytes, is_folder: bool) -> bool:
        """Whether this entry is left out by name, its folders aside."""
        return self._exclude.matches(path, is_folder)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _compile(line: bytes) -> _Pattern | None:
    text = _without_end_spaces(line.rstrip(b"\r\n"))
    if not text or text.startswith(b"#"):
        return None
    negated = text.startswith(b"!")
    if negated:
        text = text[1:]
    folders_only = text.endswith(b"/") and not text.endswith(b"\\/")
    if folders_only:
        text = text.rstrip(b"/")
    if not text:
        return None
    anchored = b"/" in text
    body = _translate(text.lstrip(b"/"))
    try:
        expression = re.compile((b"" if anchored else b"(?:.*/)?") + body + rb"\Z", re.DOTALL)
    except re.error as error:
        raise UsageError("a pattern cannot be used", where=line.decode("utf-8", "replace"), why=str(error)) from None
    return _Pattern(expression, negated, folders_only)


def _without_end_spaces(text: bytes) -> bytes:
    """Spaces at the end do not count, unless the first of them is escaped."""
    bare = text.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return bare + b" " if backslashes % 2 and len(bare) < len(text) else bare


def _translate(glob: bytes) -> bytes:
    """The regular expression of one glob."""
    out: list[bytes] = []
    at = 0
    while at < len(glob):
        char = glob[at : at + 1]
        at_start = at == 0 or glob[at - 1 : at] == b"/"
        if at_start and glob.startswith(b"**/", at):
            out.append(b"(?:.*/)?")
            at += 3
        elif at_start and at > 0 and glob[at:] == b"**":
            out.append(b".+")
            at += 2
        elif char == b"*":
            while glob[at : at + 1] == b"*":
                at += 1
            out.append(b"[^/]*")
        elif char == b"?":
            out.append(b"[^/]")
            at += 1
        elif char == b"[":
            piece, at = _class(glob, at)
            out.append(piece)
        elif char == b"\\" and at + 1 < len(glob):
            out.append(re.escape(glob[at + 1 : at + 2]))
            at += 2
        else:
            out.append(re.escape(char))
            at += 1
    return b"".join(out)


def _class(glob: bytes, start: int) -> tuple[bytes, int]:
    """A bracket expression from ``[``, and where it ends; a lone bracket is itself."""
    at = start + 1
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    first = at
    while at < len(glob) and (glob[at : at + 1] != b"]" or at == first):
        at += 2 if glob[at : at + 1] == b"\\" else 1
    if at >= len(glob):
        return rb"\[", start + 1
    inside = re.sub(rb"([\[&~|^])", rb"\\\1", glob[first:at].replace(b"--", rb"-\-"))
    if inside.startswith(b"]"):
        inside = b"\\" + inside
    return b"(?!/)[" + (b"^" if negated else b"") + inside + b"]", at + 1
