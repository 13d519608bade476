"""Every fault at every kind of request of pull and copy: the work succeeds with retries, and tells the fault without.

Runs in this process, against a real HTTP server with faults and with stall times of milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.image.sketch import Made, make, put, write_layout
from tests.image.test_pull import check_equal
from tonne.clock import Deadline
from tonne.errors import TonneError
from tonne.image.copy import CopyReport, copy
from tonne.image.opening import open_image
from tonne.image.pull import pull
from tonne.image.verify import verify_blobs
from tonne.image.verify_frames import VerifyReport
from tonne.model import parse_reference
from tonne.progress import Silent
from tonne.settings import NetworkSettings, ReadSettings, Settings
from tonne.source.compose import compose_reader, open_repository
from tonne.source.memory import MemoryRepository
from tonne.source.seam import Repository
from tonne.testing.faults import (
    AckLess,
    AckNothing,
    Action,
    DropBody,
    Fault,
    Forget,
    HtmlBody,
    IgnoreRange,
    LongBody,
    LostSession,
    NoContentLength,
    PatchAnswers201,
    Reset,
    ShortBody,
    SlowBody,
    Stall,
    Status,
    WrongBytes,
    WrongContentRange,
)
from tonne.testing.registry import FaultRegistry

TREE = """
    level 0
    frame 16384
    lanes 2
    dir d
    file d/large seed:1:200000
    file d/small text:one
    link d/link small
