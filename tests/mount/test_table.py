"""The table of mounts, as the kernel writes it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tonne.mount.table import Mounted, mount_at, mounts, parse_mounts

names = st.binary(min_size=1, max_size=30).filter(lambda name: b"\0" not in name)


def escaped(name: bytes) -> bytes:
    """As the kernel's mangle() does it."""
    return b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in name)


@given(names, names, st.lists(st.sampled_from([b"shared:1", b"master:2", b"propagate_from:3"]), max_size=3))
def test_names_come_back_whatever_is_in_them(point: bytes, source: bytes, optional: list[bytes]) -> None:
    extra = b"".join(b" " + word for word in optional)
    line = b"36 35 0:42 / /%s ro,nosuid%s - fuse.tonne %s ro\n" % (escaped(point), extra, escaped(source))
    assert list(parse_mounts(line)) == [
        Mounted(36, "0:42", b"/" + point, "fuse.tonne", source.decode("utf-8", "replace"))
    ]


def test_lines_that_are_not_understood_are_left_out() -> None:
    good = b"1 2 0:3 / / rw - ext4 /dev/vda rw"
    for bad in (
        b"",
        b"nonsense",
        b"1 2 0:3 / / rw ext4 /dev/vda",
        b"x 2 0:3 / / rw - ext4 /dev/vda rw",
        b"1 2 - ext4 a",
    ):
        assert list(parse_mounts(bad + b"\n" + good)) == list(parse_mounts(good))


def test_this_machines_table(tmp_path: Path) -> None:
    found = mounts()
    assert any(mounted.point == b"/" for mounted in found)
    assert any(mounted.point == b"/proc" and mounted.kind == "proc" for mounted in found)
    here = mount_at("/proc")
    assert here is not None
    assert not here.is_ours
    (tmp_path / "link").symlink_to("/proc")
    assert mount_at(tmp_path / "link") == here
    assert mount_at(tmp_path) is None
    assert mount_at(tmp_path / "missing") is None
