"""`espalier run`: learners on streams, one run or many."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from espalier.cli.console import DataOption, console, counter, error_console, note, progress_bar, say
from espalier.device import find, names
from espalier.errors import InputError
from espalier.learners import entry
from espalier.nets import split_name
from espalier.report.records import learner_name
from espalier.report.runs import tuned
from espalier.runs import Moment, Settings, Watch
from espalier.runs import run as do_run
from espalier.runs.many import run_many
from espalier.runs.result import read_table
from espalier.streams import stream as make_stream

LOGGED_EVERY = 60.0  # seconds


def run(
    streams: Annotated[str, typer.Argument(metavar="STREAM[,STREAM…]")],
    learners: Annotated[str, typer.Argument(metavar="LEARNER[,LEARNER…]")],
    backbone: Annotated[str | None, typer.Option(help="Else the usual one for the stream.")] = None,
    protocol: Annotated[str | None, typer.Option(help="paper or quick; else the usual one for the stream.")] = None,
    seed: Annotated[str, typer.Option(metavar="N[,N…]")] = "0",
    device: Annotated[
        str, typer.Option(metavar="NAME[,NAME…]", help="cpu, cuda, cuda:1, …; several devices share the runs.")
    ] = "cpu",
    workers: Annotated[
        int | None, typer.Option(help="How many runs go side by side, ewc's strengths too; else one per device.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where run folders go.")] = Path("runs"),
    data: DataOption = None,
) -> None:
    """Learn a stream task by task. The same command goes on with a run that was stopped, and shows a finished one.

    Of several streams, learners or seeds, every combination is a run.
    """
    asked = [
        Settings.of(stream, learner, number, backbone, protocol)
        for stream in _parts(streams)
        for learner in _parts(learners)
        for number in _seeds(seed)
    ]
    if not asked:
        raise InputError("nothing is asked for; name at least one stream, one learner and one seed.")
    devices = names(device)
    _check(asked, out, data, devices)
    count = workers or len(devices)
    if devices == ["cpu"] and any(is_large(each) and _left(each, out) for each in asked):
        note("This is work for a GPU (--device cuda); on a CPU, --backbone tiny --protocol quick takes minutes.")
    alone = count == 1 or (len(asked) == 1 and entry(asked[0].learner).tuned is None)
    if alone and len(devices) > 1:
        note(f"One run at a time: only {devices[0]} is used.")
    results = [_one(each, out, data, devices[0]) for each in asked] if alone else _many(asked, out, data, device, count)
    print_results(results, [_is_rebuilt(out / each.folder_name) for each in asked])
    for chosen in sorted({tuned(result) for result in results} - {""}):
        say(f"† {chosen} was chosen on the whole stream, with sight of the later tasks.")
    say(f"Run folder: {out / asked[0].folder_name}" if len(asked) == 1 else f"Run folders: {out}")


def _parts(given: str) -> list[str]:
    """None twice: two runs must not share a folder."""
    return list(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))


def _seeds(given: str) -> list[int]:
    if not all(part.isdecimal() for part in _parts(given)):
        raise InputError(f"--seed {given!r} is no whole number from 0 on; give one, or several as in 0,1,2.")
    return [int(part) for part in _parts(given)]


def _check(asked: list[Settings], out: Path, data: Path | None, devices: list[str]) -> None:
    """What is wrong or missing is told before any run begins."""
    for device in devices:
        find(device)
    for settings in asked:
        entry(settings.learner)
        chosen = make_stream(settings.stream, settings.seed, data)
        if _left(settings, out):
            chosen.check_there()


def is_large(settings: Settings) -> bool:
    return settings.protocol == "paper" and split_name(settings.backbone)[0] not in ("tiny", "fc")


def _left(settings: Settings, out: Path) -> bool:
    return not (out / settings.folder_name / "result.json").is_file()


def _one(settings: Settings, out: Path, data: Path | None, device: str) -> dict[str, Any]:
    seed = f", seed {settings.seed}" if settings.seed else ""
    with watching(f"{settings.stream} {settings.learner}{seed}") as watch:
        return do_run(settings, out, data, device, watch)


def _many(asked: list[Settings], out: Path, data: Path | None, device: str, workers: int) -> list[dict[str, Any]]:
    """Each in a process of its own; one line as each is done."""
    results = {}
    with progress_bar() as progress:
        count = counter(progress, "runs and their parts")

        def told(done: int, parts: int) -> None:
            count(done, parts)
            if not error_console.is_terminal and parts > len(asked):  # a log hears nothing else of a run's parts
                note(f"{done} of {parts} runs and parts of runs done")

        for settings, result in run_many([(each, None) for each in asked], out, data, device, workers, told):
            results[settings] = result
            say(f"{settings.folder_name}: average accuracy {result['metrics']['avg_accuracy']:.3f}")
    return [results[settings] for settings in asked]


def _is_rebuilt(run: Path) -> bool:
    return (run / "run.json").is_file() and "rebuilt_from" in read_table(run / "run.json")


def print_results(results: list[dict[str, Any]], rebuilt: list[bool]) -> None:
    columns = ("average accuracy", "forgetting", "LCA@5", "memory MB", "TFLOPs", "seconds")
    seeds = ["seed"] if len({result["seed"] for result in results}) > 1 else []
    names = [Column(name, no_wrap=True) for name in ("stream", "learner", *seeds)]
    table = Table(*names, *columns, box=None, pad_edge=False)
    for result, again in zip(results, rebuilt, strict=True):
        m, of = result["metrics"], [str(result["seed"]) for _ in seeds]
        numbers = f"{m['avg_accuracy']:.3f}", f"{m['forgetting']:+.3f}", f"{m['lca']:.3f}", f"{m['memory_mb']:.2f}"
        costs = f"{m['tflops']:.3g}", f"{result['seconds']:.0f}"
        table.add_row(result["stream"], _marked(result, again), *of, *numbers, *costs)
    console.print(table)
    if any(rebuilt):
        say("Rebuilt: memory, TFLOPs and seconds are those of the search.")


def _marked(result: dict[str, Any], rebuilt: bool) -> str:
    """The learner's name, with a dagger if something was chosen on the whole stream."""
    return learner_name(result["learner"], rebuilt) + (" †" if tuned(result) else "")


@contextmanager
def watching(title: str) -> Iterator[Watch]:
    """A progress display: which task, how far, how many candidates still train, the best so far, the time left. A log
    gets a line for every task, and for every minute."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[state]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(
        *columns, *times, console=error_console, transient=True, disable=not error_console.is_terminal
    ) as progress:
        bar = progress.add_task(title, total=None, state="")

        told, at = -1, 0.0

        def watch(moment: Moment) -> None:
            nonlocal told, at
            share = moment.step / moment.most_steps if moment.most_steps else 0
            state = f"task {moment.task + 1} of {moment.tasks}"
            if moment.members:
                best = f", best {moment.best:.3f}" if moment.best else ""  # nothing is validated yet, or ever
                state += f", {moment.members} training{best}"
            if not error_console.is_terminal and (moment.task != told or time.monotonic() - at > LOGGED_EVERY):
                told, at = moment.task, time.monotonic()
                steps = f", step {moment.step} of {moment.most_steps} at most" if moment.members else ""
                note(f"{title}: {state}{steps}")
            progress.update(bar, total=moment.tasks, completed=moment.task + share, state=state)

        yield watch
