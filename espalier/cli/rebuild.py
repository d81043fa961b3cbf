"""`espalier rebuild`: the library of a run of which only the records are there."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from espalier.cli.console import DataOption, console, say
from espalier.cli.run import print_results, watching
from espalier.runs import Settings
from espalier.runs.rebuilt import rebuild as do_rebuild


def rebuild(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; its records suffice.")],
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the new run folder goes.")] = Path("runs"),
    data: DataOption = None,
) -> None:
    """Do a recorded run again without its search: only what it chose is trained, which gives its library back.

    Accuracies are as they were but for rounding. The same command goes on with a rebuilding that was stopped; a run
    that had not finished is gone on with by 'espalier run'.
    """
    with watching(f"rebuilding {run.name}") as watch:
        rebuilt = do_rebuild(run, out, data, device, watch)
    table = Table("task", "dataset", Column("accuracy then", justify="right"), Column("now", justify="right"), box=None)
    for task in rebuilt.tasks:
        table.add_row(task.name, task.dataset, f"{task.then:.3f}", f"{task.now:.3f}")
    console.print(table)
    if rebuilt.result is None:
        say(f"The run had learned {len(rebuilt.tasks)} of {rebuilt.of} tasks. This goes on with it:")
        say(_going_on(rebuilt.settings, out, data, device))
    else:
        print_results([rebuilt.result])
    say(f"Run folder: {rebuilt.folder}")


def _going_on(settings: Settings, out: Path, data: Path | None, device: str) -> str:
    how = f"--backbone {settings.backbone} --protocol {settings.protocol} --seed {settings.seed}"
    where = "" if data is None else f" --data {data}"
    return f"espalier run {settings.stream} {settings.learner} {how}{where} --device {device} --out {out}"
