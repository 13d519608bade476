"""Storing blobs whose digest is known beforehand: the index, and packs of bases from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tonne.clock import Deadline
from tonne.errors import CorruptBytes, SessionLost
from tonne.model import Blob
from tonne.model.digest import Hasher
from tonne.source.seam import Priority, Sink, SinkFacts, Source

CHUNK_BYTES = 16 * 1024 * 1024  # held once
CANCEL_S = 5.0  # for telling the sink of a session that is given up
RESTARTS_MAX = 3  # after lost sessions

Chunks = Callable[[], Iterator[memoryview]]


def store_blob(
    sink: Sink,
    facts: SinkFacts,
    blob: Blob,
    chunks: Chunks,
    deadline: Deadline,
    count: Callable[[int], None],
    begun: Callable[[str], None] | None = None,
    ask: bool = True,
) -> None:
    """Store a blob unless it is there.

    Args:
        chunks: gives the bytes anew at each call, in chunks of `chunk_size(facts)` but for the last.
        count: told of bytes that were sent.
        begun: told the token of each upload session before it gets bytes.
        ask: False where the sink says that it has what it then misses (a registry's stale cache of descriptors).
    """
    if ask and sink.has(blob.digest, deadline) == blob.size_bytes:
        return
    whole = not facts.chunked or blob.size_bytes <= chunk_size(facts)
    for left in reversed(range(RESTARTS_MAX + 1)):
        try:
            if whole:
                sink.put(blob, lambda: _counted(chunks(), count), deadline, begun)
            else:
                _stream(sink, blob, chunks, deadline, count, begun)
            return
        except (SessionLost, CorruptBytes) as error:
            # A sink tries a whole blob again by itself; what was read wrongly is ours to read again.
            if not left or (whole and (isinstance(error, SessionLost) or "status" in error.fields)):
                raise


def _stream(
    sink: Sink,
    blob: Blob,
    chunks: Chunks,
    deadline: Deadline,
    count: Callable[[int], None],
    begun: Callable[[str], None] | None,
) -> None:
    upload = sink.start(deadline)
    if begun is not None:
        begun(upload.token)
    try:
        for chunk in chunks():
            upload.append(chunk, deadline)
            count(len(chunk))
        upload.finish(blob.digest, deadline)
    except (SessionLost, CorruptBytes):
        upload.cancel(deadline.sooner(CANCEL_S))
        raise


def chunk_size(facts: SinkFacts) -> int:
    """Bytes of a chunk that the sink likes and we can hold."""
    size = max(min(facts.chunk_bytes, CHUNK_BYTES), facts.chunk_bytes_min)
    return min(size, facts.chunk_bytes_max or size)


def _counted(chunks: Iterator[memoryview], count: Callable[[int], None]) -> Iterator[memoryview]:
    for chunk in chunks:
        count(len(chunk))
        yield chunk


def copy_blob(
    source: Source,
    sink: Sink,
    facts: SinkFacts,
    blob: Blob,
    deadline: Deadline,
    count: Callable[[int], None],
    ask: bool = True,
) -> None:
    """Copy a blob as it is, unless it is there; checked against its digest before it is committed."""
    step = chunk_size(facts)

    def chunks() -> Iterator[memoryview]:
        hasher: Hasher = blob.digest.hasher()
        for offset in range(0, blob.size_bytes, step):
            # A buffer of its own for each: whoever stores them may still hold the one before.
            out = memoryview(bytearray(min(step, blob.size_bytes - offset)))
            source.read(blob, offset, out, deadline, None, Priority.BACKGROUND)
            hasher.update(out)
            if offset + len(out) == blob.size_bytes and hasher.hexdigest() != blob.digest.hex:
                raise CorruptBytes("a pack has the wrong digest", where=source.origin, digest=blob.digest)
            yield out

    store_blob(sink, facts, blob, chunks, deadline, count, ask=ask)
