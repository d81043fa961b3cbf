"""The long stream of CTrL: 100 five-way tasks, and the very instance that the paper prints.

The released benchmark draws the datasets and the augmentation of the val images from generators that nobody seeds,
and its stream never ends; here every choice has its seed, and there are 100 tasks.
"""

import csv
from dataclasses import dataclass
from importlib import resources

from espalier.data.folder import DataFolder
from espalier.seeds import generator
from espalier.streams.choice import choose_classes
from espalier.streams.task import TaskSpec


@dataclass(frozen=True)
class Plan:
    """How a long stream is drawn: its datasets, its sizes, and the share of large tasks in each third."""

    datasets: tuple[str, ...] = ("mnist", "svhn", "cifar10", "fashion-mnist", "cifar100")
    tasks: int = 100
    thirds: tuple[int, int] = (33, 66)  # the first task of the second and of the last third
    large_share: tuple[float, float, float] = (0.5, 0.25, 0.0)
    large: tuple[int, int] = (1000, 500)
    small: tuple[int, int] = (5, 3)
    image_size: int = 32


PAPER = Plan()
VAL_COPIES = 4


def s_long(name: str, seed: int, data: DataFolder, plan: Plan = PAPER) -> list[TaskSpec]:
    """A dataset, five of its classes and a size for every task, each drawn on its own."""
    specs = []
    for i in range(plan.tasks):
        rng = generator(seed, name, i, "dataset and size")
        dataset = plan.datasets[rng.randint(len(plan.datasets))]
        share = plan.large_share[sum(i >= start for start in plan.thirds)]
        train, val = plan.large if rng.random_sample() < share else plan.small
        classes = choose_classes(data, dataset, 5, seed, name, i)
        specs.append(TaskSpec(dataset, classes, train, val, size=plan.image_size, val_copies=VAL_COPIES))
    return specs


def s_long_paper(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    """The tasks of the paper's table; the seed only chooses the images."""
    table = resources.files("espalier.streams").joinpath("s_long_paper.csv").read_text()
    specs = []
    for row in csv.DictReader(table.splitlines()):
        train, val = PAPER.small if row["train"] == "25" else PAPER.large
        specs.append(TaskSpec(row["dataset"], tuple(row["classes"].split("|")), train, val, val_copies=VAL_COPIES))
    return specs
