"""A `Stream`: tasks in order, each made when it is asked for. `stream(name)` finds one by its name."""

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from espalier.data.folder import DataFolder
from espalier.errors import InputError, MissingDataError
from espalier.streams import classic, ctrl, long, mini
from espalier.streams.task import Split, Task, TaskSpec, build_split, build_task

Make = Callable[[str, int, DataFolder], list[TaskSpec]]

STREAMS: dict[str, tuple[Make, str]] = {
    "s_minus": (ctrl.s_minus, "the first task again at the end, with a tenth of its images: direct transfer"),
    "s_plus": (ctrl.s_plus, "the first task again at the end, with ten times its images: knowledge update"),
    "s_in": (ctrl.s_in, "the first task again at the end, on another background colour: change of input"),
    "s_out": (
        ctrl.s_out,
        "the first task again at the end, with its labels moved on by one: change of output",
    ),
    "s_pl": (ctrl.s_pl, "four small tasks, then a large one that none of them helps: plasticity"),
    "s_long": (long.s_long, "100 five-way tasks of five datasets, fewer and fewer of them large"),
    "s_long@paper": (long.s_long_paper, "the instance of s_long that is printed in the paper"),
    "permuted_mnist": (
        classic.permuted_mnist,
        "MNIST ten times, each time under another permutation of the pixels",
    ),
    "split_cifar100": (classic.split_cifar100, "CIFAR-100 in ten tasks of ten classes"),
    "s_minus_mini": (mini.s_minus, "s_minus on embedded images"),
    "s_plus_mini": (mini.s_plus, "s_plus on embedded images"),
    "s_in_mini": (mini.s_in, "s_in on embedded images"),
    "s_out_mini": (mini.s_out, "s_out on embedded images"),
    "s_pl_mini": (mini.s_pl, "s_pl on embedded images"),
    "s_long_mini": (mini.s_long, "s_long on embedded images, 20 tasks"),
    "permuted_mini": (mini.permuted, "permuted MNIST on embedded images, 5 tasks"),
}
OURS = frozenset(STREAMS)


@dataclass(frozen=True, eq=False)
class Stream:
    """Specs in order; `stream[i]` makes the tensors of task i, the same bytes whenever and in whatever order asked."""

    name: str
    seed: int
    specs: tuple[TaskSpec, ...]
    data: DataFolder

    def __len__(self) -> int:
        return len(self.specs)

    def __getitem__(self, index: int) -> Task:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} tasks")
        index %= len(self)
        return build_task(self.specs[index], self.data, self.seed, self.name, index)

    def split(self, index: int, name: str) -> Split:
        """One split of task `index` (train, val or test), for whoever needs no other."""
        return build_split(self.specs[index], self.data, name, self.seed, self.name, index)

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    def __str__(self) -> str:
        rows = [
            f"{i:>4}  {s.title:<20} {s.train or 'all':>5} + {s.val or 'all'} per class  {' '.join(s.classes)}"
            for i, s in enumerate(self.specs, start=1)
        ]
        return "\n".join([f"{self.name}, seed {self.seed}: {len(self)} tasks", *rows])

    def datasets(self, since: int = 0) -> list[str]:
        """The datasets that it needs from a task on, in the order of their first use."""
        return list(dict.fromkeys(spec.dataset for spec in self.specs[since:]))

    def missing(self, since: int = 0) -> list[str]:
        """Those of these datasets that are not in the data folder."""
        return [name for name in self.datasets(since) if self.data.holding(name).state == "missing"]

    def check_there(self, since: int = 0) -> None:
        """An error that tells what to do, where one of them is missing."""
        if self.missing(since):
            names, where = " ".join(self.missing(since)), self.data.path
            there = "" if where.exists() else " (there is no such folder)"
            raise MissingDataError(
                f"{self.name} needs {names}, not found in {where}{there}; run 'espalier data fetch {names}', or name "
                f"the folder that holds the images with --data."
            )


def add_stream(name: str, tasks: Sequence[TaskSpec]) -> None:
    """Make a stream of own tasks known by a name, in this process.

    The same name again takes its place: with more tasks at the end, a run of it goes on with these.
    """
    if name in OURS:
        raise InputError(f"{name!r} is a stream already; choose another name.")
    if not re.fullmatch(r"\w[\w.@+-]*", name):
        raise InputError(f"{name!r} cannot name a run's folder; take letters, digits, '_', '.', '@', '+' and '-'.")
    if not tasks:
        raise InputError(f"{name!r} has no task; give one or more.")
    made = list(tasks)
    STREAMS[name] = (lambda *_: made, "added")


def stream(name: str, seed: int = 0, data: DataFolder | str | Path | None = None) -> Stream:
    """The stream of that name. `data` is a data folder, or where it is; nothing of it is read yet."""
    if name not in STREAMS:
        close = difflib.get_close_matches(name.lower(), STREAMS, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no stream {name!r}; {hint}the streams are {', '.join(STREAMS)}.")
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"a seed is a whole number from 0 on, not {seed!r}.")
    folder = data if isinstance(data, DataFolder) else DataFolder(data)
    make, _ = STREAMS[name]
    return Stream(name, seed, tuple(make(name, seed, folder)), folder)
