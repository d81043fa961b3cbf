"""`espalier bench`: the measurements that the docs quote."""

import platform
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.table import Column, Table

from espalier.bench import mini, steps, training
from espalier.bench.streams import time_stream, walk
from espalier.cli import bench_gpu
from espalier.cli.console import DataOption, console, counter, progress_bar, say
from espalier.data.folder import DataFolder
from espalier.learners import LEARNERS, entry
from espalier.runs.hardware import hardware, versions
from espalier.streams import STREAMS, stream

app = typer.Typer(no_args_is_help=True, help="Measure speed; each command prints what it compares with.")
app.command("gpu")(bench_gpu.gpu)


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
    learners: Annotated[list[str] | None, typer.Argument(metavar="[LEARNER]…", help="Else all.")] = None,
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where run folders go.")] = Path("runs/mini"),
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one per core.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables for a page of documentation.")] = False,
) -> None:
    """What the paper is about, on the mini streams: all learners, or those named. Finished runs are not run again."""
    for name in learners or ():
        entry(name)
    settings, results = mini.jobs(seeds, learners or ()), {}
    start = time.perf_counter()
    with progress_bar() as progress:
        count = counter(progress, "runs")
        count(0, len(settings))
        for done, result in mini.run_all(settings, out, workers):
            results[done] = result
            count(len(results), len(settings))
    for figure, rows in mini.figures(results).items():
        _print_figure(figure, rows, seeds, markdown)
    minutes = (time.perf_counter() - start) / 60
    say(
        f"{len(settings)} runs in {minutes:.1f} minutes; {seeds} seed{'s'[: seeds - 1]}; backbone tiny (fc-x0.1 for "
        f"permuted_mini, den and rcl), protocol quick; {versions()}; {hardware(torch.device('cpu'))}"
    )
    say("†: a hyper-parameter was chosen on the whole stream, with sight of the later tasks.")


def _print_figure(figure: str, rows: dict[str, dict[str, mini.Spread]], seeds: int, markdown: bool) -> None:
    """A row per learner, a column per stream."""
    table = Table(Column(figure, no_wrap=True), *mini.STREAMS, box=box.MARKDOWN if markdown else None)
    digits, sign = {"memory MB": (2, ""), "seconds": (0, ""), "forgetting": (3, "+"), "transfer": (3, "+")}.get(
        figure, (3, "")
    )
    for learner, streams in rows.items():
        cells = []
        for mean, deviation in (streams[each] for each in mini.STREAMS):
            spread = f" ± {deviation:.{digits}f}" if seeds > 1 and figure not in ("memory MB", "seconds") else ""
            cells.append(f"{mean:{sign}.{digits}f}{spread}")
        table.add_row(f"{learner} †" if LEARNERS[learner].tuned else learner, *cells)
    console.print(table)


@app.command("steps")
def bench_steps(
    learners: Annotated[list[str] | None, typer.Argument(metavar="[LEARNER]…", help="Else all.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the libraries go; else nowhere.")] = None,
) -> None:
    """The time of a training step at task 2 and at task 20, side by side, for every learner."""
    names = [name for name in learners or LEARNERS if entry(name)]
    table = Table(
        Column("learner", no_wrap=True),
        "backbone",
        f"ms at task {steps.EARLY}",
        f"ms at task {steps.LATE}",
        "ratio",
        box=None,
    )
    with tempfile.TemporaryDirectory() as temporary, progress_bar() as progress:
        count = counter(progress, "learners")
        count(0, len(names))
        for number, line in enumerate(steps.compare_all(names, out or Path(temporary)), start=1):
            table.add_row(
                line.learner, line.backbone, f"{line.early_ms:.2f}", f"{line.late_ms:.2f}", f"{line.ratio:.2f}"
            )
            count(number, len(names))
    console.print(table)
    say(f"median of {steps.ROUNDS} rounds; {versions()}; {hardware(torch.device('cpu'))}")


@app.command("training")
def bench_training() -> None:
    """The trie beside the one-by-one trainer on the same candidates: seconds and memory, each in its own process."""
    table = Table(Column("candidates of", no_wrap=True), "backbone", "batch", "trained", "s", "MB", box=None)
    found = []
    for case in training.CASES:
        compared = training.compare(case)
        for way, measured in compared.ways.items():
            asked = case.learner, case.backbone, str(case.batch), way
            table.add_row(*asked, f"{measured.seconds:.2f}", f"{measured.memory / 1e6:.0f}")
        trie, one_by_one = (compared.ways[way] for way in (training.TRIE, training.ONE_BY_ONE))
        found.append(
            f"{case.learner}, {case.backbone}: {compared.members} candidates × settings; the trie, of stacks: "
            f"{compared.stacks}, was {one_by_one.seconds / trie.seconds:.1f} times as fast as one by one, and gave the "
            f"same validation accuracy to {compared.same_accuracies()} of {len(trie.accuracies)} candidates"
        )
    console.print(table)
    for line in found:
        say(line)
    say(f"{training.EPOCHS} epochs of 100 images; {versions()}; {hardware(torch.device('cpu'))}")
