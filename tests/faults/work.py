"""The work that the fault matrix is about, each on a registry of its own: what it does and what it leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.image.sketch import Made, make
from tests.image.test_pull import check_equal
from tonne.clock import Deadline
from tonne.image.copy import copy
from tonne.image.opening import Image, open_image
from tonne.image.pack import BaseSource, PackOptions, pack_folder
from tonne.image.pull import pull
from tonne.image.view import View
from tonne.model import Digest, Entry, Reference, parse_reference
from tonne.progress import Silent
from tonne.settings import CacheSettings, NetworkSettings, PackSettings, ReadSettings, Settings
from tonne.source.compose import compose_reader, open_repository
from tonne.source.memory import MemoryRepository
from tonne.source.seam import Document, Repository, Source
from tonne.store import Store
from tonne.testing.registry import Auth, FaultRegistry, Rules
from tonne.testing.registry_body import all_bytes

CHUNK_BYTES = 32768  # so that a blob of these images has several
PATIENT_S, HASTY_S = (
    20.0,
    0.3,
)  # stall times: where nothing stalls a busy machine must not look as if, and where it does
_TREE = """
    level 0
    frame 16384
    lanes 2
    dir d
    file d/large seed:1:200000
    file d/small text:one
    hard d/same d/small
    link d/link small
"""


@dataclass(frozen=True)
class Inputs:
    """What all cases share: an image to read, a folder to pack, and the image that it is packed against."""

    made: Made
    folder: Path
    base: MemoryRepository
    files: dict[bytes, bytes]

    @classmethod
    def create(cls, folder: Path) -> Inputs:
        source = folder / "source"
        (source / "d").mkdir(parents=True)
        files = {
            b"shared": hashlib.shake_256(b"shared").digest(120_000),
            b"d/new": hashlib.shake_256(b"new").digest(200_000),
            b"d/text": b"a text\n" * 500,
        }
        for name, data in files.items():
            (source / name.decode()).write_bytes(data)
        (source / "d" / "link").symlink_to("text")
        before = folder / "before"
        before.mkdir()
        (before / "shared").write_bytes(files[b"shared"])
        base = MemoryRepository()
        reference = parse_reference("127.0.0.1:1/e/base:v0")
        cache = CacheSettings(folder=folder / "cache")
        pack_folder(before, reference, base, base, PackOptions(), Settings(cache=cache), bases=())
        return cls(make(_TREE), source, base, files)


class Place:
    """A registry that holds the inputs, and the folders of one client.  One thread."""

    def __init__(self, inputs: Inputs, registry: FaultRegistry, folder: Path, operation: str) -> None:
        self.inputs = inputs
        self.registry = registry
        self.operation = operation
        self.cache = folder / "cache"
        self.target = folder / "target"
        self.seen: dict[bytes, bytes] = {}
        for data in inputs.made.blobs.values():
            registry.add_blob("a/b", data)
        for data in inputs.base.blobs.values():
            registry.add_blob("e/base", data)
        made = inputs.made.document
        registry.add_manifest("a/b", "v1", made.data, made.media_type)
        base = inputs.base.manifest("v0", Deadline())
        registry.add_manifest("e/base", "v0", base.data, base.media_type)
        # Of what is copied, one blob lies where it can be linked from.
        registry.add_blob("e/f", inputs.made.blobs[inputs.made.manifest.config.digest])

    # --- doing it

    def run(self, *, insist: bool, hasty: bool) -> None:
        """Do the work; `insist`: try again and renew."""
        network = NetworkSettings(
            stall_timeout_s=HASTY_S if hasty else PATIENT_S,
            attempts=6 if insist else 1,
            backoff_first_s=0.005,
            backoff_max_s=0.02,
            connections=3,
            request_bytes=65536,
            renew=insist,
            username="user",
            password="secret",
        )
        settings = Settings(
            network=network,
            cache=CacheSettings(folder=self.cache),
            pack=PackSettings(threads=1),
            read=ReadSettings(whole_index_bytes=0, read_ahead_bytes_max=65536),
        )
        {
            "pack": self._pack,
            "pack far": self._pack,
            "read": self._read,
            "pull": self._pull,
            "cp": self._copy,
            "cp whole": self._copy,
        }[self.operation](settings)

    def _pack(self, settings: Settings) -> None:
        reference = self._reference("c/d:v2")
        # By another name the registry is another one to the client, which then copies and does not mount.
        host = (
            self.registry.address
            if self.operation == "pack"
            else f"localhost:{self.registry.address.rpartition(':')[2]}"
        )
        base = parse_reference(f"{host}/e/base:v0")
        target = _small_chunks(open_repository(reference, settings))
        with _reader(reference, settings) as reader, _reader(base, settings) as base_reader:
            bases = [BaseSource(base, base_reader)]
            pack_folder(self.inputs.folder, reference, target, reader, PackOptions(), settings, bases=bases)
        target.close()

    def _read(self, settings: Settings) -> None:
        """As a mount does it, with a store."""
        reference = self._reference("a/b:v1")
        store = Store.open(settings.cache)
        try:
            with _reader(reference, settings) as reader:
                image = open_image(reader, reference.name, settings, Deadline.after(30), store)
                self.seen = _contents(image, settings)
        finally:
            store.close()

    def _pull(self, settings: Settings) -> None:
        reference = self._reference("a/b:v1")
        with _reader(reference, settings) as reader:
            image = open_image(reader, reference.name, settings, Deadline.after(30))
            pull(image, self.target, settings, Silent())

    def _copy(self, settings: Settings) -> None:
        whole = self.operation == "cp whole"
        target = _small_chunks(open_repository(self._reference("c/d:v2"), settings), whole)
        with _reader(self._reference("a/b:v1"), settings) as reader:
            copy(reader, "v1", target, "v2", Silent(), mount_from="" if whole else "e/f", journal_folder=self.cache)
        target.close()

    def _reference(self, text: str) -> Reference:
        return parse_reference(f"{self.registry.address}/{text}")

    # --- what came of it

    def check_result(self) -> None:
        """The work's result is there, and right to the byte."""
        made = self.inputs.made
        if self.operation == "read":
            files = {path: entry for path, entry in zip(made.paths, made.entries, strict=True) if entry.is_file}
            assert self.seen == {path: _content_of(made, entry) for path, entry in files.items()}
        elif self.operation == "pull":
            check_equal(made, self.target)
        elif self.operation in ("cp", "cp whole"):
            self._check_blobs({digest: len(data) for digest, data in made.blobs.items()})
            found = self.registry.contents.manifest("c/d", "v2")
            assert found is not None
            assert found[1].data == made.document.data
        else:
            image = self._packed()
            self._check_blobs({item.digest: item.size_bytes for item in image.manifest.blobs})
            seen = _contents(image, Settings())
            image.fetcher.source.close()
            assert seen == self.inputs.files

    def digest(self) -> str:
        """Of the manifest that was packed."""
        found = self.registry.contents.manifest("c/d", "v2")
        assert found is not None
        return found[0]

    def _check_blobs(self, blobs: dict[Digest, int]) -> None:
        for digest, size_bytes in blobs.items():
            content = self.registry.contents.blob("c/d", str(digest))
            assert content is not None, digest
            data = all_bytes(content)
            assert len(data) == size_bytes
            assert digest.matches(data)

    def _packed(self) -> Image:
        """Read past HTTP, straight from what the registry holds."""
        repository = MemoryRepository()
        for digest in self.registry.contents.digests("c/d"):
            content = self.registry.contents.blob("c/d", digest)
            assert content is not None
            repository.add(all_bytes(content))
        found = self.registry.contents.manifest("c/d", "v2")
        assert found is not None
        name, manifest = found
        parsed = Digest.parse(name)
        repository.manifests[parsed] = Document(manifest.data, manifest.media_type, parsed)
        return open_image(repository, name, Settings(), Deadline.after(30))

    def check_leftovers(self, sessions: int) -> None:
        """No journal, no unfinished file, and at most so many upload sessions."""
        for name in ("pack", "copy"):
            assert sorted((self.cache / name).rglob("*")) == []
        assert list(self.cache.rglob("*.new")) == []
        left = self.registry.contents.uploads()
        assert len(left) <= sessions, [(upload.repository, upload.size_bytes) for upload in left]


