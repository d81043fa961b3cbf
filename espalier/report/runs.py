"""Finished runs, read from their folders, and one row of figures for each. Knows nothing about how they are shown."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.errors import InputError
from espalier.evaluation.metrics import transfer
from espalier.files import read_json
from espalier.library import Library, ModuleEntry
from espalier.runs.records import Event, read_records
from espalier.runs.run import TRIED

WORDS = ("stream", "learner", "backbone", "protocol")
FIGURES = ("avg_accuracy", "forgetting", "lca", "memory_mb", "tflops")


@dataclass(frozen=True)
class TaskColumn:
    """A task of a finished run: its path at the end, and its test accuracy when it was learned and at the end."""

    name: str
    dataset: str
    path: tuple[str, ...]
    learned: float
    final: float


@dataclass(frozen=True)
class Module:
    """A stored module: who trained it, and the module whose weights it started from (None: random, or not known)."""

    name: str
    block: str
    numbers: int
    trained_by: str
    copied_from: str | None


@dataclass(frozen=True)
class Finished:
    """A finished run: `result.json` and `run.json` as they are, its tasks, and its library without the tensors."""

    folder: Path
    result: dict[str, Any]
    settings: dict[str, Any]
    tasks: list[TaskColumn]
    blocks: tuple[str, ...]
    modules: dict[str, Module]


@dataclass(frozen=True)
class Row:
    """The figures of one run; `transfer` is None where the run of `independent` to compare with is not there.

    `tuned` says what was chosen on the whole stream, with sight of later tasks ("" where nothing was).
    """

    stream: str
    learner: str
    backbone: str
    protocol: str
    seed: int
    avg_accuracy: float
    forgetting: float
    transfer: float | None
    lca: float
    memory_mb: float
    tflops: float
    seconds: float
    data_complete: bool
    tuned: str


def read_runs(folder: Path) -> list[Finished]:
    """All finished runs in a folder and below it, by stream, learner and seed; runs that go on still are left out."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name the one that holds the runs.")
    # Of a run that tried several values on the stream, only the whole is shown, not each trial.
    found = [path.parent for path in folder.rglob("result.json") if TRIED not in path.relative_to(folder).parts]
    runs = [_read_run(each) for each in found if (each / "run.json").is_file()]
    order = ("stream", "learner", "seed", "backbone", "protocol")
    return sorted(runs, key=lambda run: (*(run.result[key] for key in order), str(run.folder)))


def summary(runs: Sequence[Finished]) -> list[Row]:
    return [_row(run, runs) for run in runs]


def _row(run: Finished, runs: Sequence[Finished]) -> Row:
    words = {key: run.result[key] for key in WORDS}
    figures = {key: run.result["metrics"][key] for key in FIGURES}
    rest = {key: run.result[key] for key in ("seed", "seconds", "data_complete")}
    return Row(**words, **figures, **rest, transfer=_transfer(run, runs), tuned=tuned(run.result))


def tuned(result: Mapping[str, Any]) -> str:
    """What a run chose on the whole stream, if anything."""
    tuning = result.get("tuning")
    return f"{tuning['field']} {tuning['chosen']:g}" if tuning else ""


def _transfer(run: Finished, runs: Sequence[Finished]) -> float | None:
    same = ("stream", "backbone", "protocol", "seed")
    matches = [
        other
        for other in runs
        if other.result["learner"] == "independent" and all(other.result[key] == run.result[key] for key in same)
    ]
    if not matches:
        return None
    # Where runs of several machines lie side by side, those of the same folder belong together.
    nearest = min(matches, key=lambda other: other.folder.parent != run.folder.parent)
    return transfer(run.result["accuracy"], nearest.result["accuracy"])


# Reading


def _read_run(folder: Path) -> Finished:
    path = folder / "result.json"
    result = _table(path)
    home = _home(folder, result)
    settings = _table(home / "run.json")
    library = Library.open(home / "library")
    try:
        _check_result(result, len(library.tasks))
    except ValueError as error:
        cure = "remove it, then start the run again: what it learned is kept"
        raise InputError(f"{path} is damaged ({error}); {cure}.") from None
    matrix = result["accuracy"]
    tasks = [
        TaskColumn(name, str(entry.info.get("dataset", name)), entry.path, matrix[index][index], matrix[-1][index])
        for index, (name, entry) in enumerate(library.tasks.items())
    ]
    copies = _copies(_events(home / "records.jsonl"), library.blocks)
    modules = {
        name: Module(name, entry.block, entry.numbers, _trainer(entry, tasks), _stored(copies.get(name), library))
        for name, entry in library.modules.items()
    }
    return Finished(folder, result, settings, tasks, library.blocks, modules)


