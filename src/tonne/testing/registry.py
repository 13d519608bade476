"""A registry that does what a test wants: real HTTP on loopback, and faults at the request that is chosen.

    with FaultRegistry() as registry:
        registry.faults.add(Fault("blob-get", ShortBody(100), nth=3))
        ...                                      # a client works with registry.address, "127.0.0.1:PORT"
        assert registry.faults.fired
        assert registry.asked("blob-get")[2].range == (0, 4194304)

The knobs:

- `Rules`: limits (manifest, blob, chunk), habits (one PUT a blob, uploads kept or lost after a cut PATCH or a restart,
  201 for 202, no mounts, no deletes, no ranges, pages of tags), latency and rate, redirects to the object store and how
  long their URLs live, and `Auth`.  They may change while the registry runs.
- `Auth`: Basic, or bearer tokens with a life in seconds, what `expires_in` says, rights by user and repository.
- `faults`: see `tonne.testing.faults` for kinds of requests, for which of them, and for all actions.
- `contents`: what is stored; `damage` flips a bit at rest, `forget` loses a blob, `drop_uploads` all uploads.
- `stop`, `start`, `restart`: the same port, what was stored kept, uploads as the rules say.

What it was asked: `requests`, `asked`, `bytes_sent`; `leaks` lists requests that brought credentials to the object
store.  What it speaks is OCI distribution-spec v1.1, checked by tests that a real registry passes too.
"""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType

from tonne.clock import SYSTEM_CLOCK, Clock
from tonne.testing.computed import ComputedImage
from tonne.testing.faults import Fault, Faults
from tonne.testing.registry_access import Access, Auth
from tonne.testing.registry_actions import Exchange
from tonne.testing.registry_blobs import BlobRoutes, Signer
from tonne.testing.registry_body import Content, Response, document, error, page
from tonne.testing.registry_contents import Contents, Manifest
from tonne.testing.registry_http import Connection, ConnectionCut, Incoming, send_response
from tonne.testing.registry_manifests import ManifestRoutes
from tonne.testing.registry_record import Record
from tonne.testing.registry_request import Request, parse_request
from tonne.testing.registry_rules import Rules
from tonne.testing.registry_server import Server
from tonne.testing.registry_uploads import UploadRoutes

__all__ = ["Auth", "Contents", "FaultRegistry", "Record", "Rules"]

_FORM_BYTES_MAX = 64 * 1024


