"""What the operating system says about local files, as errors of ours."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tonne.errors import DiskFull, LocalFailure, MissingPath, ReadOnly, TonneError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def shown_path(path: bytes | str | Path) -> str:
    """A path for a message; bytes that are not UTF-8 are escaped."""
    return path.decode("utf-8", "backslashreplace") if isinstance(path, bytes) else str(path)


def local_failure(error: OSError, path: bytes | str | Path, what: str) -> TonneError:
    """The error of ours that stands for `error` on `path`."""
    kind: type[TonneError] = LocalFailure
    if error.errno in _FULL:
        kind = DiskFull
    elif error.errno == errno.EROFS:
        kind = ReadOnly
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        kind = MissingPath
    return kind(what, where=shown_path(path), why=error.strerror or str(error))


@contextmanager
def blaming(path: bytes | str | Path, what: str) -> Iterator[None]:
    """Turn an `OSError` in the block into one of ours that names `path`."""
    try:
        yield
    except OSError as error:
        raise local_failure(error, path, what) from error
