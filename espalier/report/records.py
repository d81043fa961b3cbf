"""Finished runs as their records tell: `run.json`, `records.jsonl` and `result.json`. The library need not be there."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from espalier.errors import InputError
from espalier.runs.begun import TRIED
from espalier.runs.records import Event, read_records
from espalier.runs.result import read_result, read_table

Run = TypeVar("Run")


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


def gather(folders: Iterable[Path], read: Callable[[Path], Run]) -> tuple[list[Run], list[str]]:
    """What `read` makes of all finished runs below these folders, each once; and what is left out, and why."""
    found: dict[Path, Run] = {}
    left_out: list[str] = []
    for folder in folders:
        runs, begun = find_runs(folder), unfinished(folder)
        if not runs and not begun:
            raise InputError(f"there is no finished run in {folder}; name a folder that 'espalier run' has written to.")
        for run in runs:
            try:
                found[run.resolve()] = read(run)
            except InputError as error:
                left_out.append(str(error))
        left_out += [f"{run} has not finished; the command that began it goes on with it." for run in begun]
    if not found:
        raise InputError(left_out[0])
    return list(found.values()), list(dict.fromkeys(left_out))


def unfinished(folder: Path) -> list[Path]:
    """The folders of runs that go on still, or were stopped."""
    begun = [path.parent for path in folder.rglob("run.json") if TRIED not in path.relative_to(folder).parts]
    return [each for each in begun if not (each / "result.json").is_file()]


def read_recorded(folder: Path) -> Recorded:
    """The run in this very folder."""
    result = read_result(folder / "result.json")
    # Of a run that tried several values, the trial that was chosen says more, if it has been kept.
    trial = home(folder, result) / "run.json"
    recorded = Recorded(folder, result, read_table(trial if trial.is_file() else folder / "run.json"))
    events_of(recorded)  # so that damaged ones are told here
    return recorded


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
