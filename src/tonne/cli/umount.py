"""`tonne umount`: a mounted image goes away."""

from __future__ import annotations

from pathlib import Path

import click

from tonne.cli.session import Session
from tonne.mount.unmount import unmount


@click.command("umount")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--lazy", is_flag=True, help="Although it is in use: it vanishes, and open files stay readable.")
@click.pass_obj
def command(session: Session, directory: Path, lazy: bool) -> None:
    """Unmount the image at DIR.

    When processes use it, they are named, and nothing is changed.
    """
    pid = unmount(directory, lazy)
    document = {"mountpoint": str(directory), "pid": pid}
    session.emit(document, lambda: click.echo(f"unmounted {directory}"))
