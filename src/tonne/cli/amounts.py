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
    return printable(name.decode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """Text that others wrote, on a terminal: what would move the cursor or cannot be encoded is escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def encoded(name: bytes) -> str:
    """A name in JSON: as it is when it is UTF-8, else percent-encoded (then each % is %25 too)."""
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return quote_from_bytes(name, safe="/ !\"#$&'()*+,:;<=>?@[\\]^`{|}")


def name_fields(name: bytes, key: str = "path") -> dict[str, str]:
    """A name as members of a JSON object: the name, and beside it, if it had to be encoded, how it was."""
    text = encoded(name)
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return {key: text, f"{key}Encoding": "percent"}
    return {key: text}


def share(part: int, whole: int) -> str:
    """``12.3 %`` of something; ``-`` of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
