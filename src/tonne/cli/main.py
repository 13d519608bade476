"""The entry point: global options, lazy verbs, and what every error looks like."""

from __future__ import annotations

import importlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click

from tonne.cli.amounts import printable
from tonne.cli.environment import settings_from
from tonne.cli.session import Session
from tonne.errors import DiskFull, Interrupted, LocalFailure, TonneError

DESCRIPTORS = 65536  # a 10 TB image has 1,200 packs, three descriptors each in the cache; the system's default is 1,024

_VERBS = {
    "pack": "Pack a folder into an image",
    "inspect": "Show an image: tree, packs, sizes, what was new",
    "ls": "List files of an image",
    "cat": "Write a file of an image to standard output",
    "diff": "Compare two images",
    "tags": "List the tags of a repository",
    "rm": "Remove a tag or an image",
    "mount": "Mount an image; returns once it is mounted",
    "umount": "Unmount an image",
    "pull": "Write an image's files to a folder",
    "verify": "Check an image, or a folder against it",
    "cp": "Copy an image between registries and layouts",
}


class _ReaderGone(Exception):
    """Standard output was closed at the other end."""


class _Verbs(click.Group):
    """Imports a verb only when it is used, so that `tonne --help` is quick and a missing extra breaks one verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = importlib.import_module(f"tonne.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """The verb; click would end the process itself, with status 1, when whoever read our output has gone."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            raise _ReaderGone from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Results and errors as JSON; progress and warnings go to stderr.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
@click.option("--ca", "ca_file", type=click.Path(path_type=Path), help="File of trusted authorities (PEM).  TONNE_CA.")
@click.option("--plain-http", is_flag=True, help="HTTP without TLS for every host; it is the default for loopback.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache folder.  TONNE_CACHE; default ~/.cache/tonne.")
@click.option("--cache-size", metavar="SIZE", help="Most that the cache may hold, such as 200GiB.  TONNE_CACHE_SIZE.")
@click.option("--no-cache", is_flag=True, help="Keep nothing on disk.")
@click.option("--deadline", "deadline_s", type=click.FloatRange(min=0.001), help="Seconds that one read may take.")
@click.option("--attempts", type=click.IntRange(min=1), help="How often a request is tried.")
@click.version_option(package_name="tonne", prog_name="tonne")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Put AI models in front of inference processes: pack, mount, pull, verify.

    REF is HOST/REPOSITORY:TAG, HOST/REPOSITORY@DIGEST, or oci:FOLDER:TAG for an OCI layout folder.
    """
    session: Session = ctx.obj
    session.settings = settings_from(os.environ, options)
    session.as_json = session.as_json or options["as_json"]
    session.quiet = options["quiet"]
    session.use_cache = not options["no_cache"]
    ctx.call_on_close(session.close)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # An error before the options are parsed must be JSON too, if the caller asked for JSON anywhere.
    session = Session(as_json="--json" in arguments)
    signal.signal(signal.SIGTERM, _terminate)
    # Paths need not be text; a result that cannot be shown as it is must not end what went well.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _raise_descriptor_limit()
    sys.exit(run(arguments, session))


def run(arguments: Sequence[str], session: Session) -> int:
    """Run the command line; returns the exit status, with the error shown."""
    session.arguments = tuple(arguments)
    try:
        result = cli.main(args=_global_first(arguments), prog_name="tonne", obj=session, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except TonneError as error:
        return _show(error, session)
    except click.exceptions.Abort:
        return _show(Interrupted("stopped"), session)
    except KeyboardInterrupt:
        return _show(Interrupted("stopped"), session)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        if session.as_json:
            print(json.dumps({"error": {"code": "usage", "message": error.format_message()}}), file=sys.stderr)
        else:
            error.show()
        return error.exit_code
    except (_ReaderGone, BrokenPipeError):
        # Whoever read our output has gone, as `head` does; that is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _show(LocalFailure("out of memory"), session)
    except OSError as error:
        kind = DiskFull if error.errno == 28 else LocalFailure
        return _show(
            kind("the system reports an error", where=str(error.filename or ""), why=error.strerror or str(error)),
            session,
        )


def _raise_descriptor_limit() -> None:
    """Open as many files as this user may; the soft limit is low for the sake of programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _global_first(arguments: Sequence[str]) -> list[str]:
    """Let the options that every verb has stand behind the verb too."""
    front: list[str] = []
    rest: list[str] = []
    for argument in arguments:
        (
            front
            if argument in ("--json", "--quiet", "-q", "--plain-http", "--no-cache") and "--" not in rest
            else rest
        ).append(argument)
    return front + rest


def _show(error: TonneError, session: Session) -> int:
    session.progress.close()
    if session.as_json:
        print(json.dumps(error.document(), ensure_ascii=False), file=sys.stderr)
    else:
        text = f"tonne: {printable(str(error))}"
        text = click.style(text, fg="red") if sys.stderr.isatty() else text
        print(f"{text} [{error.code}]", file=sys.stderr)
        if error.next:
            print(f"  {printable(error.next)}", file=sys.stderr)
    return error.exit_status


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
