"""What a fault registry allows and how it behaves when nothing goes wrong."""

from __future__ import annotations

from dataclasses import dataclass

from tonne.testing.registry_access import Auth


@dataclass(slots=True)
class Rules:
    """Limits and habits; may be changed while the registry runs.  Sizes in bytes, None for no limit."""

    manifest_bytes_max: int | None = 4 * 1024 * 1024  # larger: 413
    blob_bytes_max: int | None = None  # larger: 413, as soon as it is known
    chunk_bytes_min: int = 0  # announced as OCI-Chunk-Min-Length; a PATCH after a shorter one: 400
    chunk_bytes_max: int | None = None  # larger: 413
    one_put_only: bool = False  # PATCH: 405
    keep_cut_uploads: bool = True  # an upload of which a PATCH was cut goes on where it was cut; False: it is lost
    keep_uploads_on_restart: bool = True
    fresh_location_only: bool = False  # an upload's older Location: 404
    ignore_content_range: bool = False  # append whatever comes, as docker-registry 2.8.2 does
    absolute_locations: bool = False
    patch_status: int = 202
    can_mount: bool = True  # False: 202, an ordinary upload
    can_delete: bool = True  # False: 405
    can_list_referrers: bool = True  # False: 404
    ranges: bool = True  # False: always 200 and the whole
    tags_page_max: int | None = None
    redirect: bool = False  # blob GETs go to the object store's port
    redirect_status: int = 307
    redirect_life_s: float = 1200.0  # distribution's with S3
    latency_s: float = 0.0  # before each answer
    bytes_per_s: float | None = None  # of each answer's body
    auth: Auth | None = None
