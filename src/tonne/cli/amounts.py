"""Numbers, names and times for people."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(size_bytes: float) -> str:
    """``1.5 GiB``: three digits and a binary unit."""
    value = float(size_bytes)
    for unit in _STEPS:
        if abs(value) < 1024 or unit == _STEPS[-1]:
            return f"{int(value)} B" if unit == "B" else f"{value:.{1 if abs(value) >= 10 else 2}f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def shown(name: bytes) -> str:
    """A name on a terminal: what is not UTF-8, or would move the cursor, is escaped."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def encoded(name: bytes) -> str:
    """A name in JSON: as it is when it is UTF-8, else percent-encoded (then each % is %25 too)."""
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return quote_from_bytes(name, safe="/ !\"#$&'()*+,:;<=>?@[\\]^`{|}")
