"""Bringing blobs of known digest into a sink: there already, mounted, or sent.

A session of an earlier run goes on where the sink acknowledged.  hashlib cannot save the state of a SHA-256, and
reading the acknowledged part again would cost what resuming saves; so a resumed blob is judged by the sink, which
commits under the digest or not at all, and one that it refuses is sent once more from the start, hashed on its way.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

from tonne.clock import Deadline
from tonne.errors import Corrupt, CorruptBytes, Missing, Refused, SessionLost, TonneError
from tonne.image.upload_notes import UploadNotes
from tonne.model import Blob, Digest
from tonne.source.seam import CANCEL_S, Priority, Sink, SinkFacts, Source, Upload

CHUNK_BYTES = 16 * 1024 * 1024  # of ours, where a sink would take larger ones: some are held at once
RESTARTS_MAX = 3  # of one blob after lost sessions; a registry that forgets more often will not get it at all
READINGS_MAX = 2  # of a blob that comes with the wrong digest: the second time it is stored so
BLOBS_AT_ONCE = 4  # uploads of one blob go strictly in order, so speed comes from several blobs

Reading = Callable[[int, memoryview], None]
"""Fills a buffer with a blob's bytes from an offset on."""


class Way(enum.Enum):
    """How bytes came to be in the sink."""

    PRESENT = "present"  # they were there
    MOUNTED = "mounted"  # linked from another repository
    RESUMED = "resumed"  # acknowledged to an earlier run
    SENT = "sent"  # by this one


def chunk_size(facts: SinkFacts) -> int:
    """Bytes of a chunk that the sink takes and we can hold; more than `CHUNK_BYTES` only where the sink insists."""
    size = max(min(facts.chunk_bytes, CHUNK_BYTES), 1)
    if not facts.chunked:
        return size  # pieces of one request: what the sink insists on is not about them
    size = max(size, facts.chunk_bytes_min)
    return size if facts.chunk_bytes_max is None else min(size, facts.chunk_bytes_max)


def cancel_upload(upload: Upload) -> None:
    """Have the sink forget a session, as far as it can be reached; after a stop too, which ends other deadlines."""
    upload.cancel(Deadline.after(CANCEL_S))


def cancel_noted(sink: Sink, notes: UploadNotes, key: str) -> None:
    """Have the sink forget the session of a note, if there is one, and remove the note."""
    token = notes.token(key)
    if token is not None:
        try:
            cancel_upload(sink.resume(token, Deadline.after(CANCEL_S)))
        except TonneError:
            pass  # registries forget sessions by themselves, in a week
    notes.forget(key)


def cancel_all_noted(sink: Sink, notes: UploadNotes) -> None:
    """The same for every note there is."""
    for key in notes.noted():
        cancel_noted(sink, notes, key)


def note_key(digest: Digest) -> str:
    """What the session of a blob is noted under."""
    return f"{digest.algorithm}-{digest.hex}"


