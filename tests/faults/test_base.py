"""A base in another registry: its packs are copied, and can be checked as a whole alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.work import CHUNK_BYTES, Inputs, Place, place
from tonne.errors import CorruptBytes
from tonne.testing.faults import Fault, WrongBytes
from tonne.testing.registry_request import Request


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs.create(tmp_path_factory.mktemp("inputs"))


def _damaging(found: Place, inputs: Inputs, times: int | None) -> Fault:
    """A bit of the base's pack is wrong where it is copied."""
    pack = max(inputs.base.blobs, key=lambda digest: len(inputs.base.blobs[digest]))

    def copied(request: Request) -> bool:
        signed_in = "authorization" in request.headers
        return (
            signed_in and request.subject == str(pack) and request.headers.get("range", "").startswith("bytes=32768-")
        )

    assert len(inputs.base.blobs[pack]) > 3 * CHUNK_BYTES
    fault = Fault("blob-get", WrongBytes(50), times=times, when=copied)
    found.registry.faults.add(fault)
    return fault


@pytest.mark.parametrize("insist", [False, True], ids=["one try", "tries"])
def test_wrong_bytes_on_the_way_are_read_again(inputs: Inputs, tmp_path: Path, insist: bool) -> None:
    with place(inputs, tmp_path, "pack far") as found:
        fault = _damaging(found, inputs, 1)
        found.run(insist=insist, hasty=False)
        found.check_result()
        found.check_leftovers(0)
        assert [hit for hit, _ in found.registry.faults.fired] == [fault]


def test_wrong_bytes_at_rest_are_an_error(inputs: Inputs, tmp_path: Path) -> None:
    with place(inputs, tmp_path, "pack far") as found:
        _damaging(found, inputs, None)
        with pytest.raises(CorruptBytes, match="a blob has the wrong digest"):
            found.run(insist=True, hasty=False)
        assert 2 <= len(found.registry.faults.fired) <= 4
        assert found.registry.contents.manifest("c/d", "v2") is None
        assert found.registry.contents.uploads() == []
        found.registry.faults.clear()
        found.run(insist=True, hasty=False)
        found.check_result()
