"""Puts the commands together, and turns what they raise into one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
import typer.main

from onhand.cli import ask, chat, doctor, models, show
from onhand.cli.console import complain, prepare_streams
from onhand.cli.exits import INTERRUPTED, OTHER, exit_code
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


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"onhand {version('onhand')}")
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
    debugging = os.environ.get("ONHAND_DEBUG") == "1"
    if not debugging:
        sys.excepthook = _report_bug
    code: str | int | None
    try:
        typer.main.get_command(app)(prog_name="onhand")  # calling the app itself would take the excepthook away
    except SystemExit as leaving:
        code = leaving.code
    except (OnhandError, OSError) as error:  # the second also when the disk behind stdout is full
        if debugging:
            raise
        complain(str(error))
        code = exit_code(error)
    if code == INTERRUPTED and sys.stderr.isatty():
        print(file=sys.stderr)  # the shell's prompt then begins a line
    sys.exit(code if _flushed() else code or OTHER)


def _flushed() -> bool:
    """Write out what is buffered. False when whoever read has gone (`onhand list | head -1`), which is told nobody."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it closes the stream
        return False
    return True


def _report_bug(kind: type[BaseException], error: BaseException, traceback: object) -> None:
    """For what onhand does not raise on purpose. Its message may hold what a user said, so only its kind is shown."""
    complain(f"unexpected {kind.__name__}, which is a bug in onhand: ONHAND_DEBUG=1 shows where it happened")
