"""Start a run by its learner's name. Some learners have a value that is chosen on the whole stream, as in the paper.

Such a run is one run per value, in the folder `tried`; the value with the highest mean validation accuracy on all tasks
after the last is kept, and `result.json` says so. Test images have no part in it; but later tasks have. In the first
task the value has no part: it is learned once, and all these runs go on from there.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from espalier.data.folder import DataFolder
from espalier.files import new_folder, write_bytes, write_json
from espalier.learners import Learner, entry
from espalier.learners.options import described
from espalier.library import Library
from espalier.runs.loop import Moment, Order, Watch, asked_for, begin_in, check_begun, finished, run_in
from espalier.runs.records import Event, read_records
from espalier.runs.settings import Settings
from espalier.training import protocol

TRIED = "tried"
FIRST = f"{TRIED}/first-task"


def run(
    settings: Settings,
    out: Path | str = "runs",
    data: DataFolder | str | Path | None = None,
    device: str = "cpu",
    watch: Watch = lambda moment: None,
    own_learner: Learner | None = None,
) -> dict[str, Any]:
    """Do the run, or what is left of it, and return its result. A finished run is not done again.

    `own_learner` is used in place of the learner that `settings.learner` names.
    """
    folder = Path(out) / settings.folder_name
    if own_learner is not None:
        return run_in(Order(folder, settings, own_learner, data, device, watch))
    known = entry(settings.learner)
    order = Order(folder, settings, known.learner, data, device, watch)
    return run_in(order) if known.tuned is None else _run_tuned(order, known.tuned)


def _run_tuned(order: Order, field: str) -> dict[str, Any]:
    folder, values = order.folder, protocol(order.settings.protocol).strengths
    asked = asked_for(order.settings, f"{described(order.learner)} with {field} of {values}")
    check_begun(folder, asked)
    if (folder / "result.json").is_file():
        return finished(folder / "result.json")
    write_json(folder / "run.json", asked)
    data = order.data if isinstance(order.data, DataFolder) else DataFolder(order.data)  # so that images are read once
    trials = {
        value: replace(
            order,
            folder=folder / _place(field, value),
            learner=replace(order.learner, **{field: value}),  # type: ignore[type-var]
            data=data,
            watch=_part_of(order.watch, number, len(values)),
            judged_on_val=True,
        )
        for number, value in enumerate(values)
    }
    places = [trial.folder for trial in trials.values()]
    if not all(map(_begun, places)):
        begin_in(replace(trials[values[0]], folder=folder / FIRST, learner=order.learner, judged_on_val=False))
        _begin_alike(folder / FIRST, places)
    results = {value: run_in(trial) for value, trial in trials.items()}
    result = {**_best(field, results), "seconds": _spent(folder / FIRST, places)}
    write_json(folder / "result.json", result)
    return result


def _begin_alike(first: Path, places: Sequence[Path]) -> None:
    """What was learned in one run folder is the beginning of others."""
    with Library.open(first / "library").writer():
        for place in places:
            if _begun(place):
                continue
            for left in place.glob(".library.*"):  # by a process that was killed here: we are the only one
                shutil.rmtree(left)
            write_bytes(place / "records.jsonl", (first / "records.jsonl").read_bytes())
            with new_folder(place / "library") as library:
                shutil.copytree(first / "library", library, ignore=shutil.ignore_patterns("lock"), dirs_exist_ok=True)


def _begun(place: Path) -> bool:
    return (place / "library").exists() or (place / "result.json").exists()


def _spent(first: Path, places: Sequence[Path]) -> float:
    """The seconds of all runs; what they have taken from the first counts once."""
    shared = _learned(first)
    own = [event for place in places for event in _learned(place) if event not in shared]
    return round(sum(float(event["seconds"]) for event in shared + own), 2)


def _learned(folder: Path) -> list[Event]:
    return [event for event in read_records(folder / "records.jsonl") if event["event"] == "learned"]


def _part_of(watch: Watch, number: int, count: int) -> Watch:
    """For one of several runs, of which all are watched as one."""

    def watching(moment: Moment) -> None:
        watch(replace(moment, task=number * moment.tasks + moment.task, tasks=count * moment.tasks))

    return watching


def _best(field: str, results: Mapping[float, dict[str, Any]]) -> dict[str, Any]:
    """The result of the value that did best on validation images, and how it was chosen."""
    chosen = max(results, key=lambda value: results[value]["metrics"]["avg_val_accuracy"])
    tuning = {
        "level": "stream",
        "field": field,
        "chosen": chosen,
        "avg_val_accuracy": {f"{value:g}": r["metrics"]["avg_val_accuracy"] for value, r in results.items()},
        "folder": _place(field, chosen),
    }
    return {**results[chosen], "tuning": tuning}


def _place(field: str, value: float) -> str:
    return f"{TRIED}/{field}-{value:g}"
