"""What a fault registry holds: blobs, manifests, tags and uploads in progress, in memory or in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonne.testing.registry_body import Content, FileContent, FlippedContent, MemoryContent

_BLOBS, _UPLOADS, _STATE = "blobs", "uploads", "repositories.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A stored manifest: its bytes and the media type that it was put with."""

    data: bytes
    media_type: str


@dataclass(slots=True)
class Repository:
    """What one repository links to.  Digests are as text."""

    blobs: set[str] = field(default_factory=set)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


class Superseded(Exception):
    """Another request has taken the upload over, or it is gone."""


class Upload:
    """One blob on its way in.  A request `take`s it, and from then on the one before it can write no more.

    Any thread may call; `_lock` guards all of it and is never held while bytes are waited for.
    """

    def __init__(self, repository: str, folder: Path | None) -> None:
        self.id = uuid.uuid4().hex
        self.repository = repository
        self.size_bytes = 0
        self.states = [uuid.uuid4().hex[:8]]
        self.chunk_was_short = False  # shorter than the least allowed: then it must have been the last
        self.claimed_bytes = 0  # acknowledged and not kept
        self._lock = threading.Lock()
        self._owner: object | None = None
        self._busy = False
        self._gone = False
        self._hash: Any = hashlib.sha256()
        self._path = folder / self.id if folder else None
        if self._path:
            self._path.touch()
        self._data = bytearray()

    def take(self) -> tuple[object, bool]:
        """Become the only one who may write; also says whether a request was still at it."""
        with self._lock:
            if self._gone:
                raise Superseded("the upload is gone")
            self._owner, was_busy = object(), self._busy
            self._busy = True
            return self._owner, was_busy

    @property
    def gone(self) -> bool:
        """Committed or dropped."""
        return self._gone

    def release(self, owner: object) -> None:
        with self._lock:
            if owner is self._owner:
                self._busy = False

    def append(self, owner: object, piece: memoryview) -> None:
        with self._lock:
            if self._gone or owner is not self._owner:
                raise Superseded("another request has taken the upload over")
            if self._path:
                # Opened anew for each piece: an upload may be left, and then nobody closes anything.
                with self._path.open("r+b") as file:
                    file.seek(self.size_bytes)
                    file.write(piece)
            else:
                self._data += piece
            self.size_bytes += piece.nbytes
            if self._hash is not None:
                self._hash.update(piece)

    def truncate(self, size_bytes: int) -> None:
        """Lose the end of what was received."""
        with self._lock:
            if size_bytes < self.size_bytes:
                self.size_bytes = size_bytes
                self._hash = None
                if self._path:
                    os.truncate(self._path, size_bytes)
                else:
                    del self._data[size_bytes:]

    def next_state(self) -> str:
        """A new state for the next Location."""
        with self._lock:
            self.states.append(uuid.uuid4().hex[:8])
            return self.states[-1]

    def commit(self, digest: str, blobs: Path | None) -> Content | None:
        """End the upload: its content if it has that digest, else None and it is as it was."""
        algorithm, _, wanted = digest.partition(":")
        with self._lock:
            if algorithm == "sha256" and self._hash is not None:
                found = self._hash.hexdigest()
            elif self._path:
                with self._path.open("rb") as file:
                    found = hashlib.file_digest(file, algorithm).hexdigest()
            else:
                found = hashlib.new(algorithm, self._data).hexdigest()
            if found != wanted:
                return None
            self._gone = True
            if self._path is None or blobs is None:
                return MemoryContent(self._data)
            target = blobs / digest.replace(":", "-")
            os.replace(self._path, target)
            return FileContent(target)

    def drop(self) -> None:
        with self._lock:
            self._gone = True
            self._data = bytearray()
            if self._path:
                with contextlib.suppress(FileNotFoundError):
                    self._path.unlink()


