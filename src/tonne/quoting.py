"""Text that others wrote, made fit for a line that people read: names, messages, addresses.

Names are bytes, registries answer with whatever they like, and people type passwords into references.  What is quoted
must neither move a terminal's cursor nor turn the direction of writing, must be encodable, and must not hold a secret.
"""

from __future__ import annotations

import os
import re

# The password may hold anything, a slash or an @ too; a digest behind the last @ is no host.
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s\"'<>]*@(?!sha(?:256|512):)", re.IGNORECASE)
_BARE_USERINFO = re.compile(r"^[^\s@]*:.*@(?!sha(?:256|512):)", re.DOTALL)
_URL_QUERY = re.compile(r"(https?://[^\s?\"'<>]*)\?[^\s\"'<>]*", re.IGNORECASE)
_HEADER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)


def shown(text: str | bytes | os.PathLike[str]) -> str:
    """A name or text on one line: what is not UTF-8, not printable or not encodable is escaped.

    Python's notion of printable leaves out control and format characters (so also those for right-to-left writing),
    separators but the space, and surrogates.  Text that went through this once comes out the same.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    elif not isinstance(text, str):
        text = os.fspath(text)
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":  # how Python carries a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def without_secrets(text: str) -> str:
    """The text without user names and passwords in addresses, queries (they may be signatures), and tokens."""
    if "://" in text:
        text = _URL_QUERY.sub(r"\1?…", _USERINFO.sub(r"\1…@", text))
    return _HEADER.sub(r"\1 …", text)


def without_userinfo(address: str) -> str:
    """An address in which the scheme may be missing, such as ``user:password@host/path``, without that user."""
    if "://" in address:
        return without_secrets(address)
    return _BARE_USERINFO.sub("…@", address)
