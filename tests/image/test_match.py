"""Globs: the rules of .gitignore, each by an example; where git is there, git is asked too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonne.image.match import Patterns, Selection

CASES = [
    # pattern, path, folder, matches
    ("*.bin", b"a.bin", False, True),
    ("*.bin", b"x/y/a.bin", False, True),
    ("*.bin", b"a.bin.txt", False, False),
    ("/*.bin", b"x/a.bin", False, False),
    ("/*.bin", b"a.bin", False, True),
    ("x/*.bin", b"x/a.bin", False, True),
    ("x/*.bin", b"x/y/a.bin", False, False),
    ("x/**/a", b"x/a", False, True),
    ("x/**/a", b"x/y/z/a", False, True),
    ("**/a", b"a", False, True),
    ("**/x/a", b"q/x/a", False, True),
    ("x/**", b"x/y/z", False, True),
    ("x/**", b"x", True, False),
    ("x/", b"x", True, True),
    ("x/", b"x", False, False),
    ("x/", b"y/x", True, True),
    ("a?c", b"abc", False, True),
    ("a?c", b"a/c", False, False),
    ("a[0-9]", b"a7", False, True),
    ("a[!0-9]", b"a7", False, False),
    ("a[!0-9]", b"ax", False, True),
    ("a[]]", b"a]", False, True),
    ("a[", b"a[", False, True),
    ("[[]a", b"[a", False, True),
    ("a[/]b", b"a/b", False, False),
    ("\\#x", b"#x", False, True),
    ("#x", b"#x", False, False),
    ("\\!x", b"!x", False, True),
    ("x  ", b"x", False, True),
    ("x\\ ", b"x ", False, True),
    ("a.b", b"axb", False, False),
    ("", b"", True, False),
    ("/", b"x", True, False),
    ("a\nb", b"a\nb", False, True),
    ("*", b"\xff\xfe", False, True),
]


@pytest.mark.parametrize(("pattern", "path", "is_folder", "matches"), CASES)
def test_rules(pattern: str, path: bytes, is_folder: bool, matches: bool) -> None:
    assert Patterns([pattern]).matches(path, is_folder) is matches


def test_the_last_that_matches_decides() -> None:
    patterns = Patterns(["*.bin", "!keep.bin", "# a comment", ""])
    assert patterns.matches(b"a.bin", False)
    assert not patterns.matches(b"keep.bin", False)
    assert not patterns.matches(b"x/keep.bin", False)


def test_bytes_that_are_no_utf8() -> None:
    assert Patterns([b"caf\xe9"]).matches(b"x/caf\xe9", False)
    assert Patterns(["caf\udce9"]).matches(b"caf\xe9", False)


def test_a_selection() -> None:
    everything = Selection()
    assert everything.everything
    assert everything.includes(b"a", False)
    assert not everything.excludes(b"a", False)
    some = Selection(["*.json"], ["big/"])
    assert not some.everything
    assert some.includes(b"x/a.json", False)
    assert not some.includes(b"x/a.bin", False)
    assert some.excludes(b"big", True)
    assert not some.excludes(b"big", False)


@settings(max_examples=200)
@given(st.binary(max_size=20), st.binary(min_size=1, max_size=20))
def test_no_pattern_breaks_it(pattern: bytes, path: bytes) -> None:
    try:
        Patterns([pattern]).matches(path, False)
    except Exception as error:
        assert getattr(error, "code", "") == "usage", error  # noqa: PT017  # any other exception is the failure


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_agrees(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    checked = 0
    for pattern, path, is_folder, matches in CASES:
        # A bracket that is never closed matches nothing in git, and itself in fnmatch(3) and here.
        if is_folder or pattern == "a[" or "\n" in pattern or not path or b"\n" in path or b"\xff" in path:
            continue
        (tmp_path / ".git" / "info" / "exclude").write_bytes(pattern.encode() + b"\n")
        status = subprocess.run(
            ["git", "check-ignore", "-q", "--no-index", "--", path.decode()], cwd=tmp_path, check=False
        ).returncode
        # git also says yes for what lies below a matched folder; none of these cases does.
        assert (status == 0) is matches, (pattern, path)
        checked += 1
    assert checked > 20
