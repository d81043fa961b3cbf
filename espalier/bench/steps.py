"""The time of a training step after one task and after nineteen: the same task, side by side, for every learner."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from espalier.data.folder import DataFolder
from espalier.errors import InputError
from espalier.learners import Learned, Lesson, entry
from espalier.library import Change, Library, TaskEntry
from espalier.nets import Backbone, backbone
from espalier.runs.loop import task_info
from espalier.runs.settings import Settings
from espalier.streams import Task, TaskSpec
from espalier.streams.task import build_task
from espalier.training import protocol

EARLY, LATE = 2, 20  # the tasks that are compared
ROUNDS = 5
STREAM = "bench_mini"
DATASETS = ("letters", "shapes", "glyphs", "flags")
SHORT = replace(protocol("quick"), max_epochs=4, patience=10**9, early=())


@dataclass(frozen=True)
class Line:
    learner: str
    backbone: str
    early_ms: float
    late_ms: float

    @property
    def ratio(self) -> float:
        return self.late_ms / self.early_ms


def compare(name: str, folder: Path, late: int = LATE) -> Line:
    """All but one of `late` short tasks are learned; then the same task as the second and as the last, in turn."""
    known = entry(name)
    network_name = Settings.of(STREAM, name).backbone
    tasks = [_task(index) for index in range(late - 1)]
    network = backbone(network_name, tuple(tasks[0].train.x.shape[1:]), tasks[0].n_classes)
    library = Library.create(folder / "late", network_name, [block.name for block in network.blocks])
    with library.writer():
        for index, task in enumerate(tasks):
            _learn(name, library, network, task, index)
            if index == EARLY - 2:
                shutil.copytree(folder / "late", folder / "early")
    again = _task(late)
    times: dict[str, list[float]] = {"early": [], "late": []}
    for _ in range(ROUNDS):
        for when, index in (("early", EARLY - 1), ("late", late - 1)):
            records: list[dict[str, Any]] = []
            known.learner.learn(_lesson(Library.open(folder / when), network, again, index, records))
            trained = [record for record in records if record.get("steps") and "step_seconds" in record]
            times[when].append(sum(r["step_seconds"] for r in trained) / sum(r["steps"] for r in trained))
    return Line(name, network_name, 1e3 * median(times["early"]), 1e3 * median(times["late"]))


def compare_all(names: list[str], folder: Path) -> Iterator[Line]:
    for name in names:
        if (folder / name).exists():
            raise InputError(f"{folder / name} is there already; remove it or name another folder with --out.")
        yield compare(name, folder / name)


def _task(index: int) -> Task:
    data, dataset = DataFolder(None), DATASETS[index % len(DATASETS)]
    spec = TaskSpec(dataset, data.class_names(dataset)[:5], train=32, val=4, test=1, size=16)
    return build_task(spec, data, 0, STREAM, index)


def _lesson(
    library: Library, network: Backbone, task: Task, index: int, records: list[dict[str, Any]] | None = None
) -> Lesson:
    noted = [] if records is None else records
    return Lesson(
        f"t{index + 1}",
        index,
        task,
        library,
        network,
        SHORT,
        0,
        STREAM,
        lambda *progress: None,
        lambda event, what: noted.append(what),
    )


def _learn(name: str, library: Library, network: Backbone, task: Task, index: int) -> None:
    learned: Learned = entry(name).learner.learn(_lesson(library, network, task, index))
    this = f"t{index + 1}"
    info = {**learned.change.tasks[this].info, **task_info(task, network, learned)}
    entries = {**learned.change.tasks, this: TaskEntry(this, learned.change.tasks[this].path, info)}
    library.commit(Change(learned.change.modules, entries, learned.change.extras))
