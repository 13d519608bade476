"""What a detached mount process tells the command that started it: one line of JSON through a pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tonne.errors import LocalFailure, TonneError, codes

REPORT_VARIABLE = "TONNE_MOUNT_REPORT"  # number of the descriptor to report to; set by `launch`
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


def launch(arguments: Sequence[str], environment: Mapping[str, str], log: Path | None) -> dict[str, Any]:
    """Run `tonne ARGUMENTS` in a session of its own until it reports; returns the report, or raises what it tells.

    It is left running then.  Its output goes to the end of `log`.  When this process is interrupted, it is stopped.
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
        raise LocalFailure("the mount process cannot be started", why=error.strerror or str(error)) from None
    finally:
        os.close(write)
    if not isinstance(output, int):
        output.close()
    try:
        with os.fdopen(read, "rb") as pipe:
            data = pipe.read(_REPORT_BYTES_MAX)
    except BaseException:
        child.send_signal(signal.SIGTERM)
        raise
    if not data:
        status = child.wait()
        raise LocalFailure(
            "the mount process ended before it was ready", why=f"status {status}", todo=f"read {log}" if log else ""
        )
    document: dict[str, Any] = json.loads(data)
    if "error" in document:
        child.wait()
        raise error_of(document)
    # It goes on without us; so nobody is to wait for it, and Python is not to warn that nobody did.
    child.returncode = 0
    return document
