"""A run: one learner, one stream, one seed. It learns task after task, evaluates, records, and can be resumed.

A run folder holds `run.json` (what was asked, versions, hardware, data), `records.jsonl` (what happened), the library
and, at the end, `result.json`. Learning a task is committed to the library whole or not at all; a run that was killed
goes on behind the last committed task and ends with the same result. So does a finished run whose stream has grown.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import torch

from espalier.device import as_in_runs, named
from espalier.errors import InputError
from espalier.evaluation import accuracy, accuracy_on, average_accuracy, forgetting, lca, memory_mb, network_of, tflops
from espalier.files import write_json
from espalier.learners.lesson import Learned, Lesson, learned_by, to_device
from espalier.library import Change, Library, TaskEntry
from espalier.nets import Backbone, Block, backbone, split_name, tiles
from espalier.runs.begun import SCHEMA, asked_for, check_begun, learned_in, result_of
from espalier.runs.hardware import hardware, versions
from espalier.runs.kept import by_task
from espalier.runs.order import Moment, Order
from espalier.runs.records import Records, of_kind
from espalier.runs.result import read_table
from espalier.runs.settings import Settings
from espalier.streams import Task, TaskSpec
from espalier.streams.task import Split
from espalier.training import describe, protocol
from espalier.training.job import Speed

# What a run tells of each task in its library, and needs to go on.
NEEDED = {"dataset", "classes", "image", "mean", "std", "images", "data_complete", "curve", "seconds"}
NEEDED |= {"paper_flops", "flops"}


def run_in(order: Order) -> dict[str, Any]:
    """Do a run in its folder, or what is left of it, and return its result. A finished run is not done again."""
    check_begun(order.folder, asked_for(order))
    result = result_of(order)
    if result is not None:
        return result
    with _threads(order.settings), as_in_runs(order.device):
        return _Loop(order).run()


def begin_in(order: Order, tasks: int = 1) -> None:
    """Learn the first tasks of a run in its folder, unless they have been learned."""
    check_begun(order.folder, asked_for(order))
    with _threads(order.settings), as_in_runs(order.device):
        _Loop(order).begin(tasks)


@contextmanager
def _threads(settings: Settings) -> Iterator[None]:
    """A small network gains nothing from a second thread, and with one its results do not depend on the machine's
    number of cores."""
    before = torch.get_num_threads()
    plain, factor = split_name(settings.backbone)
    if plain == "tiny" or (plain == "fc" and factor < 1):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Loop:
    """The run loop, and what it knows while it runs."""

    def __init__(self, order: Order) -> None:
        self.order, self.settings, self.stream, self.folder = order, order.settings, order.stream, order.folder
        self._check_fit()
        self.device = named(order.device)
        self.protocol = protocol(order.settings.protocol)
        self.library = self._open_library()

    def _check_fit(self) -> None:
        """Modules of the first task must fit the images of all others; only the head may differ."""
        first, shapes = self._backbone(self.stream.specs[0]), set()
        for index, spec in enumerate(self.stream.specs):
            if (spec.channels, spec.size) in shapes:
                continue
            shapes.add((spec.channels, spec.size))
            mine = self._backbone(spec)
            if any(_shapes(new) != _shapes(old) for new, old in zip(mine.blocks[:-1], first.blocks, strict=False)):
                raise InputError(
                    f"task {_task_name(index)} has images of shape {mine.image}, which the modules of the first task "
                    f"cannot take; give all tasks images of one shape."
                )

    def _open_library(self) -> Library:
        where = self.folder / "library"
        if (where / "library.json").is_file():
            library = Library.open(where)
            self.stream.check_there(since=len(library.tasks))
            if library.backbone == self.settings.backbone:
                return library
            self._clear(library)
        self.stream.check_there()
        if any(where.glob("modules/*")) or learned_in(self.folder):
            raise InputError(f"{where} has lost its library.json; restore it from a copy, or begin in another folder.")
        blocks = [block.name for block in self._backbone(self.stream.specs[0]).blocks]
        return Library.create(where, self.settings.backbone, blocks)

    def _clear(self, library: Library) -> None:
        """A library of another backbone makes room, as nothing was learned into it."""
        with library.writer():
            if library.tasks:
                raise InputError(f"{library.folder} was made for {library.backbone}; begin in another folder.")
            for left in ("modules", "extras"):  # by a process that was killed before it had learned anything
                shutil.rmtree(library.folder / left, ignore_errors=True)
            (library.folder / "library.json").unlink()

    def run(self) -> dict[str, Any]:
        with self.library.writer():
            self._open_records()
            for index in range(len(self.stream)):
                self._do_task(index)
            result = self._result()
            self.records.settle()
            write_json(self.folder / "result.json", result)
        return result

    def begin(self, tasks: int) -> None:
        with self.library.writer():
            self._open_records()
            for index in range(tasks):
                self._do_task(index)
            self.records.settle()

    def _open_records(self) -> None:
        check_begun(self.folder, asked_for(self.order))  # again: another process may have learned since
        if self.library.backbone != self.settings.backbone:
            raise InputError(f"another process has just begun {self.folder}; look what is in it now.")
        self._write_settings()
        # What a task recorded before it was committed is recorded again when it is learned again.
        known = set(self.library.tasks)
        self.records = Records(self.folder / "records.jsonl", lambda event: event.get("task") in known)
        self._check_records()
        self.records.trim()
        self.on_record = {task: {event["event"] for event in own} for task, own in by_task(self.records.events).items()}
        self._check_images()

    def _check_images(self) -> None:
        """Of every dataset, one task that was learned before must still have the images it had. Where lessons bring
        their own, only one that is yet to be measured must."""
        learned = enumerate(zip(self.stream.specs, self.library.tasks.values(), strict=False))
        measured = set() if self.order.same_images else self._measured()
        of_dataset = {
            spec.dataset: (index, entry.info) for index, (spec, entry) in learned if entry.name not in measured
        }
        for dataset, (index, info) in of_dataset.items():
            if not self.stream.data.has(dataset):  # it is no longer needed
                continue
            task = self.stream[index]
            same_size = info["images"] == _sizes(task)
            if not same_size or not torch.allclose(task.mean.flatten(), torch.tensor(info["mean"]), atol=1e-5):
                raise InputError(
                    f"{self.folder} was begun with other images of {dataset} than {self.stream.data.path} has; name "
                    f"with --data the folder that it was begun with, or begin in another folder."
                )

    def _check_records(self) -> None:
        """Of all tasks in the library but the last, how they did is on record: it cannot be found out later. What is
        told of tasks is whole, or learning one more would end in an error."""
        for name, entry in self.library.tasks.items():
            if NEEDED - entry.info.keys():
                missing = ", ".join(sorted(NEEDED - entry.info.keys()))
                raise InputError(
                    f"{self.library.folder} does not tell the {missing} of {name}; restore it from a copy."
                )
        if any(not {"accuracy", "paths"} <= event.keys() for event in of_kind(self.records.events, "evaluated")):
            raise InputError(f"{self.records.path} does not tell all that was measured; restore it from a copy.")
        measured = self._measured()
        lost = [name for name in list(self.library.tasks)[:-1] if name not in measured]
        if lost:
            raise InputError(
                f"{self.records.path} has lost what was measured after {lost[0]}; restore it from a copy, or begin in "
                f"another folder."
            )

    def _measured(self) -> set[str]:
        return {event["task"] for event in of_kind(self.records.events, "evaluated")}

    def _write_settings(self) -> None:
        path, asked, learned = self.folder / "run.json", asked_for(self.order), len(self.library.tasks)
        if learned == 0:
            there = {"data": self._held(), "versions": versions(), "hardware": hardware(self.device)}
            there |= {"training": asdict(Speed.of(self.device)), "taught": not self.order.same_images}
            again = {} if self.order.rebuilt_from is None else {"rebuilt_from": self.order.rebuilt_from}
            write_json(path, {**asked, **there, **again})
            return
        begun = read_table(path)
        if begun.get("tasks") != asked["tasks"]:  # the stream has grown
            held = {**begun.get("data", {}), **self._held(since=learned)}
            write_json(path, {**begun, "tasks": asked["tasks"], "data": held, "taught": not self.order.same_images})

    def _held(self, since: int = 0) -> dict[str, dict[str, str]]:
        """What was there of each dataset that is needed from a task on."""
        held = {name: self.stream.data.holding(name) for name in self.stream.datasets(since)}
        return {name: {"state": h.state, "source": h.source, "note": h.note} for name, h in held.items()}

    def _do_task(self, index: int) -> None:
        """Learn task `index` unless the library has it, evaluate unless the records say so."""
        name = _task_name(index)
        on_record = self.on_record.get(name, set())
        if name in self.library.tasks and "evaluated" in on_record:
            return
        self.order.watch(Moment(index, len(self.stream)))
        with tiles.built_meanwhile(self.device):
            task = self.stream[index].to(self.device)
        if name not in self.library.tasks:
            self._learn(index, name, task)
        if "learned" not in on_record:
            entry = self.library.tasks[name]
            self.records.append("learned", task=name, path=list(entry.path), **entry.info)
        self._evaluate(index, name, task)

    def _evaluate(self, index: int, name: str, task: Task) -> None:
        """Test accuracy on all tasks now. A path that is the one last recorded predicts what it predicted then."""
        evaluated = of_kind(self.records.events, "evaluated")
        before = {known: tuple(path) for event in evaluated for known, path in event["paths"].items()}
        paths = {known: entry.path for known, entry in self.library.tasks.items()}
        row = [
            evaluated[-1]["accuracy"][i]
            if before.get(known) == path
            else self._accuracy(i, task.test if i == index else self._split(i, "test"))
            for i, (known, path) in enumerate(paths.items())
        ]
        new = {known: list(path) for known, path in paths.items() if before.get(known) != path}
        self.records.append("evaluated", task=name, accuracy=row, memory_mb=self._memory_mb(), paths=new)

    def _learn(self, index: int, name: str, task: Task) -> None:
        def progress(step: int, most: int, members: int, best: float) -> None:
            self.order.watch(Moment(index, len(self.stream), step, most, members, best))

        (self.folder / "result.json").unlink(missing_ok=True)  # of fewer tasks
        network = self._backbone(task.spec)
        start = time.perf_counter()
        lesson = Lesson(
            name,
            index,
            _without_test(task),
            self.library,
            network,
            self.protocol,
            self.settings.seed,
            self.settings.stream,
            progress,
            lambda event, what: self.records.append(event, task=name, **what),
        )
        learned = learned_by(self.order.learner, lesson)
        seconds = round(time.perf_counter() - start if learned.seconds is None else learned.seconds, 2)
        change, path = learned.change, learned.change.tasks[name].path
        info = {**task_info(task, network, learned), "curve": self._curve(task, network, learned, path)}
        entry = TaskEntry(name, path, {**change.tasks[name].info, **info, "seconds": seconds})
        self.records.settle()  # after a power cut they must not be behind the library
        self.library.commit(Change(change.modules, {**change.tasks, name: entry}, change.extras))

    def _curve(self, task: Task, network: Backbone, learned: Learned, path: tuple[str, ...]) -> list[float]:
        """Test accuracy of what was kept after its first steps. The learner has finished; it does not see this."""
        curve: list[float] = []
        for early in learned.chosen.early:
            states = [
                to_device(self.library.state(module), self.device) if state is None else state
                for module, state in zip(path, early, strict=True)
            ]
            with Speed.of(self.device).precision(self.device):  # no prediction that anybody will ask for again
                curve.append(accuracy(task, learned.network or network, states, self.protocol.eval_batch))
        return curve

    def _accuracy(self, index: int, split: Split) -> float:
        """Of what the library has for a task, on images of it."""
        name = _task_name(index)
        states = [to_device(state, self.device) for state in self.library.states(name)]
        info = self.library.tasks[name].info
        mean, std = (torch.tensor(info[key], device=self.device).view(-1, 1, 1) for key in ("mean", "std"))
        return accuracy_on(split, mean, std, network_of(self.library, name), states, self.protocol.eval_batch)

    def _split(self, index: int, name: str) -> Split:
        return self.stream.split(index, name).to(self.device)

    def _memory_mb(self) -> float:
        """As the last learner to count counted it; else the modules in use."""
        counted = list(self.library.tasks.values())[-1].info.get("memory")
        return memory_mb(self.library.used_numbers() if counted is None else counted)

    def _backbone(self, spec: TaskSpec) -> Backbone:
        return backbone(self.settings.backbone, (spec.channels, spec.size, spec.size), len(spec.classes))

    def _result(self) -> dict[str, Any]:
        matrix = [event["accuracy"] for event in of_kind(self.records.events, "evaluated")]
        infos = [self.library.tasks[_task_name(i)].info for i in range(len(self.stream))]
        metrics = {
            "avg_accuracy": average_accuracy(matrix),
            "forgetting": forgetting(matrix),
            "lca": lca([info["curve"] for info in infos]),
            "memory_mb": self._memory_mb(),
            "tflops": tflops(sum(info["paper_flops"] for info in infos)),
            "tflops_executed": tflops(sum(info["flops"] for info in infos)),
            "last_task_accuracy": matrix[-1][-1],
        }
        if self.order.judged_on_val:
            # What is chosen on the stream is chosen by these.
            val = [self._accuracy(i, self._split(i, "val")) for i in range(len(self.stream))]
            metrics["avg_val_accuracy"] = fmean(val)
        return {
            "schema": SCHEMA,
            **asdict(self.settings),
            "metrics": metrics,
            "accuracy": matrix,
            "data_complete": all(info["data_complete"] for info in infos),
            "seconds": round(sum(info["seconds"] for info in infos), 2),
        }


def task_info(task: Task, network: Backbone, learned: Learned) -> dict[str, Any]:
    """What is kept with a task in the library: how to prepare its images, and what learning it took."""
    setting = learned.chosen.member.setting
    counted = {} if learned.memory is None else {"memory": learned.memory}
    return {
        "dataset": task.spec.title,
        "classes": list(task.spec.classes),
        "image": list(network.image),
        "mean": task.mean.flatten().tolist(),
        "std": task.std.flatten().tolist(),
        "images": _sizes(task),
        "data_complete": task.complete,
        **_made_by(task.spec),
        "slots": describe(learned.chosen.member.candidate),
        **{name: value for name, value in asdict(setting).items() if value is not None},
        "val_accuracy": learned.chosen.val_accuracy,
        "steps": learned.chosen.steps,
        "paper_flops": learned.paper_flops,
        "flops": learned.flops,
        **counted,
    }


def _made_by(spec: TaskSpec) -> dict[str, Any]:
    changes = {"background": spec.background, "permutation": spec.permutation}
    return {name: value for name, value in changes.items() if value is not None}


def _sizes(task: Task) -> dict[str, int]:
    return {"train": len(task.train), "val": len(task.val), "test": len(task.test)}


def _shapes(block: Block) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in block.init(torch.Generator()).items()}


def _task_name(index: int) -> str:
    return f"t{index + 1}"


def _without_test(task: Task) -> Task:
    """The task as a learner may see it: its test split is empty."""
    nothing = Split(task.test.x[:0], task.test.y[:0])
    return replace(task, test=nothing)
