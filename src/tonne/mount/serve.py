"""Serving one view as a FUSE mount in this process, from the mount to the unmount."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyfuse3
import trio

from tonne.clock import Deadline
from tonne.durable import local_error
from tonne.errors import DeadlineExceeded, NoFuse, TonneError
from tonne.image.view import View
from tonne.model.entry import ROOT_INODE
from tonne.mount.attributes import Owner
from tonne.mount.fuse import Operations
from tonne.mount.log import Quiet

READ_AHEAD_KIB = 4096  # of the kernel; FUSE gives 128, with which one reader gets half the speed
BACKGROUND_MAX = 64  # reads that the kernel has on the way for its own read-ahead; 12 by default, of all files together
TASKS_MAX = 512  # requests taken from the kernel at once; beyond them even lookups would wait for the oldest
TASKS_MIN = 8
STOP_GRACE_S = 0.5  # for answers under way when the process is told to end
BDI = Path("/sys/class/bdi")
CONNECTIONS = Path("/sys/fs/fuse/connections")


@dataclass(frozen=True, slots=True)
class MountPlan:
    """What to mount where.  `point` has no links in it; `name` is what the table of mounts shows: REF@DIGEST."""

    point: Path
    name: str
    owner: Owner = field(default_factory=Owner)
    allow_other: bool = False
    deadline_s: float = 60.0
    state: dict[str, Any] = field(default_factory=dict)


def serve(view: View, plan: MountPlan, on_ready: Callable[[], None], log: logging.Logger, quiet: Quiet) -> None:
    """Mount, call `on_ready` once the first request was answered, and return when it is unmounted.

    SIGTERM and SIGINT unmount: whoever has files open then gets errors.  Only one mount a process, in its main thread.
    `NoFuse` when the kernel or fusermount3 refuses, with what it said on standard error.
    """
    # What cannot be read is told before there is a mount to take away again.
    view.entry(ROOT_INODE, Deadline.after(plan.deadline_s))
    operations = Operations(view, plan.owner, plan.deadline_s, plan.state, quiet)
    try:
        pyfuse3.init(operations, str(plan.point), fuse_options(plan))
    except RuntimeError as error:
        raise NoFuse(
            "the mount was refused",
            where=str(plan.point),
            why=f"{error}; the line before this one, or the mount's log, says why",
            todo="check that this user may mount here; a container needs --device /dev/fuse --cap-add SYS_ADMIN",
        ) from None
    try:
        trio.run(_run, plan, on_ready, log)
    finally:
        quiet.close()
        pyfuse3.close(unmount=True)


def fuse_options(plan: MountPlan) -> set[str]:
    """Options of the mount, as libfuse takes them."""
    options = {
        "ro",
        "default_permissions",
        "subtype=tonne",
        f"fsname={option_text(plan.name)}",
    }
    if plan.allow_other:
        options.add("allow_other")
    return options


def option_text(text: str) -> str:
    """A text as the value of a mount option: what is not ASCII percent-encoded, commas and backslashes escaped."""
    ascii_only = "".join(
        char if " " <= char <= "~" else "".join(f"%{b:02X}" for b in os.fsencode(char)) for char in text
    )
    return re.sub(r"([,\\])", r"\\\1", ascii_only)


async def _run(plan: MountPlan, on_ready: Callable[[], None], log: logging.Logger) -> None:
    failure: list[TonneError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_on_signal, nursery.cancel_scope, log)
        nursery.start_soon(_settle, plan, on_ready, failure, log)
        await pyfuse3.main(min_tasks=TASKS_MIN, max_tasks=TASKS_MAX)
        nursery.cancel_scope.cancel()
    if failure:
        raise failure[0]


async def _end_on_signal(scope: trio.CancelScope, log: logging.Logger) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("told to end by %s", signal.Signals(number).name)
            pyfuse3.terminate()
            await trio.sleep(STOP_GRACE_S)
            # Readers may wait for a source; they are not waited for.
            scope.cancel()


async def _settle(
    plan: MountPlan, on_ready: Callable[[], None], failure: list[TonneError], log: logging.Logger
) -> None:
    """See the mount answer, and give the kernel larger read-ahead: it can only be raised once the mount is there."""
    what = "the mount does not answer"
    try:
        with trio.fail_after(plan.deadline_s):
            device = await trio.to_thread.run_sync(_device_of, plan.point, abandon_on_cancel=True)
    except OSError as error:
        failure.append(local_error(error, what, str(plan.point), reading=True))
    except trio.TooSlowError:
        failure.append(DeadlineExceeded(what, where=str(plan.point), why=f"within {plan.deadline_s:g} s"))
    else:
        tune_kernel(device, log)
        on_ready()
        return
    pyfuse3.terminate()


def _device_of(point: Path) -> int:
    return os.stat(point).st_dev


def tune_kernel(device: int, log: logging.Logger, bdi: Path = BDI, connections: Path = CONNECTIONS) -> None:
    """Set what makes reading fast, for the file system with that st_dev, as far as it is permitted.

    Neither is an option of the mount: the kernel takes only a smaller read-ahead from us, and libfuse's low-level
    session sets no background.  Only root may; the second is of little weight and passed over in silence.
    """
    try:
        (bdi / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb").write_text(str(READ_AHEAD_KIB))
    except OSError as error:
        log.warning("the kernel's read-ahead stays small, sequential reads are slower: %s", error)
    # Root's mounts have the number of their device; where it is not shown, as in containers, the default stays.
    connection = connections / str(os.minor(device))
    for name, value in (("max_background", BACKGROUND_MAX), ("congestion_threshold", BACKGROUND_MAX * 3 // 4)):
        try:
            (connection / name).write_text(str(value))
        except OSError:
            pass
