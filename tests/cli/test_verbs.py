"""The verbs that read images and folders, as processes, against a layout."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tonne import COMMAND, document, error, run
from tests.image.sketch import Made, make, write_layout
from tonne.cli.main import run as run_here
from tonne.cli.session import Session
from tonne.clock import Deadline
from tonne.settings import ReadSettings
from tonne.source.layout import LayoutRepository

ONE = r"""
    frame 65536
    lanes 2
    level 0
    dir a mode=750 mtime=1600000000.000000001
    file a/large seed:1:3000000
    file a/small text:one
    file "a/caf\xe9" text:latin
    file "a/new\nline" text:odd
    file empty -
    file sparse hole:2000000+text:end
    link link a/small
    hard second a/small
"""
TWO = ONE.replace("text:one", "text:three").replace("file empty -", "file added text:x")


@pytest.fixture(scope="module")
def one() -> Made:
    return make(ONE)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory, one: Made) -> str:
    folder = tmp_path_factory.mktemp("images") / "layout"
    write_layout(folder, {"v1": one, "v2": make(TWO)})
    return f"oci:{folder}"


def test_inspect(layout: str, one: Made) -> None:
    found = document("inspect", f"{layout}:v1")
    assert found["digest"] == str(one.document.digest)
    assert [pack["digest"] for pack in found["packs"]] == [str(pack.digest) for pack in one.manifest.packs]
    assert found["contentBytes"] == sum(map(len, one.contents.values()))
    assert {name["name"] for name in found["top"]["names"]} == {"a", "empty", "link", "second", "sparse"}
    text = run("inspect", f"{layout}:v1").stdout.decode()
    assert str(one.document.digest) in text
    assert "4.77 MiB" in text


def test_ls(layout: str, one: Made) -> None:
    found = document("ls", "-R", f"{layout}:v1")
    assert {item["path"] for item in found["entries"]} == {
        "a", "a/caf%E9", "a/large", "a/new\nline", "a/small", "empty", "link", "second", "sparse",
    }  # fmt: skip
    encoded = [item["path"] for item in found["entries"] if item.get("pathEncoding") == "percent"]
    assert encoded == ["a/caf%E9"]
    by_path = {item["path"]: item for item in found["entries"]}
    assert by_path["a"]["mtimeNs"] == 1600000000000000001
    assert by_path["link"]["target"] == "a/small"
    assert by_path["second"]["inode"] == by_path["a/small"]["inode"]
    assert [item["path"] for item in document("ls", f"{layout}:v1", "a/small")["entries"]] == ["a/small"]
    assert run("ls", f"{layout}:v1", "a").stdout == b"caf\\xe9\nlarge\nnew\\nline\nsmall\n"
    long = run("ls", "-l", f"{layout}:v1").stdout.decode().splitlines()
    assert long[0].startswith("drwxr-x---")
    assert long[0].endswith("2020-09-13 12:26:40.000000001 a/")
    assert any(line.endswith("link -> a/small") for line in long)
    assert error("ls", f"{layout}:v1", "absent", status=3)["code"] == "missing.path"


def test_cat(layout: str, one: Made) -> None:
    for name, path in (("a/large", b"a/large"), ("sparse", b"sparse"), ("empty", b"empty"), ("link", b"a/small")):
        assert run("cat", f"{layout}:v1", name).stdout == one.contents[path]
    assert run("cat", f"{layout}:v1", "a/caf\udce9").stdout == b"latin"
    assert error("cat", f"{layout}:v1", "a", status=2)["code"] == "usage"


def test_diff(layout: str) -> None:
    assert run("diff", f"{layout}:v1", f"{layout}:v1").stdout.startswith(b"0 added, 0 removed, 0 changed; ")
    found = document("diff", f"{layout}:v1", f"{layout}:v2", status=1)
    assert [(item["change"], item["path"]) for item in found["differences"]] == [
        ("changed", "a/small"),
        ("added", "added"),
        ("removed", "empty"),
        ("changed", "second"),
    ]
    assert found["counts"] == {"added": 1, "removed": 1, "changed": 2}
    assert 0 <= found["stored"]["sharedBytes"] < found["stored"]["newBytes"]
    text = run("diff", f"{layout}:v1", f"{layout}:v2", status=1).stdout.decode().splitlines()
    assert text[:3] == ["~ a/small  3 B -> 5 B", "+ added  1 B", "- empty  0 B"]


def test_tags_and_rm(tmp_path: Path, one: Made) -> None:
    write_layout(tmp_path / "layout", {"b": one, "a": make(TWO)})
    layout = f"oci:{tmp_path}/layout"
    assert document("tags", layout)["tags"] == ["a", "b"]
    assert error("rm", layout, status=2)["code"] == "usage"
    assert document("rm", f"{layout}:a")["removed"] == f"{layout}:a"
    assert run("tags", layout).stdout == b"b\n"
    assert error("rm", f"{layout}:a", status=3)["code"] == "missing.manifest"
    assert run("verify", f"{layout}:b", "--packs").stdout.endswith(b"all is well\n")


def test_pull_and_verify(layout: str, one: Made, tmp_path: Path) -> None:
    target = tmp_path / "target"
    found = document("pull", f"{layout}:v1", target)
    assert found["contentBytes"] == found["madeBytes"] == sum(map(len, one.contents.values()))
    assert document("pull", f"{layout}:v1", target)["madeBytes"] == 0
    assert b"was complete" in run("pull", f"{layout}:v1", target).stdout
    assert document("verify", f"{layout}:v1", target)["good"] is True
    (target / "a/small").write_bytes(b"two")
    os.utime(target / "a/small", ns=(0, one.entry(b"a/small").mtime_ns))
    done = run("--json", "verify", f"{layout}:v1", target, status=6)
    report = json.loads(done.stdout)
    bad = {item["path"] for item in report["files"] if not item["good"]}
    assert bad == {"a/small", "second"}  # two names of one file
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "corrupt.verify"
    text = run("verify", f"{layout}:v1", target, status=6).stdout.decode()
    assert "BAD  a/small; content: its content has another digest" in text
    assert "ok   a/large" in text
    assert "ok " not in run("-q", "verify", f"{layout}:v1", target, status=6).stdout.decode()
    # Another version over it: only with --force, and what differs is replaced.
    assert error("pull", f"{layout}:v2", target, status=7)["code"] == "local.exists"
    run("pull", "--force", f"{layout}:v2", target)
    (target / "empty").unlink()
    os.utime(target, ns=(0, one.entries[0].mtime_ns))
    assert document("verify", f"{layout}:v2", target)["good"] is True


def test_pull_a_part(layout: str, tmp_path: Path) -> None:
    document("pull", f"{layout}:v1", tmp_path / "part", "--include", "a/", "--exclude", "*large")
    assert sorted(os.fsencode(path.name) for path in (tmp_path / "part" / "a").iterdir()) == [
        b"caf\xe9", b"new\nline", b"small",
    ]  # fmt: skip
    words = ("verify", f"{layout}:v1", tmp_path / "part", "--include", "a/", "--exclude", "*large")
    assert document(*words)["good"] is True
    assert document("verify", f"{layout}:v1", tmp_path / "part", status=6)["good"] is False


def test_verify_names_a_flipped_bit(tmp_path: Path, one: Made) -> None:
    write_layout(tmp_path / "layout", {"v1": one})
    extent = one.extents[one.entry(b"a/large").inode][5]
    frame = one.frames[extent.frame or 0]
    pack = one.manifest.packs[frame.pack].digest
    path = tmp_path / "layout" / "blobs" / "sha256" / pack.hex
    data = bytearray(path.read_bytes())
    data[frame.offset + 100] ^= 4
    path.write_bytes(data)
    reference = f"oci:{tmp_path}/layout:v1"
    found = document("verify", reference, "--packs", status=6)
    bad = [item for item in found["files"] if not item["good"]]
    assert [item["path"] for item in bad] == ["a/large"]
    finding = bad[0]["findings"][0]
    assert (finding["fileOffset"], finding["frame"], finding["pack"], finding["packOffset"]) == (
        extent.file_offset, frame.number, str(pack), frame.offset,
    )  # fmt: skip
    assert finding["origin"] == f"oci:{tmp_path}/layout"
    assert [item["pack"] for item in found["findings"] if item["what"] == "blob"] == [str(pack)]
    text = run("verify", reference, status=6).stdout.decode()
    assert f"BAD  a/large at {extent.file_offset}; frame: " in text
    assert document("verify", reference, "--sample", "100%", status=6)["findings"][0]["path"] == "a/large"
    assert error("pull", reference, tmp_path / "out", status=6)["code"] == "corrupt.bytes"
    assert run("cat", reference, "a/small").stdout == b"one"


@pytest.mark.parametrize("sample", ["0", "0%", "101%", "-1", "x", "1.5", "%"])
def test_samples_that_are_none(layout: str, sample: str) -> None:
    assert error("verify", f"{layout}:v1", "--sample", sample, status=2)["code"] == "usage"


def test_a_sample_can_be_taken_again(layout: str) -> None:
    first = document("verify", f"{layout}:v1", "--sample", "5")
    assert first["framesChecked"] == 5
    again = document("verify", f"{layout}:v1", "--sample", "5", "--seed", first["seed"])
    assert again["seed"] == first["seed"]


def test_options_that_exclude_each_other(layout: str, tmp_path: Path) -> None:
    for words in (
        ("verify", f"{layout}:v1", tmp_path, "--packs"),
        ("verify", f"{layout}:v1", tmp_path, "--sample", "1%"),
        ("verify", f"{layout}:v1", "--include", "x"),
    ):
        assert error(*words, status=2)["code"] == "usage"


def test_cp(layout: str, one: Made, tmp_path: Path) -> None:
    found = document("cp", f"{layout}:v1", f"oci:{tmp_path}/copy:new")
    assert found["digest"] == str(one.document.digest)
    assert document("verify", f"oci:{tmp_path}/copy:new", "--packs")["good"] is True
    assert document("cp", f"{layout}:v1", f"oci:{tmp_path}/copy:new")["sentBytes"] == 0
    assert error("cp", f"{layout}:absent", f"oci:{tmp_path}/copy:new", status=3)["code"] == "missing.manifest"


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "{}:v1"),
        ("ls", "-R", "oci:{source}/../other:v2"),
        ("diff", "oci:{source}/../other:v1", "oci:{source}/../other:v2"),
        ("tags", "{}"),
        ("pack", "{source}", "oci:{source}/../new:v1", "--no-base"),
        ("rm", "oci:{source}/../other:v1"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_waited_for_without_an_end(
    layout: str, one: Made, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that a verb makes has a deadline, or one that ends when the verb does."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("x")
    several_pages = "\n".join(f"file {number:04} text:{number}" for number in range(1500))
    write_layout(tmp_path / "other", {"v1": one, "v2": make(several_pages)})
    calls: list[tuple[str, float | None]] = []
    for name in ("read", "size", "manifest", "facts", "check_rights", "tags", "delete"):
        real = getattr(LayoutRepository, name)

        def call(self: LayoutRepository, *args: Any, name: str = name, real: Any = real) -> Any:
            deadline = next(arg for arg in args if isinstance(arg, Deadline))
            calls.append((name, deadline.left_s()))
            return real(self, *args)

        monkeypatch.setattr(LayoutRepository, name, call)
    # Pages are read when they are needed.
    monkeypatch.setattr("tonne.cli.environment.ReadSettings", partial(ReadSettings, whole_index_bytes=0))
    status = run_here(["--no-cache", *(word.format(layout, source=tmp_path / "source") for word in words)], Session())
    assert status == (1 if words[0] == "diff" else 0)
    assert calls
    assert [call for call in calls if call[1] is None] == []


def test_a_reader_that_goes_away(layout: str) -> None:
    """As `tonne cat | head -c 1`: no traceback, no error."""
    for words in (
        ("cat", f"{layout}:v1", "a/large"),
        ("ls", "-R", f"{layout}:v1"),
        ("--json", "inspect", f"{layout}:v1"),
    ):
        process = subprocess.Popen(
            [*COMMAND, "--no-cache", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        assert process.stdout is not None
        assert process.stderr is not None
        if words[0] == "cat":
            assert len(process.stdout.read(1)) == 1
        process.stdout.close()
        said = process.stderr.read()
        process.stderr.close()
        assert process.wait(30) == 0
        assert b"Traceback" not in said
        assert b"BrokenPipe" not in said
