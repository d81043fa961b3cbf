"""`espalier rebuild`: the library of a run of which only the records are there."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from espalier.cli.console import DataOption, console, note, say
from espalier.cli.run import is_large, print_results, watching
from espalier.runs import Settings
from espalier.runs.rebuilt import Compared, Source
from espalier.runs.rebuilt import rebuild as do_rebuild


def rebuild(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; its records suffice.")],
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the new run folder goes.")] = Path("runs"),
    data: DataOption = None,
) -> None:
    """Do a recorded run again without its search: only what it chose is trained, which gives its library back.

    It comes out as another run of the same would, by rounding and, on another kind of device, by what is drawn there.
    The same command goes on with a rebuilding that was stopped; with a run that had not finished 'espalier run' does.
    """
    source = Source.read(run)
    settings = source.settings
    if device == "cpu" and is_large(settings):
        note("This is work for a GPU (--device cuda).")
    with watching(f"rebuilding {settings.stream} {settings.learner}") as watch:
        rebuilt = do_rebuild(source, out, data, device, watch)
    _show(rebuilt.tasks)
    if rebuilt.result is None:
        say(f"The run had learned {len(rebuilt.tasks)} of {rebuilt.of} tasks. This goes on with it:")
        say(_going_on(settings, out, data, device))
    else:
        print_results([rebuilt.result], [True])
    say(f"Run folder: {rebuilt.folder}")


def _show(tasks: list[Compared]) -> None:
    table = Table("task", "dataset", Column("accuracy then", justify="right"), Column("now", justify="right"), box=None)
    for task in tasks:
        table.add_row(task.task, task.dataset, "?" if task.then is None else f"{task.then:.3f}", f"{task.now:.3f}")
    console.print(table)


def _going_on(settings: Settings, out: Path, data: Path | None, device: str) -> str:
    how = ["--backbone", settings.backbone, "--protocol", settings.protocol, "--seed", str(settings.seed)]
    where = ["--device", device, "--out", str(out), *([] if data is None else ["--data", str(data)])]
    return shlex.join(["espalier", "run", settings.stream, settings.learner, *how, *where])
