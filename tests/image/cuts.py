"""Killing a command at random moments of its work, on machines of any speed."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable

TRIES_MAX = 40


def cut(
    times: int,
    number: signal.Signals,
    start: Callable[[], subprocess.Popen[bytes]],
    anew: Callable[[], None],
    rolls: random.Random,
) -> None:
    """Send a signal to as many processes as `times` says while they work.

    `start` gives a process that is inside its work and prints once that is done.  One that ends before its moment came
    does not count: `anew` then undoes its work, and the moments come earlier from then on.
    """
    span_s = 0.4
    for _ in range(TRIES_MAX):
        process = start()
        time.sleep(rolls.uniform(0.0, span_s))
        process.send_signal(number)
        out, said = process.communicate(timeout=30)
        expected = -number if number is signal.SIGKILL else 130
        if out or not process.returncode:
            # Python gives up its handlers before it ends; then a signal has its own effect.
            assert process.returncode in (0, expected, -number), said
            span_s *= 0.6
            anew()
            continue
        assert process.returncode == expected, said
        times -= 1
        if not times:
            return
    raise AssertionError(f"{times} more should have been cut; each ended before {span_s} s")