class FaultRegistry:
    """A registry and its object store, each on a loopback port.

    `start`, `stop` and the `with` are one thread's; everything else may be called by any thread, while it serves too.
    `_lock` guards the records.  A defect of the registry itself (an exception in a handler) is answered with 500 and
    raised again by `stop`.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        folder: Path | None = None,
        port: int = 0,
        seed: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.rules = rules or Rules()
        self.contents = Contents(folder)
        self.faults = Faults(seed)
        self._access = Access(self.rules.auth or Auth(), clock)
        self._signer = Signer(clock)
        self._blobs = BlobRoutes(self.contents, self.rules, self._signer)
        self._uploads = UploadRoutes(self.contents, self.rules)
        self._manifests = ManifestRoutes(self.contents, self.rules)
        self._scheme = "https" if tls else "http"
        self._server = Server(lambda c: self._serve(c, store=False), name="registry", port=port, tls=tls)
        self._store = Server(lambda c: self._serve(c, store=True), name="object-store", tls=tls)
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._defects: list[str] = []
        self._running = False

    # --- life

    def start(self) -> None:
        self._server.start()
        self._store.start()
        self._running = True

    def stop(self) -> None:
        """Cut all connections and stop listening; what is stored stays.  Idempotent."""
        if not self._running:
            return
        self._running = False
        self._server.stop()
        self._store.stop()
        if not self.rules.keep_uploads_on_restart:
            self.contents.drop_uploads()
        with self._lock:
            defects, self._defects = self._defects, []
        if defects:
            raise AssertionError("the fault registry is defective:\n" + "\n".join(defects))

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> FaultRegistry:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``, as it stands in references.  Known after the first start."""
        return f"{self._server.address}:{self._server.port}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.address}"

    @property
    def store_url(self) -> str:
        return f"{self._scheme}://{self._store.address}:{self._store.port}"

    # --- contents

    def add_blob(self, repository: str, data: bytes | bytearray | memoryview) -> str:
        """Store a blob; its digest."""
        return self.contents.put_bytes(repository, data)

    def add_computed(self, repository: str, digest: str, content: Content) -> None:
        """Store a blob of which the bytes are computed when they are asked for; its digest is believed."""
        self.contents.add_blob(repository, digest, content)

    def add_image(self, repository: str, tag: str, image: ComputedImage) -> str:
        """Store a computed image; its reference."""
        for digest, blob in image.blobs.items():
            self.contents.add_blob(repository, str(digest), blob)
        self.add_manifest(repository, tag, image.manifest, image.media_type)
        return f"{self.address}/{repository}:{tag}"

    def add_manifest(self, repository: str, tag: str, data: bytes, media_type: str) -> str:
        """Store a manifest without looking at what it lists; its digest."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.contents.put_manifest(repository, digest, Manifest(data, media_type), tag)
        return digest

    def damage(self, digest: str, offset: int, bit: int = 0) -> None:
        """Flip one bit of a stored blob."""
        self.contents.damage(digest, offset, bit)

    def forget(self, digest: str) -> bool:
        """Lose a blob; False when it was not there."""
        return self.contents.forget(digest)

    # --- what it was asked

    @property
    def requests(self) -> list[Record]:
        """Every request so far at both ports, in the order in which the heads came."""
        with self._lock:
            return list(self._records)

    def asked(self, *kinds: str, repository: str = "", subject: str = "") -> list[Record]:
        """The requests of these kinds (all when none is given)."""
        return [
            record
            for record in self.requests
            if (not kinds or record.kind in kinds)
            and (not repository or record.repository == repository)
            and (not subject or record.subject == subject)
        ]

    @property
    def bytes_sent(self) -> int:
        """Body bytes of all answers so far."""
        return sum(record.sent_bytes for record in self.requests)

    @property
    def leaks(self) -> list[Record]:
        """Requests that brought an Authorization header to the object store."""
        return [record for record in self.asked("store-get", "store-head") if record.scheme]

    def forget_requests(self) -> None:
        with self._lock:
            self._records.clear()

    # --- what actions may do (tonne.testing.registry_actions.Holder)

    def revoke_token(self, request: Request) -> bool:
        return self.rules.auth is not None and self._access.revoke(request)

    def revoke_tokens(self) -> None:
        """End every token that was given out."""
        self._access.revoke_all()

    def drop_upload(self, request: Request) -> bool:
        return self.contents.drop_upload(request.subject)

    # --- serving

    def _serve(self, connection: Connection, *, store: bool) -> None:
        """All requests of one connection."""
        while head := connection.read_head():
            request = parse_request(*head, store=store)
            record = Record(request, time.monotonic())
            if request.kind != "stats":
                with self._lock:
                    self._records.append(record)
            incoming = Incoming(connection, request.headers)
            exchange = Exchange(request, connection, incoming, self, base_url=self.url)
            try:
                if not self._answer(exchange, record):
                    return
            except ConnectionCut:
                return
            finally:
                record.received_bytes = incoming.received_bytes

    def _answer(self, exchange: Exchange, record: Record) -> bool:
        """One request; whether the connection can go on."""
        request = exchange.request
        fault = record.fault = self.faults.take(request) if request.kind != "stats" else None
        try:
            response = self._decide(exchange, fault)
        except ConnectionCut:
            if fault:
                self.faults.note(fault, request, exchange.effect)
            raise
        except Exception:
            with self._lock:
                self._defects.append(f"{request.method} {request.target}\n{traceback.format_exc()}")
            response = error(500, "UNKNOWN", "the fault registry is defective")
        if fault:
            self.faults.note(fault, request, exchange.effect)
        exchange.connection.pause(self.rules.latency_s)
        if self.rules.bytes_per_s and response.flow.bytes_per_s is None:
            response.flow.bytes_per_s = self.rules.bytes_per_s
        record.status = response.status
        record.received_bytes = exchange.incoming.received_bytes
        if not exchange.incoming.drain() or request.headers.get("connection", "").lower() == "close":
            response.hang_up = True

        def sent(count: int) -> None:
            record.sent_bytes += count

        return send_response(exchange.connection, response, sent)

    def _decide(self, exchange: Exchange, fault: Fault | None) -> Response:
        response = fault.action.before(exchange) if fault else None
        if response is not None:
            if exchange.request.method == "HEAD":
                response.head_only = True
            return response
        response = self._route(exchange)
        if fault:
            # The registry may not have wanted the body; what was to happen to it happens all the same.
            exchange.incoming.let_happen()
            fault.action.after(exchange, response)
        return response

    def _route(self, exchange: Exchange) -> Response:
        request = exchange.request
        kind = request.kind
        if kind.startswith("store-"):
            return self._blobs.store_get(exchange)
        if kind == "stats":
            return document(200, {"requests": len(self.requests), "bytes_sent": self.bytes_sent})
        if kind == "loop":
            return Response(307, {"Location": f"/loop/{int(request.subject) + 1}"})
        if kind == "other":
            return page(404, "404 Not Found") if request.path[:4] != "/v2/" else error(404, "NAME_UNKNOWN", "no such")
        if kind == "token":
            return self._token(exchange)
        if self.rules.auth is not None:
            self._access.auth = self.rules.auth
            refusal = self._access.check(request, self.url)
            if refusal is not None:
                refusal.head_only = request.method == "HEAD"
                return refusal
        return self._routed(exchange, kind)

    def _token(self, exchange: Exchange) -> Response:
        if self.rules.auth is None or self.rules.auth.scheme != "bearer":
            return page(404, "404 Not Found")
        self._access.auth = self.rules.auth
        return self._access.token(exchange.request, exchange.incoming.read_all(_FORM_BYTES_MAX) or b"")

    def _routed(self, exchange: Exchange, kind: str) -> Response:
        if kind in ("blob-get", "blob-head"):
            return self._blobs.get(exchange, self.store_url)
        routes = {
            "ping": lambda _: document(200, {}, {"Docker-Distribution-Api-Version": "registry/2.0"}),
            "catalog": self._manifests.catalog,
            "tags": self._manifests.tags,
            "referrers": self._manifests.referrers,
            "manifest-get": self._manifests.get,
            "manifest-head": self._manifests.get,
            "manifest-put": self._manifests.put,
            "manifest-delete": self._manifests.delete,
            "blob-delete": self._blobs.delete,
            "blob-mount": self._uploads.start,
            "upload-start": self._uploads.start,
            "upload-patch": self._uploads.patch,
            "upload-status": self._uploads.status,
            "upload-finish": self._uploads.finish,
            "upload-cancel": self._uploads.cancel,
        }
        return routes[kind](exchange)