def _stored(module: str | None, library: Library) -> str | None:
    """Some learners start from states that they have made themselves."""
    return module if module in library.modules else None


def _home(folder: Path, result: Mapping[str, Any]) -> Path:
    """Where the library and the records of a run lie."""
    tuning = result.get("tuning")
    if tuning is None:
        return folder
    if not isinstance(tuning, dict) or not re.fullmatch(rf"{TRIED}/[\w.+-]+", str(tuning.get("folder"))):
        raise InputError(f"{folder / 'result.json'} is damaged ('tuning' names no folder); restore it from a copy.")
    return folder / str(tuning["folder"])


def _table(path: Path) -> dict[str, Any]:
    try:
        table = read_json(path)
    except RecursionError:
        table = None
    if not isinstance(table, dict):
        raise InputError(f"{path} is damaged (it is not a table of values); restore it from a copy.")
    return table


def _check_result(result: Mapping[str, Any], n_tasks: int) -> None:
    for key in WORDS:
        if not isinstance(result.get(key), str):
            raise ValueError(f"{key!r} is not text")
    if type(result.get("seed")) is not int or type(result.get("data_complete")) is not bool:
        raise ValueError("'seed' or 'data_complete' is not what it should be")
    metrics = result.get("metrics")
    if not isinstance(metrics, dict) or not all(_is_number(metrics.get(key)) for key in FIGURES):
        raise ValueError(f"'metrics' does not hold the numbers {', '.join(FIGURES)}")
    if not _is_number(result.get("seconds")):
        raise ValueError("'seconds' is not a number")
    matrix = result.get("accuracy")
    if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
        raise ValueError("'accuracy' is not a list of rows")
    if not matrix or [len(row) for row in matrix] != list(range(1, n_tasks + 1)):
        raise ValueError(f"'accuracy' does not have a row for each of the {n_tasks} tasks in the library")
    if not all(_is_number(value) and 0 <= value <= 1 for row in matrix for value in row):
        raise ValueError("'accuracy' holds something that is not between 0 and 1")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _events(path: Path) -> list[Event]:
    try:
        events = read_records(path)
    except (ValueError, RecursionError, OSError):
        events = [{}]
    if not all(isinstance(event, dict) and isinstance(event.get("event"), str) for event in events):
        raise InputError(f"{path} is damaged (a line of it is not a record); restore it from a copy.")
    return events


def _trainer(entry: ModuleEntry, tasks: Sequence[TaskColumn]) -> str:
    """New modules are named after their task; any other belongs to its first user."""
    named = entry.name.partition(".")[0]
    users = [task.name for task in tasks if entry.name in task.path]
    return named if any(task.name == named for task in tasks) or not users else users[0]


def _copies(events: Sequence[Event], blocks: Sequence[str]) -> dict[str, str]:
    """New module -> the module it started from, as far as the candidates that were kept tell."""
    copies: dict[str, str] = {}
    for learned in (event for event in events if event["event"] == "learned"):
        kept = next((event for event in events if _was_kept(event, learned, len(blocks))), None)
        if kept is not None:
            slots = zip(kept["slots"], learned["path"], kept["modules"], strict=True)
            copies |= {module: source for slot, module, source in slots if slot == "c"}
    return copies


def _was_kept(event: Event, learned: Event, n_blocks: int) -> bool:
    if event["event"] != "candidate":
        return False
    same = ("task", "lr", "weight_decay", "val_accuracy", "steps")
    if any(event.get(key) != learned.get(key) for key in same):
        return False
    slots, sources, path = event.get("slots"), event.get("modules"), learned.get("path")
    if not isinstance(slots, str) or not isinstance(sources, list) or not isinstance(path, list):
        return False
    if not len(slots) == len(sources) == len(path) == n_blocks:
        return False
    return all((slot == "r") == (source == module) for slot, source, module in zip(slots, sources, path, strict=True))
