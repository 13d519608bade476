"""`tonne diff`: what differs between two images, and what they share."""

from __future__ import annotations

import sys
from typing import Any

import click

from tonne.cli.amounts import amount, name_fields, share, shown
from tonne.cli.session import Session
from tonne.cli.stream import DocumentStream
from tonne.image.diff import Change, Difference, Sharing, differences, sharing

_SIGNS = {Change.ADDED: "+", Change.REMOVED: "-", Change.CHANGED: "~"}


@click.command("diff")
@click.argument("old")
@click.argument("new")
@click.pass_context
def command(ctx: click.Context, old: str, new: str) -> None:
    """Compare the image OLD with the image NEW: + added, - removed, ~ changed.

    Exit status 0: no difference, 1: differences, others: errors.  Owners and times alone are no difference.
    """
    session: Session = ctx.obj
    session.check_hosts(old, new)
    first, second = session.image(old, store=session.store()), session.image(new, store=session.store())
    counts = dict.fromkeys(Change, 0)
    out = None
    if session.as_json:
        head = {
            "old": {"reference": old, "digest": str(first.digest)},
            "new": {"reference": new, "digest": str(second.digest)},
        }
        out = DocumentStream(sys.stdout, "differences", head)
    deadline = session.deadline_each()
    found = differences(first.index, second.index, deadline) if first.digest != second.digest else iter(())
    for item in found:
        counts[item.change] += 1
        if out is not None:
            out.item(_document(item))
        else:
            print(_line(item))
    if first.digest == second.digest:
        used = sum(pack.used_bytes for pack in first.index.root.packs)
        sums = Sharing(used, used, used)
    else:
        sums = sharing(first.index, second.index, deadline)
    session.progress.close()
    if out is not None:
        shared = {"oldBytes": sums.old_bytes, "newBytes": sums.new_bytes, "sharedBytes": sums.shared_bytes}
        out.end({"counts": {change.value: count for change, count in counts.items()}, "stored": shared})
    else:
        told = ", ".join(f"{count} {change.value}" for change, count in counts.items())
        part = share(sums.shared_bytes, sums.new_bytes)
        print(f"{told}; {amount(sums.shared_bytes)} of {amount(sums.new_bytes)} stored are shared ({part})")
        sys.stdout.flush()
    ctx.exit(1 if any(counts.values()) else 0)


def _line(item: Difference) -> str:
    entry = item.new or item.old
    assert entry is not None
    name = shown(item.path) + ("/" if entry.is_dir else "")
    if item.old is None or item.new is None:
        size = "" if entry.is_dir else amount(entry.size_bytes)
    elif item.old.kind is not item.new.kind:
        size = f"{item.old.kind.name.lower()} becomes {item.new.kind.name.lower()}"
    elif item.old.size_bytes != item.new.size_bytes:
        size = f"{amount(item.old.size_bytes)} -> {amount(item.new.size_bytes)}"
    elif (item.old.digest, item.old.target) == (item.new.digest, item.new.target):
        size = f"mode {item.old.permissions:o} -> {item.new.permissions:o}"
    else:
        size = amount(item.new.size_bytes)
    return f"{_SIGNS[item.change]} {name}  {size}".rstrip()


def _document(item: Difference) -> dict[str, Any]:
    document: dict[str, Any] = {"change": item.change.value, **name_fields(item.path)}
    for key, entry in (("old", item.old), ("new", item.new)):
        if entry is not None:
            document[key] = {
                "kind": entry.kind.name.lower(),
                "sizeBytes": entry.size_bytes,
                "mode": f"{entry.permissions:04o}",
            }
            if entry.is_file:
                document[key]["blake3"] = entry.digest.hex()
    return document
