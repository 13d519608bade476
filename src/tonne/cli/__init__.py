"""The command `tonne`: one verb a file, each with a `command` of its own."""

from __future__ import annotations

import os
import signal
from types import FrameType

from tonne.errors import Interrupted


def main() -> None:
    """Run the command line of this process and exit with its status."""
    # While the rest is loaded nothing has begun, so a signal then needs no clean-up, and no traceback.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    from tonne.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(Interrupted.exit_status)


__all__ = ["main"]
