"""`espalier bench`: the measurements that the docs quote."""

import platform
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Column, Table

from espalier.bench import mini, training
from espalier.bench.streams import time_stream, walk
from espalier.cli.console import DataOption, console, counter, progress_bar, say
from espalier.data.folder import DataFolder
from espalier.runs.hardware import hardware, versions
from espalier.streams import STREAMS, stream

app = typer.Typer(no_args_is_help=True, help="Measure speed; each command prints what it compares with.")


@app.command("streams")
def bench_streams(
    names: Annotated[list[str] | None, typer.Argument(metavar="[STREAM]...", help="Streams; none: all.")] = None,
    tasks: Annotated[int, typer.Option(help="Tasks of each stream, spread evenly.", min=1)] = 10,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    data: DataOption = None,
) -> None:
    """Seconds per task for building each stream, beside a plain per-image Pillow pipeline."""
    folder = DataFolder(data)
    columns = ("stream", "tasks", "images per task", "reading once s", "batched s", "one by one s", "times faster")
    table = Table(
        Column(columns[0], no_wrap=True),
        *columns[1:],
        box=None,
        title=f"Building tasks: {platform.machine()}, {torch.get_num_threads()} threads",
    )
    skipped = []
    with progress_bar() as progress:
        for name in progress.track(names or list(STREAMS), description="streams"):
            chosen = stream(name, seed, folder)
            lacking = chosen.missing()
            if lacking:
                skipped.append(f"{name} is left out: it lacks {', '.join(lacking)}")
                continue
            t = time_stream(chosen, tasks)
            row = (
                f"{t.images // t.tasks:,}",
                f"{t.reading:.1f}",
                f"{t.batched:.3f}",
                f"{t.one_by_one:.3f}",
                f"{t.one_by_one / t.batched:.1f}",
            )
            table.add_row(name, str(t.tasks), *row)
    console.print(table)
    for line in skipped:
        say(line, style="yellow")


@app.command("walk")
def bench_walk(
    name: Annotated[str, typer.Argument(metavar="STREAM")] = "s_long",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    data: DataOption = None,
) -> None:
    """Build all tasks of a stream, one at a time: seconds, and the most memory the process held."""
    chosen = stream(name, seed, data)
    with progress_bar() as progress:
        result = walk(chosen, counter(progress, name))
    console.print(
        f"{name}: {len(chosen)} tasks in {result.seconds:.1f} s, {result.peak_memory / 2**30:.2f} GiB of memory at most"
    )


@app.command("mini")
def bench_mini(
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where run folders go.")] = Path("runs/mini"),
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one per core.")] = None,
) -> None:
    """What the paper is about, on the five mini transfer streams: means over seeds, ± standard deviation."""
    results = {}
    total = seeds * len(mini.STREAMS) * len(mini.LEARNERS)
    with progress_bar() as progress:
        count = counter(progress, "runs")
        count(0, total)
        for settings, result in mini.run_all(seeds, out, workers):
            results[settings] = result
            count(len(results), total)
    columns = ("average accuracy", "forgetting", "transfer", "last task", "memory MB", "seconds")
    table = Table(Column("stream", no_wrap=True), Column("learner", no_wrap=True), *columns, box=None)
    for line in mini.lines(results):
        spreads = (line.average, line.forgetting, line.transfer, line.last)
        numbers = [f"{mean:+.3f} ± {deviation:.3f}" for mean, deviation in spreads]
        table.add_row(line.stream, line.learner, *numbers, f"{line.memory_mb:.2f}", f"{line.seconds:.0f}")
    console.print(table)
    say(f"{seeds} seeds; backbone tiny, protocol quick; {versions()}; {hardware(torch.device('cpu'))}")


@app.command("training")
def bench_training() -> None:
    """The trie beside the one-by-one trainer on the same candidates: seconds and memory, each in its own process."""
    columns = (
        "candidates × settings",
        "trie s",
        "one by one s",
        "times faster",
        "trie MB",
        "one by one MB",
        "same accuracy",
    )
    table = Table(Column("candidates of", no_wrap=True), *columns, box=None)
    for name in training.SPACES:
        c = training.compare(name)
        seconds = f"{c.trie.seconds:.2f}", f"{c.one_by_one.seconds:.2f}", f"{c.one_by_one.seconds / c.trie.seconds:.1f}"
        memory = f"{c.trie.memory / 1e6:.0f}", f"{c.one_by_one.memory / 1e6:.0f}"
        same = sum(a == b for a, b in zip(c.trie.accuracies, c.one_by_one.accuracies, strict=True))
        table.add_row(name, str(c.members), *seconds, *memory, f"{same} of {len(c.trie.accuracies)}")
    console.print(table)
    say(f"backbone tiny, {training.EPOCHS} epochs of 100 images; {versions()}; {hardware(torch.device('cpu'))}")
