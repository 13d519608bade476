"""What must be so before a mount, each failure with what to do about it."""

from __future__ import annotations

import errno
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from tonne.errors import BadMountPoint, NoFuse
from tonne.mount.table import mount_at

FUSE_DEVICE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")


def check_fuse(device: Path = FUSE_DEVICE, uid: int | None = None) -> None:
    """`NoFuse` when this process cannot mount by FUSE.  `uid` None: that of the process."""
    if find_spec("pyfuse3") is None:
        raise NoFuse(
            "the FUSE mount is not installed",
            why="the package pyfuse3 is missing",
            todo="apt install gcc pkg-config libfuse3-dev fuse3, then pip install 'tonne[fuse]'; or use `tonne pull`",
        )
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise NoFuse(
            "the kernel's FUSE device is not there",
            where=str(device),
            todo="modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN; or use `tonne pull`",
        ) from None
    except OSError as error:
        raise NoFuse(
            "the kernel's FUSE device cannot be opened",
            where=str(device),
            why=error.strerror or "",
            todo="chmod 666 /dev/fuse, as most systems have it; in a container --device /dev/fuse --cap-add SYS_ADMIN",
        ) from None
    if (os.geteuid() if uid is None else uid) != 0 and shutil.which("fusermount3") is None:
        raise NoFuse("users other than root mount through fusermount3, which is not there", todo="apt install fuse3")


def check_point(point: Path) -> Path:
    """The mount point as a path without links; `BadMountPoint` when nothing can be mounted there."""
    mounted = mount_at(point)
    if mounted is not None:
        what = f"{mounted.source} is mounted there already" if mounted.is_ours else "something is mounted there already"
        raise BadMountPoint(what, where=str(point), todo=f"tonne umount {point}" if mounted.is_ours else "")
    real = Path(os.path.realpath(point))
    try:
        with os.scandir(real) as entries:
            if next(entries, None) is not None:
                raise BadMountPoint("the mount point is not empty", where=str(point), todo="give an empty folder")
    except FileNotFoundError:
        raise BadMountPoint("the mount point does not exist", where=str(point), todo=f"mkdir {point}") from None
    except NotADirectoryError:
        raise BadMountPoint("the mount point is no folder", where=str(point), todo="give an empty folder") from None
    except OSError as error:
        todo = "choose a folder of yours" if error.errno == errno.EACCES else ""
        raise BadMountPoint(
            "the mount point cannot be read", where=str(point), why=error.strerror or "", todo=todo
        ) from None
    return real


def may_allow_other(conf: Path = FUSE_CONF, uid: int | None = None) -> bool:
    """Whether other users can be let in: root may, and others where fuse.conf has ``user_allow_other``."""
    if (os.geteuid() if uid is None else uid) == 0:
        return True
    try:
        lines = conf.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
