"""What the commands share: the console, the progress bar, the --data option, and how an error is told."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# A pipe has no width of its own: what is piped is not squeezed into 80 columns.
columns = os.environ.get("COLUMNS", "")
console = Console(width=None if sys.stdout.isatty() else (int(columns) if columns.isdecimal() else 0) or 160)
error_console = Console(stderr=True)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="The data folder; else ESPALIER_DATA, else the user's cache folder."),
]


def say(message: str, style: str = "") -> None:
    """Print a message as it is: a name or path in it is not markup and is not broken over lines."""
    console.print(message, style=style, markup=False, highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """A word beside the output, on standard error."""
    print(message, file=sys.stderr, flush=True)


def warn(messages: Sequence[str], most: int = 5) -> None:
    """What was left out, on standard error."""
    for message in messages[:most]:
        note(f"left out: {message}")
    if len(messages) > most:
        note(f"left out: {len(messages) - most} more")


def fail(message: str, code: int) -> NoReturn:
    # Not through rich's markup and wrapping: a path must come out as it is.
    if message:
        print(f"espalier: {message}", file=sys.stderr)
    raise SystemExit(code)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error, gone when done, so that standard output can be piped."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=error_console, transient=True, disable=not error_console.is_terminal) as progress:
        yield progress


def counter(progress: Progress, description: str) -> Callable[[int, int], None]:
    """A new line of the bar, as the function (done, total) that long jobs report to."""
    bar = progress.add_task(description, total=None)
    return lambda done, total: progress.update(bar, completed=done, total=total)
