"""`tonne pack`: a folder becomes an image."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from tonne.cli.amounts import amount
from tonne.cli.environment import parse_size
from tonne.cli.session import Session
from tonne.errors import BadSettings
from tonne.image.pack import BaseSource, Links, PackOptions, PackResult, pack_folder
from tonne.model import parse_reference
from tonne.source.compose import compose_reader
from tonne.source.seam import Repository, Source


@click.command("pack")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("ref")
@click.option("--base", "bases", multiple=True, metavar="REF", help="Image to look for content in; may be repeated.")
@click.option(
    "--no-base", is_flag=True, help="Store all content anew.  Without it the tag's present image is the base."
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="What to leave out, as in a .gitignore; also read from .tonneignore.",
)
@click.option(
    "--links",
    type=click.Choice([item.value for item in Links]),
    default=Links.FOLLOW.value,
    show_default=True,
    help="What becomes of symbolic links that leave the folder.",
)
@click.option("--reproducible", is_flag=True, help="Owners become 0, times SOURCE_DATE_EPOCH or 0.")
@click.option("--annotation", "annotations", multiple=True, metavar="KEY=VALUE", help="Put into the manifest.")
@click.option("--pack-size", metavar="SIZE", help="Size of packs; default 4GiB, more for models beyond 4.8 TiB.")
@click.option("--level", type=click.IntRange(1, 19), help="Level of zstd.")
@click.pass_obj
def command(
    session: Session,
    source: Path,
    ref: str,
    bases: tuple[str, ...],
    no_base: bool,
    exclude: tuple[str, ...],
    links: str,
    reproducible: bool,
    annotations: tuple[str, ...],
    pack_size: str | None,
    level: int | None,
) -> None:
    """Pack the folder SOURCE into the image REF.

    Content that the base has is not stored again.  After an interruption the same command goes on where it was.
    """
    if bases and no_base:
        raise BadSettings("--base and --no-base exclude each other")
    settings = session.settings
    reference = parse_reference(ref)
    options = PackOptions(
        exclude=exclude,
        links=Links(links),
        reproducible=reproducible,
        mtime_s=_epoch(os.environ.get("SOURCE_DATE_EPOCH", "")) if reproducible else 0,
        annotations=_pairs(annotations),
        pack_bytes=parse_size(pack_size, "the pack size") if pack_size else settings.pack.pack_bytes,
        level=level or settings.pack.level,
    )
    session.check_hosts(reference, *bases)
    repository = session.repository(reference)
    asked = None if not (bases or no_base) else [_base(session, text) for text in bases]

    def run(folder: Path | None) -> PackResult:
        return pack_folder(
            source,
            reference,
            repository,
            _reader(session, repository),
            options,
            settings,
            bases=asked,
            folder=folder,
            resumable=folder is None,
            progress=session.progress,
        )

    if session.use_cache:
        result = run(None)
    else:
        # Tables need a place all the same; an interrupted packing starts over then.
        with tempfile.TemporaryDirectory(prefix="tonne-pack-") as folder:
            result = run(Path(folder))
    session.emit(result.document(), lambda: _show(result))


def _reader(session: Session, repository: Repository) -> Source:
    return compose_reader([repository], session.settings, on_event=session.warn)


def _base(session: Session, text: str) -> BaseSource:
    reference = parse_reference(text)
    return BaseSource(reference, _reader(session, session.repository(reference)))


def _epoch(text: str) -> int:
    if not text:
        return 0
    try:
        seconds = int(text)
    except ValueError:
        raise BadSettings("SOURCE_DATE_EPOCH is no number of seconds", where=text) from None
    if not 0 <= seconds < 1 << 33:
        raise BadSettings("SOURCE_DATE_EPOCH is out of range", where=text)
    return seconds


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or key in found:
            raise BadSettings("an annotation is not KEY=VALUE, or is given twice", where=text)
        found[key] = value
    return found


def _show(result: PackResult) -> None:
    print(f"{result.reference}@{result.digest}")
    print(f"  content  {amount(result.content_bytes)} in {result.files} files")
    print(f"  stored   {amount(result.stored_bytes)} in {result.packs_new + result.packs_reused} packs")
    if result.unchanged:
        print("  new      nothing: the tag names this image already")
    else:
        print(
            f"  new      {amount(result.new_stored_bytes)} for {amount(result.new_content_bytes)} of content,"
            f" {amount(result.sent_bytes)} sent"
        )
    speed = result.content_bytes / max(result.seconds, 1e-9)
    print(f"  time     {result.seconds:.1f} s, {amount(speed)}/s")
