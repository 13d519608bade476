"""Manifests, tags and referrers of a fault registry.

Source: OCI distribution-spec v1.1, "Pushing manifests", "Listing tags", "Listing referrers".
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from tonne.testing.registry_actions import Exchange
from tonne.testing.registry_body import MemoryContent, Response, document, error
from tonne.testing.registry_contents import Contents, Manifest
from tonne.testing.registry_rules import Rules

_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_LIST_TYPES = (_INDEX_TYPE, "application/vnd.docker.distribution.manifest.list.v2+json")
_READ_BYTES_MAX = 64 * 1024 * 1024  # bounds memory where a test sets no limit


class ManifestRoutes:
    """Answers to what concerns manifests.  Any thread may call; the state is in `Contents`."""

    def __init__(self, contents: Contents, rules: Rules) -> None:
        self._contents, self._rules = contents, rules

    def get(self, exchange: Exchange) -> Response:
        """GET and HEAD."""
        request = exchange.request
        head_only = request.method == "HEAD"
        found = self._contents.manifest(request.repository, request.subject)
        if found is None:
            response = error(404, "MANIFEST_UNKNOWN", "manifest unknown", {"name": request.subject})
            response.head_only = head_only
            return response
        digest, manifest = found
        headers = {"Content-Type": manifest.media_type, "Docker-Content-Digest": digest, "ETag": f'"{digest}"'}
        return Response(200, headers, MemoryContent(manifest.data), head_only=head_only)

    def put(self, exchange: Exchange) -> Response:
        request = exchange.request
        most = self._rules.manifest_bytes_max
        data = exchange.incoming.read_all(_READ_BYTES_MAX if most is None else most)
        if data is None:
            return error(413, "SIZE_INVALID", f"a manifest may have {most} bytes")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        by_digest = ":" in request.subject
        if by_digest and request.subject != digest:
            return error(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        try:
            body = json.loads(data)
        except ValueError:
            return error(400, "MANIFEST_INVALID", "manifest invalid")
        media_type = request.headers.get("content-type", "")
        if not isinstance(body, dict) or body.get("mediaType", media_type) != media_type:
            return error(400, "MANIFEST_INVALID", "the media types in manifest and header differ")
        missing = self._missing(exchange, body, media_type)
        if missing:
            code, text = "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry"
            return document(400, {"errors": [{"code": code, "message": text, "detail": name} for name in missing]})
        tag = "" if by_digest else request.subject
        self._contents.put_manifest(request.repository, digest, Manifest(data, media_type), tag)
        headers = {"Location": f"/v2/{request.repository}/manifests/{digest}", "Docker-Content-Digest": digest}
        subject = _digest_of(body.get("subject"))
        if subject and self._rules.can_list_referrers:
            headers["OCI-Subject"] = subject
        return Response(201, headers)

    def _missing(self, exchange: Exchange, body: dict[str, Any], media_type: str) -> list[str]:
        repository = exchange.request.repository
        if media_type in _LIST_TYPES:
            listed = [_digest_of(item) for item in body.get("manifests") or []]
            return [digest for digest in listed if self._contents.manifest(repository, digest) is None]
        blobs = [_digest_of(item) for item in [body.get("config"), *(body.get("layers") or [])]]
        if exchange.forget_one and blobs:
            self._contents.forget(blobs[-1])
        return [digest for digest in dict.fromkeys(blobs) if self._contents.blob(repository, digest) is None]

    def delete(self, exchange: Exchange) -> Response:
        request = exchange.request
        if not self._rules.can_delete:
            return error(405, "UNSUPPORTED", "deleting is switched off")
        if not self._contents.delete_manifest(request.repository, request.subject):
            return error(404, "MANIFEST_UNKNOWN", "manifest unknown")
        return Response(202)

    def tags(self, exchange: Exchange) -> Response:
        request = exchange.request
        tags = self._contents.tags(request.repository)
        if tags is None:
            return error(404, "NAME_UNKNOWN", "repository name not known to registry", {"name": request.repository})
        names, link = self._cut(exchange, list(tags), f"/v2/{quote(request.repository)}/tags/list")
        return document(200, {"name": request.repository, "tags": names}, link)

    def catalog(self, exchange: Exchange) -> Response:
        names, link = self._cut(exchange, self._contents.repositories(), "/v2/_catalog")
        return document(200, {"repositories": names}, link)

    def _cut(self, exchange: Exchange, names: list[str], path: str) -> tuple[list[str], dict[str, str]]:
        """One page of a sorted list, and the Link header of the next."""
        query = exchange.request.query
        most = self._rules.tags_page_max
        if "n" in query:
            most = min(int(query["n"]), most) if most is not None else int(query["n"])
        names = [name for name in names if name > query.get("last", "")]
        if most is None or len(names) <= most:
            return names, {}
        if not most:
            return [], {}
        page = names[:most]
        return page, {"Link": f'<{path}?n={most}&last={quote(page[-1])}>; rel="next"'}

    def referrers(self, exchange: Exchange) -> Response:
        request = exchange.request
        if not self._rules.can_list_referrers:
            return error(404, "UNSUPPORTED", "no referrers here")
        found = []
        for digest, manifest in self._contents.manifests(request.repository).items():
            body = json.loads(manifest.data)
            if _digest_of(body.get("subject")) == request.subject:
                kind = body.get("artifactType") or (body.get("config") or {}).get("mediaType", "")
                found.append(
                    {
                        "mediaType": manifest.media_type,
                        "digest": digest,
                        "size": len(manifest.data),
                        "artifactType": kind,
                        "annotations": body.get("annotations") or {},
                    }
                )
        headers = {"Content-Type": _INDEX_TYPE}
        if wanted := request.query.get("artifactType"):
            found = [item for item in found if item["artifactType"] == wanted]
            headers["OCI-Filters-Applied"] = "artifactType"
        return document(200, {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": found}, headers)


def _digest_of(item: Any) -> str:
    return str(item.get("digest", "")) if isinstance(item, dict) else ""
