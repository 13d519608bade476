"""`tonne mount`: an image becomes a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tonne.cli.session import Session
from tonne.errors import NoFuse, TonneError, UsageError
from tonne.heap import tame_allocator
from tonne.model import LayoutReference, Reference, parse_reference
from tonne.mount.checks import check_fuse, check_point, may_allow_other
from tonne.mount.log import Quiet, log_file, log_path, logger_to_stderr
from tonne.mount.report import REPORT_VARIABLE, START_WAIT_S, launch, send_report

DEADLINES = 3  # of a mount before it is there: for the image, for the entry at its top, for the kernel's first look


def _octal(ctx: click.Context, param: click.Parameter, value: str) -> int:
    try:
        number = int(value, 8)
    except ValueError:
        number = -1
    if not 0 <= number <= 0o777:
        raise click.BadParameter(f"{value!r} is no octal number between 000 and 777")
    return number


@click.command("mount")
@click.argument("ref")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--uid", type=click.IntRange(0, 2**32 - 2), help="Owner of all files, instead of the image's.")
@click.option("--gid", type=click.IntRange(0, 2**32 - 2), help="Group of all files, instead of the image's.")
@click.option(
    "--umask",
    callback=_octal,
    default="000",
    metavar="OCTAL",
    help="Permission bits to take away from all, such as 022.",
)
@click.option(
    "--allow-other/--no-allow-other",
    default=None,
    help="Whether other users may read, as the permissions have it; by default they may where that is permitted.",
)
@click.option("--foreground", is_flag=True, help="Serve the mount in this process until it is unmounted.")
@click.pass_obj
def command(
    session: Session,
    ref: str,
    directory: Path,
    uid: int | None,
    gid: int | None,
    umask: int,
    allow_other: bool | None,
    foreground: bool,
) -> None:
    """Mount the image REF at the empty folder DIR and return once it is there.

    The mount stays with the image that REF names now: the digest is printed.  `tonne umount DIR` ends it.
    """
    report = os.environ.get(REPORT_VARIABLE)
    if report is not None:
        os.environ.pop(REPORT_VARIABLE)  # not for the programs that we run
        os.set_inheritable(int(report), False)
    options = {"uid": uid, "gid": gid, "umask": umask}
    try:
        reference = parse_reference(ref)
        others = _allow_other(allow_other)
        check_fuse()
        point = check_point(directory)
        if report is None and not foreground:
            log = log_file(session.settings.cache.folder, point)
            wait_s = START_WAIT_S + DEADLINES * session.settings.read.deadline_s
            reported = launch(session.arguments, os.environ, log, wait_s)
            document = reported["mounted"] | {"log": str(log) if log else None}
            session.emit(document, lambda: _say(document))
            return

        def ready(document: dict[str, Any]) -> None:
            if report is not None:
                send_report(int(report), {"mounted": document})
            else:
                session.emit(document, lambda: _say(document))

        _serve(session, reference, point, others, options, ready)
    except TonneError as error:
        if report is not None:
            _try_report(int(report), error)
        raise


def _allow_other(wanted: bool | None) -> bool:
    permitted = may_allow_other()
    if wanted and not permitted:
        raise UsageError(
            "other users cannot be let in",
            why="only root may, or everyone where /etc/fuse.conf says user_allow_other",
            todo="add that line to /etc/fuse.conf, or leave out --allow-other",
        )
    return permitted if wanted is None else wanted


def _serve(
    session: Session,
    reference: Reference,
    point: Path,
    others: bool,
    options: dict[str, Any],
    ready: Callable[[dict[str, Any]], None],
) -> None:
    """Open the image, mount it, and serve it until it is unmounted."""
    tame_allocator()
    # Not at the top: the process that only starts this one and waits for it loads none of it.
    from tonne.image.opening import open_image
    from tonne.image.view import View
    from tonne.source.compose import compose_reader

    try:
        from tonne.mount.attributes import Owner
        from tonne.mount.serve import MountPlan, serve
    except ImportError as error:
        raise NoFuse("the FUSE mount cannot be loaded", why=str(error)) from None
    # What is relative to the working folder is made absolute, since that folder is left: it must not stay in use.
    if isinstance(reference, LayoutReference):
        reference = replace(reference, path=os.path.abspath(reference.path))
    settings = session.settings = _absolute(session)
    log = logger_to_stderr(log_path(settings.cache.folder, point))
    quiet = Quiet(log)
    store = session.store()
    source = compose_reader([session.repository(reference)], settings, on_event=quiet.tell)
    image = open_image(source, reference.name, settings, session.deadline(), store, quiet.tell)
    pinned = reference.pinned(image.digest)
    document: dict[str, Any] = {
        "reference": str(reference),
        "pinned": str(pinned),
        "digest": str(image.digest),
        "mountpoint": str(point),
        "pid": os.getpid(),
        "allowOther": others,
    }
    plan = MountPlan(
        point=point,
        name=str(pinned),
        owner=Owner(**options),
        allow_other=others,
        deadline_s=settings.read.deadline_s,
        state=document,
    )
    os.chdir("/")
    view = View(image, settings)
    try:
        log.info("mounting %s at %s", pinned, point)
        serve(view, plan, lambda: ready(document), log, quiet)
        log.info("unmounted %s", point)
    finally:
        view.close()


def _absolute(session: Session) -> Any:
    settings = session.settings
    cache = replace(settings.cache, folder=Path(os.path.abspath(settings.cache.folder.expanduser())))
    ca_file = settings.network.ca_file
    network = replace(settings.network, ca_file=Path(os.path.abspath(ca_file)) if ca_file else None)
    return replace(settings, cache=cache, network=network)


def _try_report(descriptor: int, error: TonneError) -> None:
    try:
        send_report(descriptor, error.document())
    except OSError:
        pass  # it was mounted and reported; the log has the error


def _say(document: dict[str, Any]) -> None:
    click.echo(f"mounted {document['reference']} at {document['mountpoint']}")
    click.echo(f"digest  {document['digest']}")
    if not document["allowOther"]:
        click.echo("only this user can read it: put user_allow_other into /etc/fuse.conf to let others in", err=True)