def _content_of(made: Made, entry: Entry) -> bytes:
    """A file's bytes, which stand there under one of its names."""
    same = (path for path, other in zip(made.paths, made.entries, strict=True) if other.inode == entry.inode)
    return next(made.contents[path] for path in same if path in made.contents)


def _contents(image: Image, settings: Settings) -> dict[bytes, bytes]:
    """Every file's bytes by path, through a view, in reads that begin and end inside of frames."""
    view = View(image, settings)
    seen: dict[bytes, bytes] = {}
    try:
        for entry in image.index.walk(Deadline.after(30)):
            if entry.is_file:
                file = view.open(entry.inode, Deadline.after(30))
                pieces = [bytes(file.read(at, 50_000, Deadline.after(30))) for at in range(0, entry.size_bytes, 50_000)]
                seen[image.index.path(entry, Deadline.after(30))] = b"".join(pieces)
    finally:
        view.close()
    return seen


@contextmanager
def _reader(reference: Reference, settings: Settings) -> Iterator[Source]:
    source = compose_reader([open_repository(reference, settings)], settings)
    try:
        yield source
    finally:
        source.close()


def _small_chunks(target: Repository, whole: bool = False) -> Repository:
    """The target with other limits: small chunks, or none."""
    facts = target.facts
    target.facts = lambda deadline: replace(  # type: ignore[method-assign]
        facts(deadline), chunk_bytes=CHUNK_BYTES, chunked=not whole
    )
    return target


@contextmanager
def place(inputs: Inputs, folder: Path, operation: str, *, redirect: bool = False) -> Iterator[Place]:
    """A registry of its own, that asks for tokens, and a client beside it."""
    with FaultRegistry(Rules(redirect=redirect, auth=Auth())) as registry:
        yield Place(inputs, registry, folder, operation)