class Contents:
    """Everything that a registry keeps.

    Any thread may call; `_lock` guards the dictionaries.  With a folder, blobs are files in it, and repositories are
    written to a document at each change, so that another process may go on; uploads live with this object, which is
    what "kept" means when the server restarts.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, Content] = {}
        self._repositories: dict[str, Repository] = {}
        self._uploads: dict[str, Upload] = {}
        self._folder = folder
        if folder:
            (folder / _BLOBS).mkdir(parents=True, exist_ok=True)
            (folder / _UPLOADS).mkdir(exist_ok=True)
            self._load(folder)

    # --- blobs

    def add_blob(self, repository: str, digest: str, content: Content) -> None:
        with self._lock:
            self._blobs[digest] = content
            self._repositories.setdefault(repository, Repository()).blobs.add(digest)
            self._save()

    def put_bytes(self, repository: str, data: bytes | bytearray | memoryview) -> str:
        """Store a blob that is in memory; its digest."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        content: Content = MemoryContent(data)
        if self._folder:
            path = self._folder / _BLOBS / digest.replace(":", "-")
            path.write_bytes(data)
            content = FileContent(path)
        self.add_blob(repository, digest, content)
        return digest

    def blob(self, repository: str, digest: str) -> Content | None:
        """A blob that the repository links to."""
        with self._lock:
            found = self._repositories.get(repository)
            return self._blobs.get(digest) if found and digest in found.blobs else None

    def any_blob(self, digest: str) -> Content | None:
        """A blob, whoever links to it: the object store does not ask."""
        with self._lock:
            return self._blobs.get(digest)

    def link(self, repository: str, digest: str) -> None:
        with self._lock:
            self._repositories.setdefault(repository, Repository()).blobs.add(digest)
            self._save()

    def unlink(self, repository: str, digest: str) -> bool:
        with self._lock:
            found = self._repositories.get(repository)
            if found is None or digest not in found.blobs:
                return False
            found.blobs.discard(digest)
            self._save()
            return True

    def forget(self, digest: str) -> bool:
        """Lose a blob everywhere; False when it was not there."""
        with self._lock:
            there = self._blobs.pop(digest, None) is not None
            for repository in self._repositories.values():
                there = digest in repository.blobs or there
                repository.blobs.discard(digest)
            self._save()
            return there

    def damage(self, digest: str, offset: int, bit: int = 0) -> None:
        """Flip one bit of a blob where it lies."""
        with self._lock:
            self._blobs[digest] = FlippedContent(self._blobs[digest], offset, bit)

    def digests(self, repository: str) -> set[str]:
        with self._lock:
            found = self._repositories.get(repository)
            return set(found.blobs) if found else set()

    # --- manifests and tags

    def repositories(self) -> list[str]:
        with self._lock:
            return sorted(self._repositories)

    def put_manifest(self, repository: str, digest: str, manifest: Manifest, tag: str = "") -> None:
        with self._lock:
            found = self._repositories.setdefault(repository, Repository())
            found.manifests[digest] = manifest
            if tag:
                found.tags[tag] = digest
            self._save()

    def manifest(self, repository: str, name: str) -> tuple[str, Manifest] | None:
        """Digest and manifest that a tag or a digest names."""
        with self._lock:
            found = self._repositories.get(repository)
            if found is None:
                return None
            digest = found.tags.get(name, name)
            return (digest, found.manifests[digest]) if digest in found.manifests else None

    def manifests(self, repository: str) -> dict[str, Manifest]:
        with self._lock:
            found = self._repositories.get(repository)
            return dict(found.manifests) if found else {}

    def delete_manifest(self, repository: str, name: str) -> bool:
        """A digest goes with its tags; a tag goes alone."""
        with self._lock:
            found = self._repositories.get(repository)
            if found is None or (name not in found.tags and name not in found.manifests):
                return False
            if name in found.tags:
                del found.tags[name]
            else:
                del found.manifests[name]
                found.tags = {tag: digest for tag, digest in found.tags.items() if digest != name}
            self._save()
            return True

    def tags(self, repository: str) -> dict[str, str] | None:
        """Tags with their digests; None when there is no such repository."""
        with self._lock:
            found = self._repositories.get(repository)
            return dict(sorted(found.tags.items())) if found else None

    # --- uploads

    def start_upload(self, repository: str) -> Upload:
        upload = Upload(repository, self._folder / _UPLOADS if self._folder else None)
        with self._lock:
            self._uploads[upload.id] = upload
        return upload

    def upload(self, repository: str, name: str) -> Upload | None:
        with self._lock:
            found = self._uploads.get(name)
            return found if found and found.repository == repository else None

    def uploads(self) -> list[Upload]:
        """Those in progress, the oldest first."""
        with self._lock:
            return list(self._uploads.values())

    def finish_upload(self, upload: Upload, digest: str) -> bool:
        """Turn an upload into a blob; False when its bytes have another digest, and then it is gone."""
        content = upload.commit(digest, self._folder / _BLOBS if self._folder else None)
        if content is None:
            self.drop_upload(upload.id)
            return False
        self.add_blob(upload.repository, digest, content)
        with self._lock:
            self._uploads.pop(upload.id, None)
        return True

    def drop_upload(self, name: str) -> bool:
        with self._lock:
            found = self._uploads.pop(name, None)
        if found:
            found.drop()
        return found is not None

    def drop_uploads(self) -> None:
        for upload in self.uploads():
            self.drop_upload(upload.id)

    # --- the folder

    def _save(self) -> None:
        if self._folder is None:
            return
        state = {
            name: {
                "blobs": sorted(repository.blobs),
                "manifests": {
                    digest: [manifest.media_type, manifest.data.decode()]
                    for digest, manifest in repository.manifests.items()
                },
                "tags": repository.tags,
            }
            for name, repository in self._repositories.items()
        }
        partial = self._folder / f"{_STATE}.part"
        partial.write_text(json.dumps(state))
        os.replace(partial, self._folder / _STATE)

    def _load(self, folder: Path) -> None:
        for path in (folder / _BLOBS).iterdir():
            self._blobs[path.name.replace("-", ":")] = FileContent(path)
        for path in (folder / _UPLOADS).iterdir():
            path.unlink()
        if not (folder / _STATE).exists():
            return
        for name, state in json.loads((folder / _STATE).read_text()).items():
            manifests = {digest: Manifest(text.encode(), kind) for digest, (kind, text) in state["manifests"].items()}
            self._repositories[name] = Repository(set(state["blobs"]), manifests, state["tags"])
