"""Runs of learners that have a value to be chosen on the whole stream, as in the paper.

Such a run is one run per value, in the folder `tried`; the value with the highest mean validation accuracy on all tasks
after the last is kept, and `result.json` says so. Test images have no part in it; but later tasks have. In the first
task the value has no part: it is learned once, and all these runs go on from there. They may go side by side.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from espalier.files import new_folder, write_bytes, write_json
from espalier.learners.options import described
from espalier.library import Library
from espalier.runs.begun import FIRST, TRIED, asked_for, check_begun, learned_in, result_of
from espalier.runs.loop import begin_in, run_in
from espalier.runs.order import Moment, Order, Watch
from espalier.runs.records import Event, of_kind, read_records
from espalier.runs.result import read_table
from espalier.training import protocol


def run_tuned(order: Order, field: str) -> dict[str, Any]:
    """Do what is left to do, one value after another, and choose."""
    begin_tuned(order, field)
    result = result_of(order)
    if result is not None:
        return result
    trials = _trials(order, field)
    results = {value: run_in(trial) for value, trial in trials.items()}
    spent = _spent([trial.folder for trial in trials.values()])
    result = {**_best(field, results), "seconds": spent}
    write_json(order.folder / "result.json", result)
    return result


def begin_tuned(order: Order, field: str) -> None:
    """Learn the first task, and let the runs of all values begin with it."""
    folder, trials = order.folder, _trials(order, field)
    asked = asked_for(order, f"{described(order.learner)} with {field} of {tuple(trials)}")
    check_begun(folder, asked)
    if result_of(order) is not None:
        return
    if (folder / "result.json").is_file():  # of fewer tasks
        order.stream[learned_in(folder)]  # what is wrong with the next one is told before anything changes
        (folder / "result.json").unlink()
    write_json(folder / "run.json", asked)
    places = [trial.folder for trial in trials.values()]
    _check_free(places)
    if not all(map(_begun, places)):
        begin_in(replace(order, folder=folder / FIRST, watch=_part_of(order.watch, 0, len(trials))))
        _begin_alike(folder / FIRST, trials.values())


def try_value(order: Order, field: str, value: float) -> None:
    """The run of one value, which must have begun."""
    run_in(_trials(order, field)[value])


def _trials(order: Order, field: str) -> dict[float, Order]:
    values = protocol(order.settings.protocol).strengths
    return {
        value: replace(
            order,
            folder=order.folder / _place(field, value),
            learner=replace(order.learner, **{field: value}),  # type: ignore[type-var]
            watch=_part_of(order.watch, number, len(values)),
            judged_on_val=True,
        )
        for number, value in enumerate(values)
    }


def _check_free(places: Sequence[Path]) -> None:
    """Else two commands would take trials from each other, and both end with an error."""
    for place in places:
        if (place / "library" / "library.json").exists() and not (place / "result.json").exists():
            with Library.open(place / "library").writer():  # refused while another process writes to it
                pass


def _begin_alike(first: Path, trials: Iterable[Order]) -> None:
    """What was learned in one run folder is the beginning of others."""
    with Library.open(first / "library").writer():
        for trial in trials:
            place = trial.folder
            if not (place / "run.json").is_file():
                write_json(place / "run.json", {**read_table(first / "run.json"), **asked_for(trial)})
            if _begun(place):
                continue
            for left in place.glob(".library.*"):  # by a process that was killed here: we are the only one
                shutil.rmtree(left)
            write_bytes(place / "records.jsonl", (first / "records.jsonl").read_bytes())
            with new_folder(place / "library") as library:
                shutil.copytree(first / "library", library, ignore=shutil.ignore_patterns("lock"), dirs_exist_ok=True)


def _begun(place: Path) -> bool:
    known = (place / "library").exists() or (place / "result.json").exists()
    return known and (place / "run.json").is_file()


def _spent(places: Sequence[Path]) -> float:
    """The seconds of all runs; the first task, which they took from one, counts once."""
    seconds = [[float(event["seconds"]) for event in _learned(place)] for place in places]
    first = max((own[0] for own in seconds if own), default=0.0)  # a finished one may have lost its records
    return round(first + sum(sum(own[1:]) for own in seconds), 2)


def _learned(folder: Path) -> list[Event]:
    return of_kind(read_records(folder / "records.jsonl"), "learned")


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
