"""The command line: it parses, calls and prints. Nothing is computed here.

Bad input is one sentence on standard error and exit code 2; `--debug`, anywhere, shows the traceback.
"""

import errno
import sys
from typing import Annotated

import typer

from espalier import __version__
from espalier.cli import bench, data, demo, learners, page, rebuild, run, streams, table, teach
from espalier.cli.console import fail
from espalier.device import out_of_memory
from espalier.errors import InputError

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, help="Continual learning with modular networks."
)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.command("streams")(streams.show)
app.command("learners")(learners.learners)
app.command("run")(run.run)
app.command("rebuild")(rebuild.rebuild)
app.command("table")(table.table)
app.command("page")(page.page)
app.command("teach")(teach.teach)
app.command("ask")(teach.ask)
app.command("demo")(demo.demo)


INTERRUPTED = 130  # what a shell says of it, and typer too
GO_ON = ("run", "rebuild", "teach", "demo")  # the commands that go on from where they were


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"espalier {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Continual learning with modular networks."""


def main() -> None:
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        code = app(arguments, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        fail(*_explain(error))
    if code == INTERRUPTED:
        more = "; the same command goes on from where it was" if arguments and arguments[0] in GO_ON else ""
        fail(f"interrupted{more}.", code)
    sys.exit(code)


def _explain(error: Exception) -> tuple[str, int]:
    """One sentence about an error, and the exit code."""
    if isinstance(error, InputError):
        return str(error), 2
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; make room, then give the same command again.", 2
    if isinstance(error, MemoryError) or out_of_memory(error):
        return "there is not enough memory; use fewer --workers, or a smaller --backbone.", 2
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} cannot be used ({error.strerror}); choose another place or make it accessible.", 2
    if hasattr(error, "format_message"):  # the argument parser's errors, whichever parser typer brings
        message = error.format_message().rstrip(".")
        return f"{message}; see --help." if message else "", 2  # without any words the help has been printed
    return f"something went wrong inside Espalier ({type(error).__name__}: {error}); run it again with --debug.", 1
