"""What was chosen in a lesson before, trained again without the search. Knows nothing about where that is on record.

What a candidate learns depends on the seed and on itself alone: trained by itself, under the setting that won, on the
same kind of device, it becomes what it was but for rounding. With every step rounding makes more of a difference.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from espalier.errors import InputError
from espalier.learners.lesson import Learned, Lesson
from espalier.learners.refit import refit
from espalier.training import Candidate, Setting


@dataclass(frozen=True)
class Choice:
    """What was kept for a task, and whether it was refitted; on which images: how many of each split, and the mean of
    the train images; and what the search cost: its `paper_flops`, `flops` and `seconds`."""

    path: tuple[str, ...]
    candidate: Candidate
    setting: Setting
    refitted: bool
    classes: list[str]
    images: Mapping[str, int]
    mean: list[float]
    cost: Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Repeat:
    """Stands in for a learner whose choices are known, task by task. What it learns costs what the search did; what it
    cost itself is on record."""

    told: str  # the learner and its values, by which runs are known
    choices: Mapping[str, Choice]

    def __repr__(self) -> str:
        return self.told

    def learn(self, lesson: Lesson) -> Learned:
        choice, start = self.choices[lesson.name], time.perf_counter()
        _check_images(lesson, choice)
        outcome = lesson.train([choice.candidate], [choice.setting])
        learned = lesson.keep(outcome)
        if choice.refitted:
            learned = refit(lesson, outcome, learned)
        seconds = round(time.perf_counter() - start, 2)
        lesson.record("rebuilt", {"flops": learned.flops, "seconds": seconds})
        return replace(learned, **choice.cost)


def _check_images(lesson: Lesson, choice: Choice) -> None:
    task = lesson.task
    counts = {"train": len(task.train), "val": len(task.val)}  # nobody has test images in a lesson
    then, now = torch.tensor(choice.mean), task.mean.flatten().cpu()
    same = then.shape == now.shape and torch.allclose(now, then, atol=1e-5)
    if not same or any(choice.images.get(split) != count for split, count in counts.items()):
        raise InputError(
            f"{lesson.name}, of {task.spec.title}, has other images here than the run had; name with --data the folder "
            f"that it was made from."
        )
