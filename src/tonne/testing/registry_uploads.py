"""Uploads to a fault registry.

Source: OCI distribution-spec v1.1, "Pushing blobs"; where it leaves things open, distribution 2.8 (a `Range` of ``0-0``
for an upload of nothing, MANIFEST and DIGEST errors as 400).
"""

from __future__ import annotations

import re

from tonne.testing.registry_actions import Exchange
from tonne.testing.registry_body import Response, error
from tonne.testing.registry_contents import Contents, Superseded, Upload
from tonne.testing.registry_http import ConnectionCut
from tonne.testing.registry_rules import Rules

_CONTENT_RANGE = re.compile(r"([0-9]+)-([0-9]+)\Z")  # distribution-spec: no "bytes" here
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z|sha512:[0-9a-f]{128}\Z")


class UploadRoutes:
    """Answers to what concerns uploads.  Any thread may call; the state is in `Contents` and its uploads."""

    def __init__(self, contents: Contents, rules: Rules) -> None:
        self._contents, self._rules = contents, rules

    # --- beginning

    def start(self, exchange: Exchange) -> Response:
        """POST: begin, mount, or a whole blob in one request."""
        request = exchange.request
        digest = request.query.get("mount", "")
        if digest and self._rules.can_mount:
            source = request.query.get("from", "")
            if self._contents.blob(source, digest) is not None:
                self._contents.link(request.repository, digest)
                return _created(request.repository, digest)
        digest = request.query.get("digest", "")
        upload = self._contents.start_upload(request.repository)
        if not digest:
            headers = self._where(exchange, upload)
            if self._rules.chunk_bytes_min:
                headers["OCI-Chunk-Min-Length"] = str(self._rules.chunk_bytes_min)
            return Response(202, headers)
        owner, _ = upload.take()
        try:
            return self._receive(exchange, upload, owner) or self._commit(upload, digest)
        finally:
            upload.release(owner)

    # --- going on

    def patch(self, exchange: Exchange) -> Response:
        if self._rules.one_put_only:
            return error(405, "UNSUPPORTED", "chunked uploads are not supported")
        upload, owner = self._take(exchange)
        if upload is None:
            return _no_upload()
        try:
            refusal = self._chunk_refusal(exchange, upload) or self._order_refusal(exchange, upload)
            if refusal is not None:
                return refusal
            before = upload.size_bytes
            refusal = self._receive(exchange, upload, owner)
            if refusal is not None:
                return refusal
            received = upload.size_bytes - before
            upload.chunk_was_short = received < self._rules.chunk_bytes_min
            if exchange.keep_less_bytes:
                upload.truncate(max(before, upload.size_bytes - exchange.keep_less_bytes))
            if exchange.claim_all:
                upload.claimed_bytes += before + received - upload.size_bytes
            return Response(exchange.patch_status or self._rules.patch_status, self._where(exchange, upload))
        finally:
            upload.release(owner)

    def status(self, exchange: Exchange) -> Response:
        upload, owner = self._take(exchange)
        if upload is None:
            return _no_upload()
        upload.release(owner)
        return Response(204, self._where(exchange, upload))

    def finish(self, exchange: Exchange) -> Response:
        digest = exchange.request.query.get("digest", "")
        upload, owner = self._take(exchange)
        if upload is None:
            return _no_upload()
        try:
            if not _DIGEST.match(digest):
                return error(400, "DIGEST_INVALID", "provided digest did not parse", {"digest": digest})
            refusal = self._order_refusal(exchange, upload) if exchange.request.has_body else None
            return refusal or self._receive(exchange, upload, owner) or self._commit(upload, digest)
        finally:
            upload.release(owner)

    def cancel(self, exchange: Exchange) -> Response:
        upload, _ = self._take(exchange)
        if upload is None:
            return _no_upload()
        self._contents.drop_upload(upload.id)
        return Response(204)

    # --- parts of these

    def _take(self, exchange: Exchange) -> tuple[Upload | None, object]:
        """The upload, from now on this request's alone."""
        request = exchange.request
        upload = self._contents.upload(request.repository, request.subject)
        state = request.query.get("_state", "")
        if upload is None or state not in upload.states:
            return None, None
        if self._rules.fresh_location_only and state != upload.states[-1]:
            return None, None
        try:
            owner, was_busy = upload.take()
        except Superseded:
            return None, None
        if was_busy and not self._rules.keep_cut_uploads:
            self._contents.drop_upload(upload.id)
            return None, None
        return upload, owner

    def _where(self, exchange: Exchange, upload: Upload) -> dict[str, str]:
        base = exchange.base_url if self._rules.absolute_locations else ""
        reported = upload.size_bytes + upload.claimed_bytes
        return {
            "Location": f"{base}/v2/{upload.repository}/blobs/uploads/{upload.id}?_state={upload.next_state()}",
            "Range": f"0-{max(0, reported - 1)}",
            "Docker-Upload-UUID": upload.id,
        }

    def _chunk_refusal(self, exchange: Exchange, upload: Upload) -> Response | None:
        length = int(exchange.request.headers.get("content-length", "0"))
        most = self._rules.chunk_bytes_max
        if most is not None and length > most:
            return error(413, "SIZE_INVALID", f"a chunk may have {most} bytes")
        if upload.chunk_was_short:
            return error(400, "SIZE_INVALID", f"a chunk has at least {self._rules.chunk_bytes_min} bytes")
        return None

    def _order_refusal(self, exchange: Exchange, upload: Upload) -> Response | None:
        """416 for a chunk that does not begin where the upload is; none for a stream without Content-Range."""
        text = exchange.request.headers.get("content-range")
        if text is None or self._rules.ignore_content_range:
            return None
        found = _CONTENT_RANGE.match(text)
        if not found:
            return error(416, "BLOB_UPLOAD_INVALID", "a Content-Range here is START-END", {"Content-Range": text})
        start, end = int(found[1]), int(found[2])
        if start != upload.size_bytes + upload.claimed_bytes:
            headers = self._where(exchange, upload)
            return error(416, "BLOB_UPLOAD_INVALID", "the chunk is out of order", headers=headers)
        length = exchange.request.headers.get("content-length")
        if length is not None and int(length) != end - start + 1:
            return error(400, "SIZE_INVALID", "Content-Range and Content-Length differ")
        return None

    def _receive(self, exchange: Exchange, upload: Upload, owner: object) -> Response | None:
        """Take the body in; None when all of it came."""
        most = self._rules.blob_bytes_max
        announced = int(exchange.request.headers.get("content-length", "0"))
        if most is not None and upload.size_bytes + announced > most:
            return error(413, "SIZE_INVALID", f"a blob may have {most} bytes")
        try:
            for piece in exchange.incoming.pieces():
                upload.append(owner, piece)
                if most is not None and upload.size_bytes > most:
                    return error(413, "SIZE_INVALID", f"a blob may have {most} bytes")
        except Superseded as reason:
            exchange.connection.abort()
            raise ConnectionCut(str(reason)) from None
        except ConnectionCut:
            if not self._rules.keep_cut_uploads:
                self._contents.drop_upload(upload.id)
            raise
        return None

    def _commit(self, upload: Upload, digest: str) -> Response:
        if not self._contents.finish_upload(upload, digest):
            return error(400, "DIGEST_INVALID", "provided digest did not match uploaded content", {"digest": digest})
        return _created(upload.repository, digest)


def _created(repository: str, digest: str) -> Response:
    return Response(201, {"Location": f"/v2/{repository}/blobs/{digest}", "Docker-Content-Digest": digest})


def _no_upload() -> Response:
    return error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
