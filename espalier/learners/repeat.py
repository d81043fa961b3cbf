"""What was chosen in a lesson before, trained again without the search. Knows nothing about where that is on record.

What a candidate learns depends on the seed and on itself alone: trained by itself, under the setting that won, it
becomes what it was, but for rounding.
"""

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
    """What was kept for a task, and whether it was refitted; which images that was learned from; and what the search
    cost: its `paper_flops`, `flops` and `seconds`."""

    candidate: Candidate
    setting: Setting
    refitted: bool
    classes: list[str]
    mean: list[float]
    cost: Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Repeat:
    """Stands in for a learner whose choices are known, task by task."""

    told: str  # the learner and its values, by which runs are known
    choices: Mapping[str, Choice]

    def __repr__(self) -> str:
        return self.told

    def learn(self, lesson: Lesson) -> Learned:
        choice = self.choices[lesson.name]
        _check_images(lesson, choice)
        outcome = lesson.train([choice.candidate], [choice.setting])
        learned = lesson.keep(outcome)
        lesson.record("rebuilt", {"search": dict(choice.cost)})
        return replace(refit(lesson, outcome, learned) if choice.refitted else learned, **choice.cost)


def _check_images(lesson: Lesson, choice: Choice) -> None:
    task = lesson.task
    same = torch.allclose(task.mean.flatten().cpu(), torch.tensor(choice.mean), atol=1e-5)
    if list(task.spec.classes) != choice.classes or not same:
        raise InputError(
            f"{lesson.name}, of {task.spec.title}, has other images here than the run had; name with --data the folder "
            f"that it was made from."
        )
