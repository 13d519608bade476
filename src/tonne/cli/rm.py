"""`tonne rm`: remove an image from a registry or layout."""

from __future__ import annotations

import click

from tonne.cli.session import Session
from tonne.errors import UsageError
from tonne.model import parse_reference
from tonne.source.compose import compose_reader


@click.command("rm")
@click.argument("ref")
@click.pass_obj
def command(session: Session, ref: str) -> None:
    """Remove the image REF.

    A registry removes the manifest, and with it every other tag of the same image; its blobs go with the registry's
    garbage collection, a layout's at once if no other image uses them.
    """
    reference = parse_reference(ref)
    if not reference.tag and reference.digest is None:
        raise UsageError("a tag or digest is needed", where=ref, why="nothing is removed by default")
    repository = session.repository(reference)
    reader = compose_reader([repository], session.settings, on_event=session.warn)
    digest = reader.manifest(reference.name, session.deadline()).digest
    repository.delete(digest, reference.tag, session.deadline())
    session.emit({"removed": str(reference), "digest": str(digest)}, lambda: print(f"removed {reference} ({digest})"))
