"""`tonne tags`: the tags of a repository."""

from __future__ import annotations

import click

from tonne.cli.amounts import printable
from tonne.cli.session import Session


@click.command("tags")
@click.argument("repo")
@click.pass_obj
def command(session: Session, repo: str) -> None:
    """List the tags of REPO, such as registry.example.com/ml/bert or oci:./images."""
    repository = session.repository(repo)
    found = list(repository.tags(session.deadline()))

    def people() -> None:
        for tag in found:
            print(printable(tag))

    session.emit({"repository": repository.origin, "tags": found}, people)
