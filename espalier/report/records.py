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
    """A finished run: `result.json`, `run.json` and `records.jsonl` as they are; without the last, no events."""

    folder: Path
    result: dict[str, Any]
    settings: dict[str, Any]
    events: list[Event]

    @property
    def rebuilt(self) -> bool:
        """Whether it was done again from the records of another run."""
        return "rebuilt_from" in self.settings


def find_runs(folder: Path) -> list[Path]:
    """The folders of all finished runs in a folder and below it; runs that go on still are left out."""
    return [run for run in _begun_in(folder) if _is_finished(run)]


def _begun_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name the one that holds the runs.")
    # Of a run that tried several values on the stream, only the whole is shown, not each trial.
    return [path.parent for path in folder.rglob("run.json") if TRIED not in path.relative_to(folder).parts]


def _is_finished(run: Path) -> bool:
    return (run / "result.json").is_file()


def gather(folders: Iterable[Path], read: Callable[[Path], Run]) -> tuple[list[Run], list[str]]:
    """What `read` makes of all finished runs below these folders, each once; and what is left out, and why."""
    found: dict[Path, Run] = {}
    left_out: list[str] = []
    for folder in folders:
        runs = _begun_in(folder)
        if not runs:
            raise InputError(f"there is no finished run in {folder}; name a folder that 'espalier run' has written to.")
        for run in runs:
            if not _is_finished(run):
                left_out.append(f"{run} has not finished; the command that began it goes on with it.")
                continue
            try:
                found[run.resolve()] = read(run)
            except InputError as error:
                left_out.append(str(error))
    if not found:
        raise InputError(left_out[0])
    return list(found.values()), list(dict.fromkeys(left_out))


def read_recorded(folder: Path) -> Recorded:
    """The run in this very folder."""
    result = read_result(folder / "result.json")
    # Of a run that tried several values, the trial that was chosen says more, if it has been kept.
    there = home(folder, result)
    settings = read_table((there if (there / "run.json").is_file() else folder) / "run.json")
    return Recorded(folder, result, settings, read_records(there / "records.jsonl"))


def home(folder: Path, result: Mapping[str, Any]) -> Path:
    """Where the library and the records of a run lie."""
    tuning = result.get("tuning")
    if tuning is None:
        return folder
    if not isinstance(tuning, dict) or not re.fullmatch(rf"{TRIED}/[\w.+-]+", str(tuning.get("folder"))):
        raise InputError(f"{folder / 'result.json'} is damaged ('tuning' names no folder); restore it from a copy.")
    return folder / str(tuning["folder"])


def part(settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table inside `run.json`; empty where it is missing."""
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def learner_name(learner: str, rebuilt: bool) -> str:
    """What tells a run and its rebuilding apart."""
    return f"{learner} (rebuilt)" if rebuilt else learner


def task_titles(run: Recorded) -> list[str]:
    """What each task is about, by the records; none where there are no records."""
    return [str(event.get("dataset", "")) for event in run.events if event["event"] == "learned"]
