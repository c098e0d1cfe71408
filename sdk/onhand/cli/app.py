"""Puts the commands together, and turns what they raise into one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
import typer.main

from onhand.cli import ask, audit, bench, chat, doctor, models, show
from onhand.cli.console import complain, finish_stdout, prepare_streams, say
from onhand.cli.exits import INTERRUPTED, exit_code
from onhand.errors import OnhandError

app = typer.Typer(
    name="onhand",
    help="A private assistant that runs on this device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes a third of the time, and reads the same in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("chat")(chat.chat)
app.command("ask")(ask.ask)
app.command("pull")(models.pull)
app.command("import")(models.import_)
app.command("list")(models.list_)
app.command("remove")(models.remove)
app.command("show")(show.show)
app.command("doctor")(doctor.doctor)
app.command("audit")(audit.audit)
app.command("bench")(bench.bench)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"onhand {version('onhand')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass  # what stands before a command; its only option acts by itself


def main() -> None:
    """Run the command line and leave with an exit code of `onhand.cli.exits`."""
    prepare_streams()
    if not _debugging():
        sys.excepthook = _report_bug
    try:
        code = _run()
    finally:  # behind a bug too: what Python cannot write out at exit, it complains of
        unwritten = finish_stdout()
    if unwritten is not None and not code:
        code = exit_code(unwritten)
        if not isinstance(unwritten, BrokenPipeError):  # as in `onhand list | head -1`
            complain(str(unwritten))
    sys.exit(code)


def _run() -> str | int | None:
    """Do what the command line says; the exit code."""
    code: str | int | None
    try:
        typer.main.get_command(app)(prog_name="onhand")  # calling the app itself would take the excepthook away
    except SystemExit as leaving:
        code = leaving.code
    except (OnhandError, OSError) as error:  # the second from the system, where nothing has made the first of it
        if _debugging():
            raise
        complain(str(error))
        code = exit_code(error)
    if code == INTERRUPTED and sys.stderr.isatty():
        print(file=sys.stderr)  # the shell's prompt then begins a line
    return code


def _debugging() -> bool:
    return os.environ.get("ONHAND_DEBUG") == "1"


def _report_bug(kind: type[BaseException], error: BaseException, traceback: object) -> None:
    """For what onhand does not raise on purpose. Its message may hold what a user said, so only its kind is shown."""
    complain(f"unexpected {kind.__name__}, which is a bug in onhand: ONHAND_DEBUG=1 shows where it happened")
