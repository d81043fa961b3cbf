"""`espalier page`: finished runs, and libraries that were taught, as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.console import say, warn
from espalier.report import write_page
from espalier.report.records import gather
from espalier.report.runs import in_order, read_run


def page(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Folders; runs are also found below them.")],
    out: Annotated[Path, typer.Option(metavar="FILE")] = Path("page.html"),
) -> None:
    """One HTML page of finished runs and taught libraries: what each task re-used, how well it did, and how."""
    found, left_out = gather(runs, read_run)
    write_page(in_order(found), out, "Espalier: what was learned, task after task")
    warn(left_out)
    say(f"Page: {out.resolve()}")
