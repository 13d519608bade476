"""`python -m tonne.testing serve`: a registry on loopback with an image of computed content, for anyone to mount."""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from tonne.testing.computed import ComputedImage
from tonne.testing.registry import FaultRegistry, Rules

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_UNITS |= {f"{name}i": 1024**power for power, name in enumerate("kmgtp", 1)}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?i?)b?\Z", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of ``10TB`` (powers of 1000) or ``8GiB`` (powers of 1024); `ValueError` otherwise."""
    found = _SIZE.match(text.strip())
    if not found or found[2].lower() not in _UNITS:
        raise ValueError(f"not a size: {text!r}; write it as 10TB or 8GiB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def reference_name(size: str) -> str:
    """Repository and tag of an image of a size as the user wrote it."""
    return f"computed/{re.sub('[^a-z0-9]+', '-', size.lower()).strip('-')}"


def served(address: str) -> dict[str, int]:
    """`requests` and `bytes_sent` (of bodies) so far, from a `FaultRegistry` in another process."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/testing/stats")
        found: dict[str, int] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM.  The one line on standard output is the reference."""
    parser = argparse.ArgumentParser(prog="python -m tonne.testing", description="Servers for trying tonne out.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    serve = verbs.add_parser("serve", help="a registry on loopback with an image of computed content")
    serve.add_argument("--computed", required=True, metavar="SIZE", help="size of the image, as 10TB or 8GiB")
    serve.add_argument("--files", type=int, default=400, metavar="N", help="number of files (default: 400)")
    serve.add_argument("--port", type=int, default=0, metavar="P", help="port on 127.0.0.1 (default: a free one)")
    serve.add_argument("--seed", type=int, default=1, metavar="N", help="another seed, other content (default: 1)")
    serve.add_argument("--latency", type=float, default=0.0, metavar="MS", help="wait before each answer")
    serve.add_argument("--rate", type=_size, metavar="SIZE", help="bytes a second of each answer, as 100MB")
    options = parser.parse_args(arguments)
    try:
        size_bytes = parse_size(options.computed)
        if size_bytes < 1:
            raise ValueError("the image needs a byte")
        image = _build(size_bytes, options.files, options.seed)
    except ValueError as error:
        serve.error(str(error))
    rules = Rules(latency_s=options.latency / 1000, bytes_per_s=options.rate)
    return _serve(FaultRegistry(rules, port=options.port), image, reference_name(options.computed))


def _build(size_bytes: int, files: int, seed: int) -> ComputedImage:
    began_s = time.monotonic()
    print(f"computing an image of {size_bytes:,} bytes in {files:,} files", file=sys.stderr, flush=True)
    image = ComputedImage(size_bytes, files, seed)
    print(f"done in {time.monotonic() - began_s:.1f} s; end with Ctrl-C", file=sys.stderr, flush=True)
    return image


def _serve(registry: FaultRegistry, image: ComputedImage, repository: str) -> int:
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        with registry:
            print(registry.add_image(repository, "v1", image), flush=True)
            ended.wait()
    except OSError as error:
        print(f"cannot serve: {error}", file=sys.stderr)
        return 1
    return 0
