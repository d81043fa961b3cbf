"""`espalier demo`: what the paper is about, on embedded images, in a few minutes: a table and a page of pictures."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from espalier.cli.console import console, counter, progress_bar, say
from espalier.report import read_runs, summary, write_page
from espalier.runs import Settings
from espalier.runs.many import run_many

# The longest first: two processes then end at about the same time.
RUNS = (
    ("s_in_mini", "mntdp-d-plus"),
    ("s_minus_mini", "mntdp-d"),
    ("s_in_mini", "mntdp-d"),
    ("s_minus_mini", "independent"),
    ("s_in_mini", "independent"),
    ("s_minus_mini", "finetune"),
)


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where run folders and the page go.")] = Path("demo"),
) -> None:
    """Six runs on mini streams, a table, and one HTML page that shows how the libraries grew."""
    jobs = [(Settings.of(stream, learner), None) for stream, learner in RUNS]
    with progress_bar() as progress:
        count = counter(progress, "learning six tasks, six times")
        count(0, len(jobs))
        for done, (settings, _) in enumerate(run_many(jobs, out), start=1):
            count(done, len(jobs))
            progress.console.print(f"done: {settings.stream} {settings.learner}", highlight=False)
    runs = read_runs(out)
    columns = ("average accuracy", "forgetting", "transfer", "memory MB", "seconds")
    table = Table(Column("stream", no_wrap=True), Column("learner", no_wrap=True), *columns, box=None, pad_edge=False)
    for row in summary(runs):
        transfer = "" if row.transfer is None else f"{row.transfer:+.3f}"
        numbers = f"{row.avg_accuracy:.3f}", f"{row.forgetting:+.3f}", transfer, f"{row.memory_mb:.2f}"
        table.add_row(row.stream, row.learner, *numbers, f"{row.seconds:.0f}")
    console.print(table)
    page = out / "index.html"
    write_page(runs, page, "Espalier: six tasks, one after another")
    say(f"\nPage with the libraries: {page.resolve()}")
