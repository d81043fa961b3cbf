"""The five transfer streams of CTrL: ten-way tasks of 400 or 4,000 train images.

The sizes, the order and the way the last task differs from the first are the paper's (its table of streams), and in
detail those of the released benchmark. The mini streams use the same five functions with embedded images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from espalier.data.folder import DataFolder
from espalier.seeds import generator
from espalier.streams.choice import choose_classes
from espalier.streams.task import COLOURS, TaskSpec

Size = tuple[int, int]  # train and val images per class


@dataclass(frozen=True)
class Cast:
    """Which datasets play the parts, and how large a task is."""

    lead: str = "cifar10"
    coloured: str = "mnist"  # first and last in s_in
    guest: str = "cifar10"  # second in s_in
    others: tuple[str, ...] = ("mnist", "dtd", "fashion-mnist", "svhn")  # between the first task and the last
    large: Size = (400, 200)
    small: Size = (40, 20)
    scant: Size = (5, 3)
    image_size: int = 32


PAPER = Cast()


def s_minus(name: str, seed: int, data: DataFolder, cast: Cast = PAPER) -> list[TaskSpec]:
    tasks = _tasks(name, seed, data, cast, [cast.lead, *cast.others])
    return [_sized(tasks[0], cast.large), *tasks[1:], tasks[0]]


def s_plus(name: str, seed: int, data: DataFolder, cast: Cast = PAPER) -> list[TaskSpec]:
    tasks = _tasks(name, seed, data, cast, [cast.lead, *cast.others])
    return [*tasks, _sized(tasks[0], cast.large)]


def s_in(name: str, seed: int, data: DataFolder, cast: Cast = PAPER) -> list[TaskSpec]:
    tasks = _tasks(name, seed, data, cast, [cast.coloured, cast.guest, *cast.others[1:]])
    first, last = generator(seed, name, "colours").permutation(sorted(COLOURS))[:2]
    return [
        replace(_sized(tasks[0], cast.large), background=str(first)),
        *tasks[1:],
        replace(_sized(tasks[0], cast.scant), background=str(last)),
    ]


def s_out(name: str, seed: int, data: DataFolder, cast: Cast = PAPER) -> list[TaskSpec]:
    """The last task's labels are the first's moved on by one, the last becoming 0: no class keeps its label."""
    *tasks, last = s_minus(name, seed, data, cast)
    return [*tasks, replace(last, classes=(last.classes[-1], *last.classes[:-1]))]


def s_pl(name: str, seed: int, data: DataFolder, cast: Cast = PAPER) -> list[TaskSpec]:
    tasks = _tasks(name, seed, data, cast, [*cast.others, cast.lead])
    return [*tasks[:-1], _sized(tasks[-1], cast.large)]


def _tasks(name: str, seed: int, data: DataFolder, cast: Cast, datasets: Sequence[str]) -> list[TaskSpec]:
    train, val = cast.small
    return [
        TaskSpec(d, choose_classes(data, d, 10, seed, name, i), train, val, size=cast.image_size)
        for i, d in enumerate(datasets)
    ]


def _sized(spec: TaskSpec, size: Size) -> TaskSpec:
    return replace(spec, train=size[0], val=size[1])
