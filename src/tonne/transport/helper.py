"""Docker's credential helpers: a program that is asked for the credentials of one server.

Source: docker/docker-credential-helpers (``docker-credential-NAME get``: the server's name on standard input, JSON on
standard output; errors stand on standard output too).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time

from tonne.clock import Deadline
from tonne.errors import BadSettings, DeadlineExceeded
from tonne.transport.failures import clean

HELPER_TIMEOUT_S = 60.0  # a helper may ask a cloud's API; none may wait for a person
OUTPUT_BYTES_MAX = 64 * 1024  # a token has some KiB
_POLL_S = 0.05  # between looks whether it has ended, although something that it started holds its output open
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
# A helper that fails half-way has perhaps written down what it had got by then.
_FIELD = re.compile(r"(?i)\b(pass(?:word|wd|phrase)?|secret|token|key|auth)([\"']?\s*[:=]\s*)\S+")
_TOKEN = re.compile(r"(?=[A-Za-z0-9+/=_.-]*[0-9])(?=[A-Za-z0-9+/=_.-]*[A-Za-z])[A-Za-z0-9+/=_.-]{20,}")


class _TooMuch(Exception):
    """It wrote more than any credentials have."""


def ask_helper(name: str, server: str, deadline: Deadline) -> tuple[str, str] | None:
    """User name and secret for `server`; None when the helper has none.

    Raises `BadSettings` that names the helper and never what it gave, or `DeadlineExceeded`.  It is ended when it takes
    or says too much.
    """
    program = f"docker-credential-{name}"
    if not _NAME.match(name):
        raise BadSettings("a credential helper has an impossible name", where=name[:80])
    left_s = deadline.left_s()
    timeout_s = HELPER_TIMEOUT_S if left_s is None else min(HELPER_TIMEOUT_S, left_s)
    try:
        status, output, complaint = _run([program, "get"], server.encode(), timeout_s)
    except FileNotFoundError:
        raise BadSettings(
            "a credential helper is not installed",
            where=program,
            todo="install it, or take it out of docker's config.json and log in with `docker login HOST`",
        ) from None
    except TimeoutError:
        if deadline.expired():
            raise DeadlineExceeded("a credential helper did not answer in time", where=program) from None
        raise BadSettings("a credential helper did not answer", where=program, why=f"within {timeout_s:g} s") from None
    except _TooMuch:
        why = f"over {OUTPUT_BYTES_MAX} bytes"
        raise BadSettings("a credential helper writes without an end", where=program, why=why) from None
    except OSError as error:
        raise BadSettings("a credential helper cannot be run", where=program, why=error.strerror or "") from None
    if status != 0:
        said = (output + b" " + complaint).decode("utf-8", "replace")
        if "credentials not found" in said.lower():
            return None
        raise BadSettings("a credential helper failed", where=program, why=_harmless(said))
    try:
        answer = json.loads(output)
        username, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadSettings("a credential helper gave no credentials that can be read", where=program) from None
    if not isinstance(username, str) or not isinstance(secret, str) or not secret:
        return None
    return username, secret


def _harmless(said: str) -> str:
    """What a helper complains of, without what could be a secret."""
    said = clean(said.partition("{")[0])
    return _TOKEN.sub("…", _FIELD.sub(r"\1\2…", said))


def _run(words: list[str], given: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
    """Status, standard output and standard error of a program; not `subprocess.run`, which keeps whatever it writes and
    waits for whoever it has started.  Raises `OSError`, `TimeoutError` or `_TooMuch`; then the program is gone."""
    until_s = time.monotonic() + timeout_s
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # so that it is ended with all that it started
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(given)  # less than a pipe holds
        output, complaint = bytearray(), bytearray()
        _read(child, {child.stdout.fileno(): output, child.stderr.fileno(): complaint}, until_s)
        return child.wait(), bytes(output), bytes(complaint)
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        child.stdout.close()
        child.stderr.close()


def _read(child: subprocess.Popen[bytes], found: dict[int, bytearray], until_s: float) -> None:
    """Read from the descriptors until all are at their end, or the program has ended and nothing more is there."""
    poller = select.poll()
    for descriptor in found:
        poller.register(descriptor, select.POLLIN)
    open_ends = len(found)
    while True:
        ended = child.poll() is not None
        ready = poller.poll(0 if ended else _POLL_S * 1000)
        for descriptor, _ in ready:
            data = os.read(descriptor, OUTPUT_BYTES_MAX)
            found[descriptor] += data
            if not data:
                poller.unregister(descriptor)
                open_ends -= 1
        if sum(map(len, found.values())) > OUTPUT_BYTES_MAX:
            raise _TooMuch
        if ended and (not ready or not open_ends):
            return
        if time.monotonic() >= until_s:
            raise TimeoutError
        if not open_ends:
            time.sleep(_POLL_S)  # it has closed its output and goes on
