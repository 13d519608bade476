"""Receiving part of a blob straight into the caller's memory, whatever the other side answers."""

from __future__ import annotations

from tonne.errors import LongBody, ProtocolError, ShortBody, Unsupported
from tonne.transport.client import ERROR_BODY_BYTES_MAX
from tonne.transport.fields import Head, parse_content_range

WHOLE_BODY_BYTES_MAX = (
    32 * 1024 * 1024
)  # a blob up to this is read from its start where Range is ignored: a second or less


class RangeReceiver:
    """Fills `out` with the bytes of a blob from `offset_bytes` on.

    206 must be exactly the range; 200 is the whole blob, of which the range is picked when the blob is small or the
    range is all of it, else `Unsupported` (and `ignored` is True).  `ShortBody` and `LongBody` for other amounts.
    Other statuses leave the start of their body in `body`.  Used for one request after the other.
    """

    def __init__(self, size_bytes: int, offset_bytes: int, out: memoryview, where: str) -> None:
        self._size_bytes = size_bytes
        self._offset_bytes = offset_bytes
        self._out = out
        self._where = where
        self.whole = offset_bytes == 0 and len(out) == size_bytes
        self.ignored = False
        self.body = bytearray()
        self._status = 0
        self._skip_bytes = 0
        self._filled_bytes = 0
        self._length_bytes = len(out)
        self._plain = False  # every byte that comes is the next of the range
        self._excess_bytes = 0  # of a whole blob, after the range

    @property
    def range(self) -> str:
        """The value of the Range field: closed, since some registries refuse open ones."""
        return f"bytes={self._offset_bytes}-{self._offset_bytes + len(self._out) - 1}"

    def begin(self, head: Head) -> None:
        self.body.clear()
        self.ignored = False
        self._status = head.status
        self._plain = head.status == 206
        self._filled_bytes = self._skip_bytes = self._excess_bytes = 0
        if head.status == 206:
            self._check_range(head)
            self._check_length(head, len(self._out))
        elif head.status == 200:
            if not self.whole and self._size_bytes > WHOLE_BODY_BYTES_MAX:
                self.ignored = True
                raise Unsupported(
                    "the registry or a proxy ignores Range and sends whole blobs, so reading lazily is impossible",
                    where=self._where,
                    todo="pull without that proxy, or from another registry",
                    size_bytes=self._size_bytes,
                )
            self._check_length(head, self._size_bytes)
            self._skip_bytes = self._offset_bytes
            self._excess_bytes = self._size_bytes - self._offset_bytes - len(self._out)

    def write(self, data: bytes) -> None:
        end = self._filled_bytes + len(data)
        if self._plain and end <= self._length_bytes:
            self._out[self._filled_bytes : end] = data
            self._filled_bytes = end
        else:
            self._write_odd(data)

    def _write_odd(self, data: bytes) -> None:
        """What is not simply the next bytes of the range."""
        if self._status not in (200, 206):
            self.body += data[: max(0, ERROR_BODY_BYTES_MAX - len(self.body))]
            return
        start = 0
        if self._skip_bytes:
            start = min(len(data), self._skip_bytes)
            self._skip_bytes -= start
        wanted = min(len(data) - start, len(self._out) - self._filled_bytes)
        if wanted:
            self._out[self._filled_bytes : self._filled_bytes + wanted] = memoryview(data)[start : start + wanted]
        self._filled_bytes += wanted
        rest = len(data) - start - wanted
        if rest > self._excess_bytes:
            raise LongBody("more bytes came than were asked for", where=self._where, expected_bytes=len(self._out))
        self._excess_bytes -= rest

    def finish(self) -> None:
        """Called after a response of 200 or 206 has ended."""
        if self._filled_bytes != len(self._out) or self._excess_bytes:
            raise ShortBody(
                "fewer bytes came than were asked for",
                where=self._where,
                expected_bytes=len(self._out),
                received_bytes=self._filled_bytes,
            )

    def _check_range(self, head: Head) -> None:
        text = head.first("content-range")
        found = parse_content_range(text)
        if found is None:
            why = f"Content-Range {text[:80]!r}" if text else f"no Content-Range, {head.media_type or 'no media type'}"
            raise ProtocolError("a partial answer does not say which part it is", where=self._where, why=why)
        if found.total_bytes is not None and found.total_bytes != self._size_bytes:
            cls = ShortBody if found.total_bytes < self._size_bytes else LongBody
            raise cls(
                "the stored blob has another length than the manifest says",
                where=self._where,
                why=f"Content-Range {text[:80]}",
            )
        last = self._offset_bytes + len(self._out) - 1
        if found.first != self._offset_bytes or found.last > last:
            raise ProtocolError(
                "another part came than was asked for", where=self._where, why=f"{text[:80]} for {self.range}"
            )
        if found.last < last:
            raise ShortBody(
                "a shorter part came than was asked for", where=self._where, why=f"{text[:80]} for {self.range}"
            )

    def _check_length(self, head: Head, expected_bytes: int) -> None:
        length_bytes = head.length_bytes
        if length_bytes is not None and length_bytes != expected_bytes:
            cls = ShortBody if length_bytes < expected_bytes else LongBody
            raise cls(
                "another number of bytes is announced than was asked for",
                where=self._where,
                expected_bytes=expected_bytes,
                announced_bytes=length_bytes,
            )
