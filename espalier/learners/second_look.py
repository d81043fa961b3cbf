"""Which of the trained candidates is kept, where few validation images cannot tell them apart. Not in the paper.

A candidate's validation accuracy is that of its luckiest moment: the highest of hundreds of measurements, on as few as
30 images. Those that are not more than a standard error below the best are therefore looked at a second time, on the
same images shifted and mirrored at random, as in training but not seen in it. A path that is re-used whole was measured
once, without luck: where it is among them, it is kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from espalier.learners.lesson import Lesson
from espalier.training import Job, Trained, best, describe
from espalier.training.again import ask
from espalier.training.candidate import modules_named
from espalier.training.job import shifted, stands_still

VIEWS = 10  # of every validation image that is no copy of another


@dataclass(frozen=True, eq=False)
class Look:
    chosen: Trained
    flops: int


def second_look(lesson: Lesson, results: Sequence[Trained], tolerance: float) -> Look:
    """Candidates within `tolerance` standard errors of the best count as tied."""
    first = best(results)
    within = tolerance * standard_error(first.val_accuracy, lesson.task.val_originals)
    tied = [result for result in results if result.val_accuracy >= first.val_accuracy - within]
    whole = [result for result in tied if not result.member.trains]
    moves = (lesson.protocol.pad or lesson.protocol.flip) and not stands_still(lesson.task)
    if whole or tolerance == 0 or len(tied) == 1 or not moves:
        return Look(best(whole) if whole else first, 0)
    job = lesson.job({name: lesson.library.state(name) for name in modules_named([r.member.candidate for r in tied])})
    answers = ask(job, tied, *_views(job))
    again = [replace(result, val_accuracy=found) for result, found in zip(tied, answers.accuracies, strict=True)]
    seen = [{"slots": describe(r.member.candidate), "accuracy": r.val_accuracy} for r in again]
    lesson.record("second look", {"tied": seen})
    return Look(tied[again.index(best(again))], answers.flops)


def standard_error(accuracy: float, images: int) -> float:
    """Of an accuracy measured on so many images; with two right and two wrong answers added, as Agresti and Coull
    do, so that it is not 0 where all answers were right."""
    share = (accuracy * images + 2) / (images + 4)
    return math.sqrt(share * (1 - share) / (images + 4))


def _views(job: Job) -> tuple[Tensor, Tensor]:
    draw, originals = job.generator("second look"), slice(job.task.val_originals)
    x, y = job.task.val.x[originals], job.task.val.y[originals]
    return torch.cat([shifted(x, job.protocol, draw) for _ in range(VIEWS)]), y.repeat(VIEWS)
