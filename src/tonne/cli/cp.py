"""`tonne cp`: an image from one repository to another, with every digest kept."""

from __future__ import annotations

import time
from typing import Any

import click

from tonne.cli.amounts import amount
from tonne.cli.session import Session
from tonne.image.copy import CopyReport, copy
from tonne.model import parse_reference
from tonne.source.compose import compose_reader, mount_name


@click.command("cp")
@click.argument("source")
@click.argument("target")
@click.pass_obj
def command(session: Session, source: str, target: str) -> None:
    """Copy the image SOURCE to TARGET, between registries and layouts.

    Blobs that TARGET has are not moved, within one registry they are linked.  After an interruption the same command
    goes on where the registry acknowledged.  Any OCI or Docker image of one platform can be copied.
    """
    began_s = time.monotonic()
    origin, place = parse_reference(source), parse_reference(target)
    session.check_hosts(origin, place)
    reader = compose_reader([session.repository(origin)], session.settings, on_event=session.warn)
    repository = session.repository(place)
    report = copy(
        reader,
        origin.name,
        repository,
        place.name,
        session.progress,
        mount_from=mount_name(origin, place),
        journal_folder=session.settings.cache.folder if session.use_cache else None,
        confirm=compose_reader([repository], session.settings, on_event=session.warn),
        on_event=session.warn,
    )
    taken_s = time.monotonic() - began_s
    session.emit(_document(source, target, report, taken_s), lambda: _show(target, report, taken_s))


def _document(source: str, target: str, report: CopyReport, taken_s: float) -> dict[str, Any]:
    return {
        "source": source,
        "target": target,
        "digest": str(report.digest),
        "blobs": report.blobs,
        "totalBytes": report.total_bytes,
        "presentBytes": report.present_bytes,
        "mountedBytes": report.mounted_bytes,
        "resumedBytes": report.resumed_bytes,
        "sentBytes": report.sent_bytes,
        "seconds": round(taken_s, 3),
    }


def _show(target: str, report: CopyReport, taken_s: float) -> None:
    print(f"{target}@{report.digest}")
    parts = [
        f"{amount(size)} {what}"
        for size, what in (
            (report.sent_bytes, "sent"),
            (report.mounted_bytes, "linked"),
            (report.present_bytes, "there before"),
            (report.resumed_bytes, "sent by an earlier run"),
        )
        if size
    ]
    print(f"{report.blobs} blobs, {amount(report.total_bytes)}: {', '.join(parts)}; {taken_s:.1f} s")