"""
NETWORK = NetworkSettings(
    stall_timeout_s=0.4, attempts=5, backoff_first_s=0.01, backoff_max_s=0.05, connections=3, request_bytes=65536
)
SETTINGS = Settings(network=NETWORK, read=ReadSettings(whole_index_bytes=0))
RAW = replace(SETTINGS, network=replace(NETWORK, attempts=1, renew=False))

ANY: dict[str, Action] = {
    "500": Status(500),
    "503": Status(503),
    "503 retry-after": Status(503, retry_after=0.05),
    "429": Status(429, retry_after=0),
    "408": Status(408),
    "reset": Reset(),
    "stall": Stall(3.0),
}
READ: dict[str, Action] = {
    **ANY,
    "html": HtmlBody(),
    "reset in the body": Reset(after_bytes=100),
    "stall in the body": Stall(3.0, after_bytes=100),
    "wrong bytes": WrongBytes(50),
    "short": ShortBody(10),
    "short, unannounced": ShortBody(10, announced=False),
    "long": LongBody(3),
    "no length": NoContentLength(),
    "chunked": NoContentLength(chunked=True),
}
RANGE_ONLY: dict[str, Action] = {"ignored range": IgnoreRange(), "wrong content-range": WrongContentRange()}
PATCH: dict[str, Action] = {
    **ANY,
    "reset in the body": Reset(after_bytes=5000),
    "lost session": LostSession(),
    "less acknowledged": AckLess(100),
    "nothing acknowledged": AckNothing(),
    "body dropped": DropBody(),
    "201": PatchAnswers201(),
}
# What a registry may do without harm: the work goes on without any retry.  (libcurl itself asks again when a connection
# that it kept was closed before a byte of the answer came, as every client of HTTP does.)
HARMLESS = {"no length", "chunked", "ignored range", "slow"}


@pytest.fixture(scope="module")
def made() -> Made:
    return make(TREE)


@pytest.fixture
def registry() -> Iterator[FaultRegistry]:
    with FaultRegistry() as registry:
        yield registry


def hold(registry: FaultRegistry, made: Made) -> None:
    for data in made.blobs.values():
        registry.add_blob("a/b", data)
    registry.add_manifest("a/b", "v1", made.document.data, made.document.media_type)


def wait_for_fault(registry: FaultRegistry, count: int) -> None:
    """A test that injects a fault asks whether there was one; a stall is on record only when it is over."""
    limit_s = time.monotonic() + 10
    while len(registry.faults.fired) < count:
        assert time.monotonic() < limit_s, "the fault did not happen"
        time.sleep(0.01)


def pulled(registry: FaultRegistry, folder: Path, settings: Settings) -> None:
    reference = parse_reference(f"{registry.address}/a/b:v1")
    source = compose_reader([open_repository(reference, settings)], settings)
    try:
        pull(open_image(source, "v1", settings, Deadline.after(20)), folder, settings, Silent())
    finally:
        source.close()


CASES_OF_PULL = [
    *(("manifest-get", name, action, 1) for name, action in READ.items()),
    *(("blob-get", name, action, nth) for name, action in READ.items() for nth in (1, 4)),
    *(("blob-get", name, action, nth) for name, action in RANGE_ONLY.items() for nth in (2, 5)),
    ("blob-get", "slow", SlowBody(400_000), 4),
]


@pytest.mark.parametrize(
    ("kind", "name", "action", "nth"), CASES_OF_PULL, ids=[f"{c[0]}-{c[3]}-{c[1]}" for c in CASES_OF_PULL]
)
def test_a_pull_survives(
    made: Made, registry: FaultRegistry, tmp_path: Path, kind: str, name: str, action: Action, nth: int
) -> None:
    hold(registry, made)
    registry.faults.add(Fault(kind, action, nth))
    if name in HARMLESS or (kind, name) == ("blob-get", "reset"):
        pulled(registry, tmp_path / "raw", RAW)
        check_equal(made, tmp_path / "raw")
    else:
        with pytest.raises(TonneError) as raised:
            pulled(registry, tmp_path / "raw", RAW)
        assert raised.value.code not in ("internal", "interrupted")
    wait_for_fault(registry, 1)
    registry.faults.clear()
    registry.faults.add(Fault(kind, action, nth))
    pulled(registry, tmp_path / "target", SETTINGS)
    check_equal(made, tmp_path / "target")
    wait_for_fault(registry, 2)


def copied(source: Repository, registry: FaultRegistry, settings: Settings, journal: Path | None) -> CopyReport:
    target = open_repository(parse_reference(f"{registry.address}/c/d:v2"), settings)
    reader = compose_reader([source], settings)
    try:
        return copy(reader, "v1", small_chunks(target), "v2", Silent(), journal_folder=journal)
    finally:
        target.close()


def small_chunks(target: Repository) -> Repository:
    """Make a repository take small chunks, so that a blob of this test has several."""
    facts = target.facts
    target.facts = lambda deadline: replace(facts(deadline), chunk_bytes=32768)  # type: ignore[method-assign]
    return target


OF_COPY = ("upload-start", "upload-finish", "blob-head", "manifest-put")
CASES_OF_COPY = [
    *(("upload-patch", name, action, nth) for name, action in PATCH.items() for nth in (1, 3)),
    *((kind, name, action, 1) for kind in OF_COPY for name, action in ANY.items()),
    ("upload-finish", "lost session", LostSession(), 1),
    ("manifest-put", "forgotten blob", Forget(), 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "action", "nth"), CASES_OF_COPY, ids=[f"{c[0]}-{c[3]}-{c[1]}" for c in CASES_OF_COPY]
)
def test_a_copy_survives(
    made: Made, registry: FaultRegistry, tmp_path: Path, kind: str, name: str, action: Action, nth: int
) -> None:
    source = MemoryRepository()
    put(source, made)
    registry.faults.add(Fault(kind, action, nth))
    copied(source, registry, SETTINGS, tmp_path / "journal")
    wait_for_fault(registry, 1)
    registry.faults.clear()
    assert list((tmp_path / "journal").glob("*")) == []
    reference = parse_reference(f"{registry.address}/c/d:v2")
    reader = compose_reader([open_repository(reference, SETTINGS)], SETTINGS)
    try:
        image = open_image(reader, "v2", SETTINGS, Deadline.after(20))
        assert image.digest == made.document.digest
        report = VerifyReport()
        verify_blobs(image, SETTINGS, Silent(), report)
        assert report.good
    finally:
        reader.close()


def test_a_copy_from_a_registry_with_faults(made: Made, registry: FaultRegistry, tmp_path: Path) -> None:
    """Faults of reading, all of them by chance, under a copy to a layout."""
    hold(registry, made)
    for action in (*READ.values(), *RANGE_ONLY.values()):
        registry.faults.add(Fault(("blob-get", "manifest-get"), action, times=None, probability=0.02))
    source = open_repository(parse_reference(f"{registry.address}/a/b:v1"), SETTINGS)
    target = open_repository(parse_reference(f"oci:{tmp_path}/layout:v2"), SETTINGS)
    reader = compose_reader([source], SETTINGS)
    report = copy(reader, "v1", small_chunks(target), "v2", Silent())
    reader.close()
    assert report.digest == made.document.digest
    write_layout(tmp_path / "expected", {"v2": made})
    for digest in made.blobs:
        assert (tmp_path / "layout/blobs/sha256" / digest.hex).read_bytes() == made.blobs[digest]
