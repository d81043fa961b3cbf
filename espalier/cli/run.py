"""`espalier run`: one learner on one stream."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from espalier.cli.console import DataOption, console, error_console, say
from espalier.report.runs import tuned
from espalier.runs import Moment, Settings, Watch
from espalier.runs import run as do_run


def run(
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    learner: Annotated[str, typer.Argument(metavar="LEARNER")],
    backbone: Annotated[str | None, typer.Option(help="Else the usual one for the stream.")] = None,
    protocol: Annotated[str | None, typer.Option(help="paper or quick; else the usual one for the stream.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where run folders go.")] = Path("runs"),
    data: DataOption = None,
) -> None:
    """Learn a stream task by task. The same command goes on with a run that was stopped, and shows a finished one."""
    settings = Settings.of(stream, learner, seed, backbone, protocol)
    with watching(f"{stream} {learner}") as watch:
        result = do_run(settings, out, data, device, watch)
    print_results([result])
    if tuned(result):
        say(f"† {tuned(result)} was chosen on the whole stream, with sight of the later tasks.")
    say(f"Run folder: {out / settings.folder_name}")


def print_results(results: list[dict[str, Any]]) -> None:
    columns = ("average accuracy", "forgetting", "LCA@5", "memory MB", "TFLOPs", "seconds")
    table = Table(Column("stream", no_wrap=True), Column("learner", no_wrap=True), *columns, box=None, pad_edge=False)
    for result in results:
        m = result["metrics"]
        numbers = f"{m['avg_accuracy']:.3f}", f"{m['forgetting']:+.3f}", f"{m['lca']:.3f}", f"{m['memory_mb']:.2f}"
        table.add_row(result["stream"], marked(result), *numbers, f"{m['tflops']:.3g}", f"{result['seconds']:.0f}")
    console.print(table)


def marked(result: dict[str, Any]) -> str:
    """The learner's name, with a dagger if something was chosen on the whole stream."""
    return f"{result['learner']} †" if tuned(result) else str(result["learner"])


@contextmanager
def watching(title: str) -> Iterator[Watch]:
    """A progress display: which task, how far, how many candidates still train, the best so far, the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[state]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(
        *columns, *times, console=error_console, transient=True, disable=not error_console.is_terminal
    ) as progress:
        bar = progress.add_task(title, total=None, state="")

        told = -1

        def watch(moment: Moment) -> None:
            nonlocal told
            if not error_console.is_terminal and moment.task != told:  # a log gets one line per task
                told = moment.task
                print(f"{title}: task {moment.task + 1} of {moment.tasks}", file=sys.stderr, flush=True)
            share = moment.step / moment.most_steps if moment.most_steps else 0
            state = f"task {moment.task + 1} of {moment.tasks}"
            if moment.members:
                state += f", {moment.members} training, best {moment.best:.3f}"
            progress.update(bar, total=moment.tasks, completed=moment.task + share, state=state)

        yield watch
