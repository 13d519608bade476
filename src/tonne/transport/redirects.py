"""Where blobs really are: the targets of redirects, kept until shortly before their signatures expire.

Sources for the parameters that carry the expiry: AWS SigV4 query (X-Amz-Date, X-Amz-Expires), Google Cloud Storage V4
(X-Goog-…), S3 V2, GCS V2, CloudFront and Alibaba OSS V1 (Expires, seconds since the epoch), OSS V4 (x-oss-…), Azure SAS
(se), Tencent COS (q-sign-time, start;end).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlsplit

from tonne.clock import Clock, Deadline
from tonne.errors import DeadlineExceeded

DEFAULT_LIFE_S = 240.0  # for targets that do not say: GHCR's live about 300 s, distribution's 20 min
LIFE_S_MAX = 3600.0  # credentials that sign may be withdrawn earlier than the signature says
MARGIN_S_MAX = 30.0  # renewed so long before the end, or a fifth of the life if that is shorter
MARGIN_SHARE = 0.2
TARGETS_MAX = 8192  # a 10 TB image has about 1,300 packs; a target is some KiB at most


@dataclass(frozen=True, slots=True)
class Target:
    """An address that answers for a blob, until `until_s` on the clock."""

    url: str
    until_s: float


def life_of(url: str, wall_s: float) -> float | None:
    """Seconds until the signature in `url` expires, never negative; None when it does not say.

    `wall_s` is the time as its issuer has it (the Date of the redirect), since the clock of a node may be wrong.
    """
    try:
        query = {name.lower(): value for name, value in parse_qsl(urlsplit(url).query, max_num_fields=200)}
    except ValueError:
        return None
    ends: list[float] = []
    for vendor in ("x-amz", "x-goog", "x-oss"):
        start_s, length = _stamp(query.get(f"{vendor}-date", "")), query.get(f"{vendor}-expires", "")
        if start_s is not None and length.isascii() and length.isdigit() and len(length) < 10:
            ends.append(start_s + int(length))
    for text in (query.get("expires", ""), query.get("q-sign-time", "").partition(";")[2]):
        if text.isascii() and text.isdigit() and len(text) < 12:
            ends.append(float(text))
    end_s = _stamp(query.get("se", ""))
    if end_s is not None:
        ends.append(end_s)
    return max(0.0, min(ends) - wall_s) if ends else None


def _stamp(text: str) -> float | None:
    for form in ("%Y%m%dT%H%M%SZ", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d"):
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None


class RedirectCache:
    """Targets by blob.  Safe to call from any thread; one lock for the table, one a blob while its target is asked for.

    `renew` off: a target is used for as long as it is kept, whatever it says of its expiry.
    """

    def __init__(self, clock: Clock, renew: bool) -> None:
        self._clock = clock
        self._renew = renew
        self._lock = threading.Lock()
        self._targets: OrderedDict[str, Target] = OrderedDict()
        self._direct: OrderedDict[str, None] = OrderedDict()
        self._asking: dict[str, tuple[threading.Lock, int]] = {}
        self._redirected = False

    def get(self, key: str) -> Target | None:
        """The target of a blob, None when there is none or it is due for renewal."""
        with self._lock:
            target = self._targets.get(key)
            if target is None:
                return None
            if self._renew and self._clock.now_s() >= target.until_s:
                del self._targets[key]
                return None
            self._targets.move_to_end(key)
            return target

    def put(self, key: str, url: str, life_s: float | None) -> Target:
        """Keep a target; one that says that it has expired is not kept."""
        life_s = DEFAULT_LIFE_S if life_s is None else min(life_s, LIFE_S_MAX)
        target = Target(url, self._clock.now_s() + life_s - min(MARGIN_S_MAX, life_s * MARGIN_SHARE))
        with self._lock:
            self._redirected = True
            self._direct.pop(key, None)
            if life_s > 0:
                self._targets[key] = target
                self._targets.move_to_end(key)
                while len(self._targets) > TARGETS_MAX:
                    self._targets.popitem(last=False)
        return target

    def put_direct(self, key: str) -> None:
        """The registry sent the bytes of this blob itself."""
        with self._lock:
            self._direct[key] = None
            self._direct.move_to_end(key)
            while len(self._direct) > TARGETS_MAX:
                self._direct.popitem(last=False)

    def drop(self, key: str, target: Target) -> None:
        """Forget a target that was denied, unless somebody has put a newer one there."""
        with self._lock:
            if self._targets.get(key) is target:
                del self._targets[key]

    @contextmanager
    def asking(self, key: str, deadline: Deadline, where: str) -> Iterator[None]:
        """Held by the one who asks the registry for a blob's target.

        Nobody waits while no redirect was seen, nor for a blob that came without one: a registry that sends the bytes
        itself is asked by all at once.
        """
        with self._lock:
            free = not self._redirected or key in self._direct
            lock, users = self._asking.get(key, (threading.Lock(), 0))
            if not free:
                self._asking[key] = (lock, users + 1)
        if free:
            yield
            return
        try:
            left_s = deadline.left_s()
            if not lock.acquire(timeout=-1 if left_s is None else left_s):
                raise DeadlineExceeded("no address of the blob in time", where=where)
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._lock:
                lock, users = self._asking[key]
                if users == 1:
                    del self._asking[key]
                else:
                    self._asking[key] = (lock, users - 1)
