"""`espalier table`: finished runs as result tables, beside the paper's."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.console import console, say, warn
from espalier.errors import InputError
from espalier.files import write_bytes
from espalier.report import formats
from espalier.report.published import published_figures
from espalier.report.records import gather, read_recorded
from espalier.report.table import tables


class Format(StrEnum):
    text = "text"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Folders; runs are also found below them.")],
    form: Annotated[Format, typer.Option("--format")] = Format.text,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Else it is printed.")] = None,
    no_published: Annotated[bool, typer.Option("--no-published", help="Without the paper's figures.")] = False,
    all_published: Annotated[
        bool, typer.Option("--all-published", help="Also the paper's learners that have not run.")
    ] = False,
) -> None:
    """Tables of finished runs, with the paper's figures in parentheses. Records suffice; weights are not read."""
    if no_published and all_published:
        raise InputError("--no-published and --all-published exclude each other; leave one out.")
    found, left_out = gather(runs, read_recorded)
    made = tables(found, {} if no_published else published_figures(), all_published)
    if form == Format.text:
        content = formats.text(made, console.width) if out is None else formats.text(made)
    else:
        content = {"markdown": formats.markdown, "csv": formats.as_csv, "latex": formats.latex}[form](made)
    if out is None:
        typer.echo(content, nl=False)
        warn(left_out)
        return
    try:
        write_bytes(out, content.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); choose another file.") from None
    say(f"Tables: {out}")
    warn(left_out)
