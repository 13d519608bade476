"""Extended attributes of the source that an image keeps."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from tonne.wire.page import XATTRS_BYTES_MAX, encode_xattrs

_KEPT = (b"user.", b"security.", b"trusted.", b"system.posix_acl_")
# These say what one machine's policy thinks of one file; written elsewhere they would be wrong or refused.
_OF_THE_MACHINE = (b"security.selinux", b"security.ima", b"security.evm", b"security.apparmor")


class Attributes:
    """Reads attributes; remembers which file systems have none.  One thread."""

    def __init__(self, warn: Callable[[str, bytes], None]) -> None:
        """`warn` is told what could not be read, and of which path."""
        self._warn = warn
        self._without: set[int] = set()

    def read(self, target: bytes | int, device: int, path: bytes, follow: bool) -> bytes:
        """The kept attributes of `target` (a path or a descriptor) as the index's heap holds them, sorted by name."""
        if device in self._without:
            return b""
        try:
            names = self._list(target, follow)
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOSYS):
                self._without.add(device)
            else:
                self._warn(f"its attributes cannot be listed ({error.strerror})", path)
            return b""
        found: list[tuple[bytes, bytes]] = []
        for name in names:
            try:
                found.append((name, self._get(target, name, follow)))
            except OSError as error:
                if error.errno != errno.ENODATA:
                    self._warn(f"its attribute {os.fsdecode(name)!r} cannot be read ({error.strerror})", path)
        data = encode_xattrs(found)
        if len(data) > XATTRS_BYTES_MAX:
            self._warn(
                f"its attributes are left out: they take {len(data)} bytes, {XATTRS_BYTES_MAX} are allowed", path
            )
            return b""
        return data

    @staticmethod
    def _list(target: bytes | int, follow: bool) -> list[bytes]:
        names = os.listxattr(target) if isinstance(target, int) else os.listxattr(target, follow_symlinks=follow)
        encoded = sorted(os.fsencode(name) for name in names)
        return [name for name in encoded if name.startswith(_KEPT) and name not in _OF_THE_MACHINE]

    @staticmethod
    def _get(target: bytes | int, name: bytes, follow: bool) -> bytes:
        if isinstance(target, int):
            return os.getxattr(target, name)
        return os.getxattr(target, name, follow_symlinks=follow)
