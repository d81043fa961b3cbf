"""`espalier page`: finished runs, and libraries that were taught, as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from espalier.cli.console import say
from espalier.errors import InputError
from espalier.report import read_runs, write_page


def page(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Folders; runs are also found below them.")],
    out: Annotated[Path, typer.Option(metavar="FILE")] = Path("page.html"),
) -> None:
    """One HTML page of finished runs and taught libraries: what each task re-used, how well it did, and how."""
    found = {run.folder.resolve(): run for folder in runs for run in read_runs(folder)}
    if not found:
        raise InputError(f"there is no finished run in {', '.join(map(str, runs))}; 'espalier run' makes one.")
    write_page(list(found.values()), out, "Espalier: what was learned, task after task")
    say(f"Page: {out.resolve()}")