class BlobCopier:
    """Brings blobs into a sink.  Any thread may call, each for another blob.

    After an error nothing of the blob is visible; its session goes on in the next run where there are notes, and is
    cancelled where there are none.  After a crash the notes say which sessions there are.  Holds one chunk of
    `chunk_size` for each blob on its way.
    """

    def __init__(
        self,
        sink: Sink,
        facts: SinkFacts,
        deadline: Deadline,
        notes: UploadNotes | None,
        *,
        check: Callable[[], None] = lambda: None,
        count: Callable[[Way, int], None] = lambda way, size_bytes: None,
        on_event: Callable[[TonneError], None] = lambda error: None,
    ) -> None:
        """
        Args:
            check: called before each chunk; raises to stop.
            count: told of bytes and how they came, from any thread.
            on_event: told of errors that did not come through.
        """
        self._sink = sink
        self._deadline = deadline
        self._notes = notes
        self._check = check
        self._count = count
        self._on_event = on_event
        self._chunked = facts.chunked
        self._chunk_bytes = chunk_size(facts)

    # --- without sending ---

    def is_there(self, blob: Blob, mount_from: str = "") -> bool:
        """Whether the blob is at the sink, or could be mounted there."""
        if self._sink.has(blob.digest, self._deadline) == blob.size_bytes:
            self._settled(blob, Way.PRESENT)
            return True
        return self.mounted(blob, mount_from)

    def mounted(self, blob: Blob, mount_from: str) -> bool:
        """Have the blob linked from another repository; False where that cannot be (or `mount_from` is empty)."""
        if not mount_from:
            return False
        try:
            if not self._sink.mount(blob, mount_from, self._deadline):
                return False
        except (Refused, Missing):
            return False  # no right to read there through the sink's session: then it is sent
        self._settled(blob, Way.MOUNTED)
        return True

    def _settled(self, blob: Blob, way: Way) -> None:
        if self._notes is not None:
            # Whoever stored it need not have been the session that an earlier run has begun.
            cancel_noted(self._sink, self._notes, note_key(blob.digest))
        self._count(way, blob.size_bytes)

    # --- sending ---

    def copy(self, blob: Blob, source: Source, advance: Callable[[int], None] = lambda size_bytes: None) -> None:
        """Send a blob that `source` has; as `send`."""

        def read(offset: int, out: memoryview) -> None:
            source.read(blob, offset, out, self._deadline, None, Priority.BACKGROUND)

        self.send(blob, read, source.origin, advance)

    def send(
        self, blob: Blob, read: Reading, where: str, advance: Callable[[int], None] = lambda size_bytes: None
    ) -> None:
        """Send a blob, whether it is there or not; `CorruptBytes` naming `where` when it comes with another digest.

        `advance` is told of bytes that are done, in all once the blob's length, however often it starts over.
        """
        told = _Told(advance)
        if self._chunked and blob.size_bytes > self._chunk_bytes:
            self._stream(blob, read, where, told)
        else:
            self._put(blob, read, where, told)
        told.reached(blob.size_bytes)

    def _put(self, blob: Blob, read: Reading, where: str, told: _Told) -> None:
        """Send a blob in one request.  The sink tries that again; what was read wrongly is ours to read again."""
        wrong = False

        def chunks() -> Iterator[memoryview]:
            nonlocal wrong
            hasher = blob.digest.hasher()
            at = 0
            while at < blob.size_bytes:
                self._check()
                # A buffer of its own each time: the sink may still hold the one before.
                chunk = memoryview(bytearray(min(self._chunk_bytes, blob.size_bytes - at)))
                read(at, chunk)
                hasher.update(chunk)
                at += len(chunk)
                if at == blob.size_bytes and hasher.hexdigest() != blob.digest.hex:
                    wrong = True
                    raise _wrong(blob, where)
                self._count(Way.SENT, len(chunk))
                yield chunk
                told.reached(at)

        if self._notes is not None:
            cancel_noted(self._sink, self._notes, note_key(blob.digest))
        for left in reversed(range(READINGS_MAX)):
            try:
                self._sink.put(blob, chunks, self._deadline, lambda token: self._keep(blob, token, synced=False))
                break
            except CorruptBytes as error:
                if not wrong or not left:
                    raise
                wrong = False
                self._on_event(error)
        # After an error the note stays: the sink has cancelled the session if it could be reached.
        self._forget(blob)

    def _stream(self, blob: Blob, read: Reading, where: str, told: _Told) -> None:
        """Send a blob in chunks, going on with an earlier run's session if there is one.

        It starts over, a few times, when the session is lost, and when the sink says that it has other bytes than were
        sent: some registries acknowledge bodies that they drop.  It starts over once when wrong bytes were read: only
        the whole can be checked, so nobody has read a part of it again.
        """
        readings = 0
        upload = self._resumed(blob)
        for left in reversed(range(RESTARTS_MAX + 1)):
            if upload is None:
                upload = self._started(blob)
            try:
                failure: TonneError | None = self._append_all(blob, upload, read, where, told)
                if failure is None:
                    failure = self._finished(blob, upload)
                else:
                    readings += 1
            except SessionLost as error:
                failure = error
            except Corrupt:
                self._drop(blob, upload)
                raise
            except BaseException:
                if self._notes is None:  # nobody could go on with it
                    self._drop(blob, upload)
                raise
            if failure is None:
                return
            self._drop(blob, upload)
            if not left or readings == READINGS_MAX:
                raise failure
            self._on_event(failure)
            upload = None

    def _resumed(self, blob: Blob) -> Upload | None:
        token = self._notes.token(note_key(blob.digest)) if self._notes is not None else None
        if token is None:
            return None
        try:
            upload = self._sink.resume(token, self._deadline)
        except (Missing, Refused, Corrupt) as error:
            self._on_event(error)
            self._forget(blob)
            return None
        if upload.acknowledged_bytes > blob.size_bytes:
            self._drop(blob, upload)
            return None
        self._keep(blob, upload.token)
        self._count(Way.RESUMED, upload.acknowledged_bytes)
        return upload

    def _started(self, blob: Blob) -> Upload:
        upload = self._sink.start(self._deadline)
        try:
            # Noted before it holds anything, so that it can be cancelled if nobody goes on with it.
            self._keep(blob, upload.token)
        except BaseException:
            cancel_upload(upload)
            raise
        return upload

    def _append_all(self, blob: Blob, upload: Upload, read: Reading, where: str, told: _Told) -> CorruptBytes | None:
        """Read and append; what there is to say of bytes that turned out to be wrong before the last went out."""
        at = upload.acknowledged_bytes
        hasher = blob.digest.hasher() if at == 0 else None
        told.reached(at)
        buffer = bytearray(min(self._chunk_bytes, blob.size_bytes))
        while at < blob.size_bytes:
            self._check()
            chunk = memoryview(buffer)[: min(len(buffer), blob.size_bytes - at)]
            read(at, chunk)
            if hasher is not None:
                hasher.update(chunk)
                if at + len(chunk) == blob.size_bytes and hasher.hexdigest() != blob.digest.hex:
                    return _wrong(blob, where)
            upload.append(chunk, self._deadline)
            self._keep(blob, upload.token)
            at += len(chunk)
            self._count(Way.SENT, len(chunk))
            told.reached(at)
        return None

    def _finished(self, blob: Blob, upload: Upload) -> Corrupt | None:
        """Commit; what the sink says when it has other bytes."""
        try:
            upload.finish(blob.digest, self._deadline)
        except Corrupt as error:
            return error
        self._forget(blob)
        return None

    # --- sessions ---

    def _keep(self, blob: Blob, token: str, *, synced: bool = True) -> None:
        if self._notes is not None:
            self._notes.keep(note_key(blob.digest), token, synced=synced)

    def _forget(self, blob: Blob) -> None:
        if self._notes is not None:
            self._notes.forget(note_key(blob.digest))

    def _drop(self, blob: Blob, upload: Upload) -> None:
        cancel_upload(upload)
        self._forget(blob)


class _Told:
    """Tells progress of one blob, which never goes back though the blob may start over."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._at = 0

    def reached(self, at: int) -> None:
        if at > self._at:
            self._advance(at - self._at)
            self._at = at


def _wrong(blob: Blob, origin: str) -> CorruptBytes:
    return CorruptBytes("a blob has the wrong digest", where=origin, why=str(blob.digest), digest=str(blob.digest))
