"""Start a run by its learner's name. Some learners have a value that is chosen on the whole stream, as in the paper.

Such a run is one run per value, in the folder `tried`; the value with the highest mean validation accuracy on all tasks
after the last is kept, and `result.json` says so. Test images have no part in it; but later tasks have.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from espalier.data.folder import DataFolder
from espalier.files import write_json
from espalier.learners import Learner, entry
from espalier.learners.options import described
from espalier.runs.loop import Moment, Watch, asked_for, check_begun, finished, run_in
from espalier.runs.settings import Settings
from espalier.training import protocol

TRIED = "tried"

One = Callable[[Path, Learner, Watch], dict[str, Any]]  # one of several runs, in a folder of its own


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
        return run_in(folder, settings, own_learner, data, device, watch)
    known = entry(settings.learner)
    if known.tuned is None:
        return run_in(folder, settings, known.learner, data, device, watch)
    values = protocol(settings.protocol).strengths
    asked = asked_for(settings, f"{described(known.learner)} with {known.tuned} of {values}")
    check_begun(folder, asked)
    if (folder / "result.json").is_file():
        return finished(folder / "result.json")
    write_json(folder / "run.json", asked)

    def one(where: Path, used: Learner, watching: Watch) -> dict[str, Any]:
        return run_in(where, settings, used, data, device, watching, judged_on_val=True)

    return _best_on_the_stream(folder, known.learner, known.tuned, values, watch, one)


def _best_on_the_stream(
    folder: Path, learner: Learner, field: str, values: tuple[float, ...], watch: Watch, one: One
) -> dict[str, Any]:
    results = {}
    for number, value in enumerate(values):

        def watching(moment: Moment, before: int = number) -> None:
            done, tasks = before * moment.tasks + moment.task, len(values) * moment.tasks
            watch(replace(moment, task=done, tasks=tasks))

        variant = replace(learner, **{field: value})  # type: ignore[type-var]
        results[value] = one(folder / _place(field, value), variant, watching)
    chosen = max(values, key=lambda value: results[value]["metrics"]["avg_val_accuracy"])
    tuning = {
        "level": "stream",
        "field": field,
        "chosen": chosen,
        "avg_val_accuracy": {f"{value:g}": r["metrics"]["avg_val_accuracy"] for value, r in results.items()},
        "folder": _place(field, chosen),
    }
    seconds = round(sum(result["seconds"] for result in results.values()), 2)
    result = {**results[chosen], "seconds": seconds, "tuning": tuning}
    write_json(folder / "result.json", result)
    return result


def _place(field: str, value: float) -> str:
    return f"{TRIED}/{field}-{value:g}"
