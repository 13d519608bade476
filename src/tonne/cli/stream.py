"""A JSON document with one long list, written as it comes, so that a list of millions takes no memory."""

from __future__ import annotations

import json
from typing import Any, TextIO


class DocumentStream:
    """Writes ``{head..., name: [items...], tail...}``.  One thread; without `end` the JSON is cut short."""

    def __init__(self, out: TextIO, name: str, head: dict[str, Any]) -> None:
        self._out = out
        self._first = True
        start = json.dumps(head, ensure_ascii=False)[:-1]
        comma = ", " if head else ""
        out.write(f"{start}{comma}{json.dumps(name)}: [")

    def item(self, item: Any) -> None:
        """One more item of the list."""
        self._out.write("\n " if self._first else ",\n ")
        self._out.write(json.dumps(item, ensure_ascii=False))
        self._first = False

    def end(self, tail: dict[str, Any]) -> None:
        """Close the list and add what became known on the way."""
        rest = json.dumps(tail, ensure_ascii=False)[1:]
        self._out.write("]" + (", " if tail else "") + rest + "\n")
        self._out.flush()
