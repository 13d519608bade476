"""The command `tonne`: one verb a file, each with a `command` of its own."""

from tonne.cli.main import main

__all__ = ["main"]
