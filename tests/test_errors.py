"""The tree of errors, and docs/errors.md, which is generated from it: ``python tests/test_errors.py`` writes it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tonne.errors import Corrupt, Missing, Refused, TonneError, Unavailable, codes

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"

_HEAD = """# Errors

Every error has a code, which the command prints in brackets, `--json` gives as `error.code`, and logs repeat. The exit
status of the command follows from it. "Again" says whether tonne tries again by itself before it gives up.

This page is generated from `src/tonne/errors.py`.

| code | exit | again | meaning | what to do |
|---|---|---|---|---|
"""


def render() -> str:
    """The page as it must be."""
    rows = []
    for code, cls in codes().items():
        again = "yes" if cls.retryable else "no"
        todo = cls.todo[:1].upper() + cls.todo[1:]
        rows.append(f"| `{code}` | {cls.exit_status} | {again} | {cls.meaning} | {todo}. |\n")
    return _HEAD + "".join(rows)


def test_page_lists_every_code() -> None:
    assert PAGE.read_text() == render(), "run: python tests/test_errors.py"


def test_codes_are_unique_and_statuses_tell_the_classes_apart() -> None:
    found = codes()
    assert len(found) > 30
    statuses = {cls: cls.exit_status for cls in (Missing, Corrupt, Unavailable, Refused)}
    assert len(set(statuses.values())) == 4
    for cls in found.values():
        assert 1 <= cls.exit_status <= 130
        assert cls.meaning.endswith(".")
        assert not cls.todo.endswith(".")
        for family, status in statuses.items():
            if issubclass(cls, family):
                assert cls.exit_status == status


@pytest.mark.parametrize("cls", codes().values(), ids=codes())
def test_an_error_says_what_where_why_and_what_next(cls: type[TonneError]) -> None:
    error = cls("it failed", where="here", why="because", size_bytes=5)
    assert str(error) == "it failed: here: because"
    assert error.line == f"it failed: here: because; {cls.todo}"
    document = json.loads(json.dumps(error.document()))["error"]
    assert document["code"] == cls.code
    assert document["next"] == cls.todo
    assert document["fields"] == {"size_bytes": 5}


def test_an_error_survives_the_way_between_processes() -> None:
    error = Missing("gone", where="x", why="y", todo="z", n=3)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.document()) == (Missing, error.document())


if __name__ == "__main__":
    PAGE.write_text(render())
