"""`tonne cat`: a file's content on standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from tonne.cli.session import Session
from tonne.codec.frames import Bytes
from tonne.errors import UsageError
from tonne.heap import tame_allocator
from tonne.image.opening import Image
from tonne.image.runs import Contents, Run, file_extents, runs_of
from tonne.image.workers import Halt, in_order
from tonne.model import Entry, Extent
from tonne.settings import Settings

ZEROS_BYTES = 1 << 20


@click.command("cat")
@click.argument("ref")
@click.argument("path")
@click.pass_obj
def command(session: Session, ref: str, path: str) -> None:
    """Write the file PATH of the image REF to standard output.  Bytes are verified before they are written."""
    tame_allocator()
    image = session.image(ref, store=session.store())
    entry = image.index.resolve(os.fsencode(path), session.deadline())
    if not entry.is_file:
        raise UsageError("only a file can be written", where=path, why="it is a folder", todo="see `tonne ls REF PATH`")
    sys.stdout.flush()
    descriptor = sys.stdout.fileno()
    for piece in content(image, entry, session.settings):
        view = memoryview(piece)
        while view:
            view = view[os.write(descriptor, view) :]


def content(image: Image, entry: Entry, settings: Settings) -> Iterator[Bytes]:
    """A file's bytes in order, fetched ahead by several connections."""
    halt = Halt()
    contents = Contents(image.fetcher, image.index)

    def work(run: Run[None]) -> tuple[Run[None], list[Bytes]]:
        return run, contents.of(run.frames, halt.deadline)

    wanted: Iterator[tuple[None, Extent]] = (
        (None, extent) for extent in file_extents(image.index, entry, halt.deadline)
    )
    runs = runs_of(wanted, image.index, settings.network.request_bytes, halt.deadline)
    try:
        for run, decoded in in_order(runs, work, settings.network.connections, halt):
            for _, extent, place in run.uses:
                if place is None:
                    yield from _zeros(extent.length)
                else:
                    yield memoryview(decoded[place])[extent.frame_offset : extent.frame_offset + extent.length]
    finally:
        halt.stop()


def _zeros(length: int) -> Iterator[bytes]:
    while length:
        step = min(length, ZEROS_BYTES)
        yield bytes(step)
        length -= step
