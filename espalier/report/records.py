"""Finished runs as their records tell: `run.json`, `records.jsonl` and `result.json`. The library need not be there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.errors import InputError
from espalier.runs.begun import TRIED
from espalier.runs.records import Event, read_records
from espalier.runs.result import read_result, read_table


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
    result = read_result(folder / "result.json")
    # Of a run that tried several values, the trial that was chosen says more, if it has been kept.
    trial = home(folder, result) / "run.json"
    return Recorded(folder, result, read_table(trial if trial.is_file() else folder / "run.json"))


def home(folder: Path, result: Mapping[str, Any]) -> Path:
    """Where the library and the records of a run lie."""
    tuning = result.get("tuning")
    if tuning is None:
        return folder
    if not isinstance(tuning, dict) or not re.fullmatch(rf"{TRIED}/[\w.+-]+", str(tuning.get("folder"))):
        raise InputError(f"{folder / 'result.json'} is damaged ('tuning' names no folder); restore it from a copy.")
    return folder / str(tuning["folder"])


def events_of(run: Recorded) -> list[Event]:
    """What happened in it, by its records; nothing where there are none."""
    return read_records(home(run.folder, run.result) / "records.jsonl")


def part(settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table inside `run.json`; empty where it is missing."""
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def task_titles(run: Recorded) -> list[str]:
    """What each task is about, by the records; none where there are no records."""
    return [str(event.get("dataset", "")) for event in events_of(run) if event["event"] == "learned"]
