"""What was chosen, trained once more on all images of the task. Not in the paper.

A third of a task's images only serve to choose: candidate, setting, and when to stop. Once that is done they can be
learned from, too: the chosen candidate begins anew, under its setting, and is trained on train and validation images
for as many epochs as it took to be at its best, at a rate that falls to 0 in the second half. Nothing is chosen after
that.
"""

from dataclasses import replace

import torch

from espalier.learners.lesson import Learned, Lesson
from espalier.streams.task import Split, Task
from espalier.training import Outcome, train_for
from espalier.training.candidate import modules_named
from espalier.training.cost import forward_flops


def refit(lesson: Lesson, outcome: Outcome, learned: Learned) -> Learned:
    """`learned` with its modules trained again; as it is where nothing was trained, or the start was best."""
    chosen = learned.chosen
    if chosen.best_step == 0:
        return learned
    names = modules_named([chosen.member.candidate])
    job = lesson.job({name: lesson.library.state(name) for name in names})
    epochs = -(-chosen.best_step // job.steps_per_epoch())
    again = train_for(replace(job, task=with_val(lesson.task)), chosen.member, epochs, lesson.progress)
    (result,) = again.results
    lesson.record("refit", {"images": len(lesson.task.train) + lesson.task.val_originals, "steps": again.steps})
    kept = lesson.keep(outcome, chosen=replace(result, val_accuracy=chosen.val_accuracy))
    return replace(
        kept,
        paper_flops=kept.paper_flops + result.samples * forward_flops(job.backbone),
        flops=learned.flops + again.flops,
    )


def with_val(task: Task) -> Task:
    """The task with its val images, without their augmented copies, among its train images."""
    count = task.val_originals
    x, y = torch.cat([task.train.x, task.val.x[:count]]), torch.cat([task.train.y, task.val.y[:count]])
    return replace(task, train=Split(x, y))
