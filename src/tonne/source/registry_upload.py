"""An upload session of a registry: chunks in order, each acknowledged, with recovery in the middle.

Source: OCI distribution-spec v1.1, "Pushing a blob in chunks".
"""

from __future__ import annotations

import json

from tonne.clock import Deadline
from tonne.errors import CorruptBytes, ProtocolError, SessionLost, ShortBody, TonneError, Unavailable
from tonne.model import Digest
from tonne.source.registry_calls import RepositoryCalls, with_query
from tonne.transport.backoff import Tries
from tonne.transport.bodies import MemoryBody
from tonne.transport.failures import Kind
from tonne.transport.fields import Head, parse_upload_range
from tonne.transport.registry import Reply

CANCEL_ATTEMPTS = (
    3  # a cut connection is no reason to leave a session; a registry that is down is not worth a long wait
)
_OCTETS = ("Content-Type", "application/octet-stream")


class RegistryUpload:
    """One blob on its way into a repository.  Used by one thread at a time; no locks.

    `append` and `finish` survive cut connections, stalls, partial and missing acknowledgements and overload, within
    the back-off policy, which starts anew with each progress.  After an error other than `SessionLost` the session may
    go on: `acknowledged_bytes` says from where.  `token` survives a crash; what was acknowledged is the registry's.
    """

    def __init__(self, calls: RepositoryCalls, location: str, acknowledged_bytes: int = 0) -> None:
        self._calls = calls
        self._where = calls.where
        self._location = location
        self._acknowledged_bytes = acknowledged_bytes
        self._finished: Digest | None = None

    @classmethod
    def from_token(cls, calls: RepositoryCalls, token: str) -> RegistryUpload:
        """The session that a token names, not yet asked for its state; `SessionLost` when the token is no such."""
        try:
            document = json.loads(token)
            location, acknowledged_bytes = document["location"], document["acknowledged_bytes"]
            if not isinstance(location, str) or not isinstance(acknowledged_bytes, int) or acknowledged_bytes < 0:
                raise ValueError("not a token")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SessionLost("the note of an upload session cannot be read", where=calls.where) from None
        return cls(calls, location, acknowledged_bytes)

    @property
    def token(self) -> str:
        return json.dumps({"location": self._location, "acknowledged_bytes": self._acknowledged_bytes})

    @property
    def location(self) -> str:
        """Where the session is now: the newest Location, absolute; may be signed."""
        return self._location

    @property
    def acknowledged_bytes(self) -> int:
        return self._acknowledged_bytes

    def append(self, chunk: memoryview, deadline: Deadline) -> None:
        """Send the next bytes; returns once the registry has acknowledged all of them."""
        if self._finished is not None:
            raise RuntimeError("the upload is finished")
        chunk = chunk.cast("B") if chunk.format != "B" or chunk.ndim != 1 else chunk
        start_bytes = self._acknowledged_bytes
        end_bytes = start_bytes + len(chunk)
        tries = self._tries(deadline)
        while self._acknowledged_bytes < end_bytes:
            before_bytes = self._acknowledged_bytes
            try:
                self._send(chunk[before_bytes - start_bytes :], deadline)
            except (Unavailable, ShortBody) as error:
                tries.failed(error)
                self._recover(start_bytes, end_bytes, error, tries, deadline)
            if self._acknowledged_bytes > before_bytes:
                tries.progressed()

    def finish(self, digest: Digest, deadline: Deadline) -> None:
        """Commit; an answer that was lost is made good by asking for the blob."""
        if self._finished == digest:
            return
        tries = self._tries(deadline)
        while True:
            try:
                self._commit(digest, deadline)
                break
            except (Unavailable, SessionLost) as error:
                # Where only the answer was lost, the session is gone because the blob is there.
                if error.retryable and self._calls.insist(deadline, lambda: self._is_stored(digest, deadline)):
                    break
                if isinstance(error, SessionLost):
                    raise
                tries.failed(error)
        self._finished = digest

    def cancel(self, deadline: Deadline) -> None:
        """Tell the registry to forget the session; failures do not matter, since it forgets by itself in time."""
        try:
            self._calls.insist(deadline, lambda: self._cancel(deadline), CANCEL_ATTEMPTS)
        except TonneError:
            pass

    def _cancel(self, deadline: Deadline) -> None:
        reply = self._call("DELETE", self._location, (200, 202, 204, 404), "cannot cancel an upload", deadline)
        if reply.head.status == 200 and reply.head.media_type == "text/html":
            raise ProtocolError("a web page answers, not a registry", where=self._where)

    def ask(self, deadline: Deadline) -> None:
        """Take over what the registry has acknowledged; `SessionLost` when it does not know the session."""
        reply = self._call("GET", self._location, (200, 202, 204), "cannot ask for the state of an upload", deadline)
        last = self._last(reply.head)
        self._move(reply)
        if last is None and self._acknowledged_bytes:
            raise ProtocolError("the registry does not say how much of an upload it has", where=self._where)
        # `0-0` is one byte or, from distribution, none.  None is the safe reading unless we know of one.
        self._acknowledged_bytes = min(1, self._acknowledged_bytes) if not last else last + 1

    # --- one request each -------------------------------------------------------------------------------------------

    def _send(self, piece: memoryview, deadline: Deadline) -> None:
        first = self._acknowledged_bytes
        last = first + len(piece) - 1
        headers = (_OCTETS, ("Content-Range", f"{first}-{last}"))
        reply = self._call("PATCH", self._location, (201, 202, 204), "cannot send a chunk", deadline, headers, piece)
        self._move(reply)
        acknowledged = self._last(reply.head)
        if acknowledged == last:
            self._acknowledged_bytes = last + 1
            return
        if acknowledged is None or acknowledged == 0:
            self.ask(deadline)  # nothing was said, or what may mean none or one
        else:
            self._acknowledged_bytes = acknowledged + 1
        if not first <= self._acknowledged_bytes <= last + 1:
            self._lost(first)
        if self._acknowledged_bytes == first:
            raise ProtocolError("the registry took a chunk and acknowledged none of it", where=self._where)

    def _commit(self, digest: Digest, deadline: Deadline) -> None:
        url = with_query(self._location, "digest", str(digest))
        reply = self._call(
            "PUT", url, (200, 201, 202, 204), "cannot finish an upload", deadline, (_OCTETS,), memoryview(b"")
        )
        said = reply.head.first("docker-content-digest")
        if said and said != str(digest) and said.startswith(digest.algorithm):
            raise CorruptBytes(
                "the registry computed another digest", where=self._where, expected=digest, digest=said[:160]
            )
        if not said and not self._is_stored(digest, deadline):
            raise ProtocolError("the registry says that it stored a blob and does not have it", where=self._where)

    def _is_stored(self, digest: Digest, deadline: Deadline) -> bool:
        """Whether the blob is there; one of another length is `Corrupt`."""
        size_bytes = self._calls.blob_size(digest, deadline, self._calls.push)
        if size_bytes is not None and size_bytes != self._acknowledged_bytes:
            raise CorruptBytes(
                "the registry stored another number of bytes than was sent",
                where=self._where,
                digest=digest,
                stored_bytes=size_bytes,
                sent_bytes=self._acknowledged_bytes,
            )
        return size_bytes is not None

    # --- recovery ---------------------------------------------------------------------------------------------------

    def _recover(self, start_bytes: int, end_bytes: int, cause: TonneError, tries: Tries, deadline: Deadline) -> None:
        """After any doubt: ask how much is there and go on from it."""
        refused_at_zero = cause.fields.get("status") == 416 and self._acknowledged_bytes == 0
        while True:
            try:
                self.ask(deadline)
                break
            except Unavailable as error:
                tries.failed(error)
        if refused_at_zero and self._acknowledged_bytes == 0:
            self._acknowledged_bytes = 1  # `0-0` did not mean none: a chunk from 0 was out of order
        if not start_bytes <= self._acknowledged_bytes <= end_bytes:
            self._lost(start_bytes)

    def _lost(self, start_bytes: int) -> None:
        raise SessionLost(
            "the registry and we disagree on what was sent, so the blob must be sent anew",
            where=self._where,
            acknowledged_bytes=self._acknowledged_bytes,
            kept_from_bytes=start_bytes,
        )

    def _last(self, head: Head) -> int | None:
        return parse_upload_range(head.first("range"))

    def _move(self, reply: Reply) -> None:
        self._location = self._calls.location(reply) or self._location

    def _tries(self, deadline: Deadline) -> Tries:
        return self._calls.backoff.tries(self._calls.registry.clock, deadline)

    def _call(
        self,
        method: str,
        url: str,
        accept: tuple[int, ...],
        what: str,
        deadline: Deadline,
        headers: tuple[tuple[str, str], ...] = (),
        data: memoryview | None = None,
    ) -> Reply:
        body = None if data is None else MemoryBody(data, repeatable=method != "PATCH")
        return self._calls.call(
            Kind.UPLOAD, method, url, accept, what, deadline, headers=headers, body=body, scopes=self._calls.push
        )
