"""`tonne inspect`: what an image is, without reading its content."""

from __future__ import annotations

import itertools

import click

from tonne.cli.amounts import amount, name_fields, share, shown
from tonne.cli.session import Session
from tonne.image.report import ImageReport, report_of
from tonne.model import Entry
from tonne.model.entry import ROOT_INODE

PACKS_SHOWN = 10  # to people; --json has all
NAMES_SHOWN = 20


@click.command("inspect")
@click.argument("ref")
@click.pass_obj
def command(session: Session, ref: str) -> None:
    """Show the image REF: tree, packs, sizes, what was new.  --json has every pack."""
    image = session.image(ref, store=session.store())
    report = report_of(image, session.deadline())
    root = image.index.entry(ROOT_INODE, session.deadline())
    top = list(itertools.islice(image.index.children(root, session.deadline()), NAMES_SHOWN))
    names = [
        {**name_fields(entry.name, "name"), "kind": entry.kind.name.lower(), "sizeBytes": entry.size_bytes}
        for entry in top
    ]
    document = {"reference": ref, **report.document(), "top": {"count": root.children, "names": names}}
    session.emit(document, lambda: _show(ref, report, root, top))


def _show(ref: str, report: ImageReport, root: Entry, top: list[Entry]) -> None:
    totals, config = report.root.totals, report.config
    stored = share(report.stored_bytes, totals.content_bytes)
    used = share(report.used_bytes, report.stored_bytes)
    rows = [
        ("image", ref),
        ("digest", str(report.digest)),
        ("content", f"{amount(totals.content_bytes)} in {totals.files} files, {totals.entries} entries"),
        ("stored", f"{amount(report.stored_bytes)} in {len(report.root.packs)} packs ({stored})"),
        ("used", f"{amount(report.used_bytes)} of it by this image ({used})"),
        ("new", f"{amount(config.new_stored_bytes)} stored for {amount(config.new_content_bytes)} of content"),
        ("base", ", ".join(str(digest) for digest in config.bases) or "none"),
        ("index", f"{amount(report.index_bytes)}, depth {report.root.depth}, {report.root.frames} frames"),
        ("encoder", config.encoder),
        ("options", ", ".join(f"{name}={value}" for name, value in sorted(config.options.items())) or "none"),
        ("features", f"incompatible {report.root.incompatible:#x}, compatible {report.root.compatible:#x}"),
    ]
    rows += [("annotation", f"{name}={value}") for name, value in sorted(report.annotations.items())]
    for name, value in rows:
        print(f"{name:<11}{shown(value.encode())}")
    print(f"tree       {root.children} at the top")
    for entry in top:
        mark = "/" if entry.is_dir else ""
        what = f"{entry.children} entries" if entry.is_dir else amount(entry.size_bytes)
        print(f"  {what:>12}  {shown(entry.name)}{mark}")
    if root.children > len(top):
        print(f"  {'':>12}  and {root.children - len(top)} more")
    print("packs")
    for pack in report.root.packs[:PACKS_SHOWN]:
        part = share(pack.used_bytes, pack.size_bytes)
        print(f"  {amount(pack.size_bytes):>12}  {pack.digest}  {pack.frames} frames, used {part}")
    if len(report.root.packs) > PACKS_SHOWN:
        print(f"  {'':>12}  and {len(report.root.packs) - PACKS_SHOWN} more (--json lists all)")
