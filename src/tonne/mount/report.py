"""What a detached mount process tells the command that started it: one line of JSON through a pipe."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tonne.durable import local_error
from tonne.errors import DeadlineExceeded, LocalFailure, TonneError, codes
from tonne.mount.children import END_WAIT_S, end, ended_within, let_go

REPORT_VARIABLE = "TONNE_MOUNT_REPORT"  # number of the descriptor to report to; set by `launch`
START_WAIT_S = 60.0  # for what a mount does without a deadline of its own: loading Python, looking at the cache
_REPORT_BYTES_MAX = 1024 * 1024


def send_report(descriptor: int, document: Mapping[str, Any]) -> None:
    """Write the report and close the descriptor; that nobody reads it any more is no error."""
    data = memoryview(json.dumps(document).encode())
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        pass
    finally:
        os.close(descriptor)


def error_of(document: Mapping[str, Any]) -> TonneError:
    """The error that a JSON document of `TonneError.document` tells of."""
    body = document["error"]
    cls = codes().get(str(body.get("code")), TonneError)
    return cls(
        str(body.get("what", "")),
        where=str(body.get("where", "")),
        why=str(body.get("why", "")),
        todo=str(body.get("next", "")),
        **dict(body.get("fields", {})),
    )


def launch(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path | None,
    wait_s: float = START_WAIT_S,
    end_s: float = END_WAIT_S,
) -> dict[str, Any]:
    """Run `tonne ARGUMENTS` in a session of its own until it reports; returns the report, or raises what it tells.

    It is left running then.  Its output goes to the end of `log`.  When this process is interrupted, it is stopped.
    What does not report within `wait_s` is ended (`DeadlineExceeded`), and so is what does not end by itself within
    `end_s` when it should.
    """
    read, write = os.pipe()
    try:
        output: IO[bytes] | int = open(log, "ab") if log is not None else subprocess.DEVNULL  # noqa: SIM115
        child = subprocess.Popen(
            # -P: a folder named tonne where the user happens to be is not the program.
            [sys.executable, "-P", "-m", "tonne", *arguments],
            env={**environment, REPORT_VARIABLE: str(write)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(write,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(read)
        raise local_error(error, "the mount process cannot be started", reading=True) from None
    finally:
        os.close(write)
    if not isinstance(output, int):
        output.close()
    todo = f"read {log}" if log else ""
    try:
        with os.fdopen(read, "rb", buffering=0) as pipe:
            data = _read_report(pipe.fileno(), time.monotonic() + wait_s)
    except TimeoutError:
        end(child, end_s)
        raise DeadlineExceeded("the mount is not ready in time", why=f"within {wait_s:g} s", todo=todo) from None
    except BaseException:
        child.send_signal(signal.SIGTERM)
        raise
    try:
        document: dict[str, Any] = json.loads(data)
    except ValueError:
        document = {}
    if "mounted" in document:
        let_go(child)
        return document
    if not ended_within(child, end_s):
        end(child, end_s)
    if "error" in document:
        raise error_of(document)
    raise LocalFailure("the mount process ended before it was ready", why=f"status {child.returncode}", todo=todo)


def _read_report(descriptor: int, until_s: float) -> bytes:
    """All that is written until the other end is closed; `TimeoutError` when that comes too late."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    found = bytearray()
    while len(found) < _REPORT_BYTES_MAX:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if poller.poll(left_s * 1000):
            data = os.read(descriptor, _REPORT_BYTES_MAX)
            if not data:
                break
            found += data
    return bytes(found)
