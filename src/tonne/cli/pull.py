"""`tonne pull`: an image's files in a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from tonne.cli.amounts import amount
from tonne.cli.session import Session
from tonne.heap import tame_allocator
from tonne.image.pull import PullReport, pull
from tonne.image.pull_state import ReadOnlyKeeper


@click.command("pull")
@click.argument("ref")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--include", multiple=True, metavar="GLOB", help="Only what matches, as in a .gitignore; may be repeated."
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="Not what matches; may be repeated.")
@click.option(
    "--force", is_flag=True, help="Replace files of DIR that differ; leave those that the image does not have."
)
@click.pass_obj
def command(
    session: Session, ref: str, folder: Path, include: tuple[str, ...], exclude: tuple[str, ...], force: bool
) -> None:
    """Write the files of the image REF to DIR.

    After an interruption the same command goes on.  Files that are there with the right size and time are kept without
    reading them; `tonne verify REF DIR` reads them.  What the cache holds is used, but nothing is added to it.
    """
    tame_allocator()
    store = session.store()
    began_s = time.monotonic()
    image = session.image(ref, store=ReadOnlyKeeper(store) if store is not None else None)
    report = pull(
        image,
        folder,
        session.settings,
        session.progress,
        include=include,
        exclude=exclude,
        force=force,
        on_event=session.warn,
    )
    taken_s = time.monotonic() - began_s
    session.emit(_document(ref, folder, report, taken_s), lambda: _show(ref, folder, report, taken_s))


def _document(ref: str, folder: Path, report: PullReport, taken_s: float) -> dict[str, Any]:
    return {
        "reference": ref,
        "digest": str(report.digest),
        "folder": str(folder),
        "files": report.files,
        "entries": report.entries,
        "contentBytes": report.content_bytes,
        "keptFiles": report.kept_files,
        "keptBytes": report.kept_bytes,
        "foundBytes": report.found_bytes,
        "madeBytes": report.made_bytes,
        "seconds": round(taken_s, 3),
    }


def _show(ref: str, folder: Path, report: PullReport, taken_s: float) -> None:
    print(f"{ref}@{report.digest}")
    if report.kept_files == report.files and not report.made_bytes + report.found_bytes:
        print(f"{folder} was complete: {report.files} files of the right size and time; none was read or fetched")
        return
    speed = f"{amount(report.made_bytes / max(taken_s, 1e-9))}/s"
    print(f"{report.files} files, {amount(report.content_bytes)} in {folder}, {taken_s:.1f} s, {speed}")
    if report.kept_files:
        print(f"{report.kept_files} files, {amount(report.kept_bytes)}, were there (by size and time)")
    if report.found_bytes:
        print(f"{amount(report.found_bytes)} came from the unfinished pull")
