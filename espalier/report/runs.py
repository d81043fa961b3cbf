"""Finished runs with their libraries, and one row of figures for each. Knows nothing about how they are shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.errors import InputError
from espalier.evaluation.metrics import transfer
from espalier.library import Library, TaskEntry
from espalier.report.records import Recorded, find_runs, home, learner_name, read_recorded
from espalier.runs.kept import by_task, kept_among
from espalier.runs.records import Event
from espalier.runs.result import FIGURES, WORDS, damaged_result


@dataclass(frozen=True)
class TaskColumn:
    """A task of a finished run: its path at the end, and its test accuracy when it was learned and at the end."""

    name: str
    dataset: str
    classes: tuple[str, ...]
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
class Finished(Recorded):
    """A finished run with its tasks, and its library without the tensors."""

    tasks: list[TaskColumn]
    blocks: tuple[str, ...]
    modules: dict[str, Module]

    @property
    def taught(self) -> bool:
        """Whether it is a library that was taught lesson by lesson, and no run of a stream."""
        return self.settings.get("taught") is True


@dataclass(frozen=True)
class Row:
    """The figures of one run; `transfer` is None where the run of `independent` to compare with is not there.

    `tuned` says what was chosen on the whole stream, with sight of later tasks ("" where nothing was). What a rebuilt
    run cost is what the search did.
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
    rebuilt: bool

    @property
    def name(self) -> str:
        return learner_name(self.learner, self.rebuilt)


def read_runs(folder: Path) -> list[Finished]:
    """All finished runs in a folder and below it, by stream, learner and seed; runs that go on still are left out."""
    return in_order([read_run(each) for each in find_runs(folder)])


def in_order(runs: Sequence[Finished]) -> list[Finished]:
    order = ("stream", "learner", "seed", "backbone", "protocol")
    return sorted(runs, key=lambda run: (*(run.result[key] for key in order), run.rebuilt, str(run.folder)))


def summary(runs: Sequence[Recorded]) -> list[Row]:
    return [_row(run, runs) for run in runs]


def _row(run: Recorded, runs: Sequence[Recorded]) -> Row:
    words = {key: run.result[key] for key in WORDS}
    figures = {key: run.result["metrics"][key] for key in FIGURES}
    rest = {key: run.result[key] for key in ("seed", "seconds", "data_complete")}
    compared = _transfer(run, runs)
    return Row(**words, **figures, **rest, transfer=compared, tuned=tuned(run.result), rebuilt=run.rebuilt)


def tuned(result: Mapping[str, Any]) -> str:
    """What a run chose on the whole stream, if anything."""
    tuning = result.get("tuning")
    return f"{tuning['field']} {tuning['chosen']:g}" if tuning else ""


def _transfer(run: Recorded, runs: Sequence[Recorded]) -> float | None:
    same = ("stream", "backbone", "protocol", "seed")
    matches = [
        other
        for other in runs
        if other.result["learner"] == "independent" and all(other.result[key] == run.result[key] for key in same)
    ]
    if not matches:
        return None
    nearest = min(matches, key=lambda other: _apart(other, run))
    return transfer(run.result["accuracy"], nearest.result["accuracy"])


def _apart(one: Recorded, other: Recorded) -> tuple[bool, bool]:
    """Where runs of several machines lie side by side, those of the same folder belong together; then those that were
    rebuilt, and those that were not."""
    return one.folder.parent != other.folder.parent, one.rebuilt != other.rebuilt


# Reading


def read_run(folder: Path) -> Finished:
    """The run in this very folder."""
    recorded = read_recorded(folder)
    where = home(folder, recorded.result) / "library"
    if not where.is_dir():
        raise InputError(
            f"{folder} has no library to be shown; name runs that have one ('espalier table' needs none, and 'espalier "
            f"rebuild' may make it again)."
        )
    library = Library.open(where)
    matrix = recorded.result["accuracy"]
    if len(matrix) != len(library.tasks):
        what = f"'accuracy' does not have a row for each of the {len(library.tasks)} tasks in the library"
        raise damaged_result(folder / "result.json", what)
    tasks = [
        TaskColumn(name, *_about(entry), entry.path, matrix[index][index], matrix[-1][index])
        for index, (name, entry) in enumerate(library.tasks.items())
    ]
    copies = _copies(recorded.events, library.blocks)
    trained_by = _trainers(library.modules, tasks)
    modules = {
        name: Module(name, entry.block, entry.numbers, trained_by[name], _stored(copies.get(name), library))
        for name, entry in library.modules.items()
    }
    return Finished(folder, recorded.result, recorded.settings, recorded.events, tasks, library.blocks, modules)


def _about(task: TaskEntry) -> tuple[str, tuple[str, ...]]:
    """Its dataset and its classes."""
    classes = task.info.get("classes")
    return str(task.info.get("dataset", task.name)), tuple(map(str, classes if isinstance(classes, list) else ()))


def _stored(module: str | None, library: Library) -> str | None:
    """Some learners start from states that they have made themselves."""
    return module if module in library.modules else None


def _trainers(modules: Iterable[str], tasks: Sequence[TaskColumn]) -> dict[str, str]:
    """New modules are named after their task; any other belongs to its first user."""
    names = {task.name for task in tasks}
    first_user = {module: task.name for task in reversed(tasks) for module in task.path}
    named = {module: module.partition(".")[0] for module in modules}
    return {module: name if name in names else first_user.get(module, name) for module, name in named.items()}


def _copies(events: Sequence[Event], blocks: Sequence[str]) -> dict[str, str]:
    """New module -> the module it started from, as far as the candidates that were kept tell."""
    copies: dict[str, str] = {}
    pairs = ((own, event) for own in by_task(events).values() for event in own if event["event"] == "learned")
    for own, learned in pairs:
        for kept in kept_among(own, learned, len(blocks))[:1]:
            slots = zip(kept["slots"], learned["path"], kept["modules"], strict=True)
            copies |= {module: source for slot, module, source in slots if slot == "c"}
    return copies
