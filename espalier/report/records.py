"""Finished runs as their records tell: `run.json`, `records.jsonl` and `result.json`. The library need not be there."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.errors import InputError
from espalier.files import read_json
from espalier.runs.records import Event, read_records
from espalier.runs.tuned import TRIED

WORDS = ("stream", "learner", "backbone", "protocol")
FIGURES = ("avg_accuracy", "forgetting", "lca", "memory_mb", "tflops")


@dataclass(frozen=True)
class Recorded:
    """A finished run: `result.json` and `run.json` as they are."""

    folder: Path
    result: dict[str, Any]
    settings: dict[str, Any]


def find_runs(folder: Path) -> list[Path]:
    """The folders of all finished runs in a folder and below it; runs that go on still are left out."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name the one that holds the runs.")
    # Of a run that tried several values on the stream, only the whole is shown, not each trial.
    found = [path.parent for path in folder.rglob("result.json") if TRIED not in path.relative_to(folder).parts]
    return [each for each in found if (each / "run.json").is_file()]


def read_recorded(folder: Path) -> Recorded:
    """The run in this very folder."""
    path = folder / "result.json"
    result = _table(path)
    try:
        _check_result(result)
    except ValueError as error:
        raise damaged_result(path, str(error)) from None
    # Of a run that tried several values, the trial that was chosen says more, if it has been kept.
    trial = home(folder, result) / "run.json"
    return Recorded(folder, result, _table(trial if trial.is_file() else folder / "run.json"))


def home(folder: Path, result: Mapping[str, Any]) -> Path:
    """Where the library and the records of a run lie."""
    tuning = result.get("tuning")
    if tuning is None:
        return folder
    if not isinstance(tuning, dict) or not re.fullmatch(rf"{TRIED}/[\w.+-]+", str(tuning.get("folder"))):
        raise InputError(f"{folder / 'result.json'} is damaged ('tuning' names no folder); restore it from a copy.")
    return folder / str(tuning["folder"])


def read_events(path: Path) -> list[Event]:
    try:
        events = read_records(path)
    except (ValueError, RecursionError, OSError):
        events = [{}]
    if not all(isinstance(event, dict) and isinstance(event.get("event"), str) for event in events):
        raise InputError(f"{path} is damaged (a line of it is not a record); restore it from a copy.")
    return events


def task_titles(run: Recorded) -> list[str]:
    """What each task is about, by the records; none where there are no records."""
    events = read_events(home(run.folder, run.result) / "records.jsonl")
    return [str(event.get("dataset", "")) for event in events if event["event"] == "learned"]


def damaged_result(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged ({what}); remove it, then start the run again: what it learned is kept.")


def _table(path: Path) -> dict[str, Any]:
    try:
        table = read_json(path)
    except RecursionError:
        table = None
    if not isinstance(table, dict):
        raise InputError(f"{path} is damaged (it is not a table of values); restore it from a copy.")
    return table


def _check_result(result: Mapping[str, Any]) -> None:
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
    if not matrix or [len(row) for row in matrix] != list(range(1, len(matrix) + 1)):
        raise ValueError("'accuracy' does not have a row for each task, each longer by one")
    if not all(_is_number(value) and 0 <= value <= 1 for row in matrix for value in row):
        raise ValueError("'accuracy' holds something that is not between 0 and 1")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
