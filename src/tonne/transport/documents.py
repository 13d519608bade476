"""JSON documents of registries other than manifests: small, bounded by who received them, foreign."""

from __future__ import annotations

import json
from typing import Any

from tonne.errors import CorruptDocument


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object; `CorruptDocument` for anything else."""
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptDocument("not valid JSON", where=where, why=str(error)[:200]) from None
    if not isinstance(document, dict):
        raise CorruptDocument("not a JSON object", where=where)
    return document
