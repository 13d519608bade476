"""`tonne ls`: names in an image."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from tonne.cli.amounts import name_fields, shown
from tonne.cli.session import Session
from tonne.cli.stream import DocumentStream
from tonne.clock import Deadline
from tonne.image.index import Index
from tonne.model import Entry


@click.command("ls")
@click.argument("ref")
@click.argument("path", default="")
@click.option("-l", "--long", is_flag=True, help="Mode, links, owner, size and time too.")
@click.option("-R", "--recursive", is_flag=True, help="Folders with all that is in them.")
@click.pass_obj
def command(session: Session, ref: str, path: str, long: bool, recursive: bool) -> None:
    """List PATH (default: the top) in the image REF."""
    image = session.image(ref, store=session.store())
    index = image.index
    start = index.resolve(os.fsencode(path), session.deadline())
    if start.is_dir:
        entries = _below(index, start, recursive, session.deadline_each())
    else:
        entries = iter([(os.fsencode(path), start)])
    session.progress.close()
    if session.as_json:
        out = DocumentStream(
            sys.stdout, "entries", {"reference": ref, "digest": str(image.digest), **name_fields(os.fsencode(path))}
        )
        for name, entry in entries:
            out.item(_document(name, entry))
        out.end({})
        return
    for name, entry in entries:
        print((_long(entry) if long else "") + shown(name) + _mark(entry, long))
    sys.stdout.flush()


def _below(index: Index, folder: Entry, recursive: bool, deadline: Deadline) -> Iterator[tuple[bytes, Entry]]:
    """What is in a folder; memory depends on the depth of the tree alone."""
    levels = [(b"", index.children(folder, deadline))]
    while levels:
        where, entries = levels[-1]
        entry = next(entries, None)
        if entry is None:
            levels.pop()
            continue
        name = where + b"/" + entry.name if where else entry.name
        yield name, entry
        if recursive and entry.is_dir:
            levels.append((name, index.children(entry, deadline)))


def _mark(entry: Entry, long: bool) -> str:
    if entry.is_dir:
        return "/"
    return f" -> {shown(entry.target)}" if entry.target and long else ""


def _long(entry: Entry) -> str:
    seconds, nanoseconds = divmod(entry.mtime_ns, 10**9)
    try:
        time = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        time = str(seconds)  # beyond the years that a calendar here knows
    mode = stat.filemode(entry.mode)
    return f"{mode} {entry.links:>3} {entry.uid:>5} {entry.gid:>5} {entry.size_bytes:>14} {time}.{nanoseconds:09} "


def _document(name: bytes, entry: Entry) -> dict[str, Any]:
    document: dict[str, Any] = {
        **name_fields(name),
        "kind": entry.kind.name.lower(),
        "mode": f"{entry.permissions:04o}",
        "uid": entry.uid,
        "gid": entry.gid,
        "mtimeNs": entry.mtime_ns,
        "sizeBytes": entry.size_bytes,
        "links": entry.links,
        "inode": entry.inode,
    }
    if entry.is_file:
        document["blake3"] = entry.digest.hex()
    if entry.target:
        document |= name_fields(entry.target, "target")
    if entry.xattrs:
        document["xattrs"] = [{**name_fields(key, "name"), "hex": value.hex()} for key, value in entry.xattrs]
    return document
