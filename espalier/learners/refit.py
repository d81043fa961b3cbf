"""What was chosen, trained on with all images of the task. Not in the paper.

A third of a task's images only serve to choose: candidate, setting, and when to stop. Once that is done they can be
learned from, too: the chosen candidate goes on from where it was best, under its setting, on train and validation
images, for as many epochs as it took to get there, at a rate that falls to 0 in the second half. Nothing is chosen
after that; but should it know the validation images worse than before, though it has now trained on them, then
something went wrong, and it stays as it was.
"""

from dataclasses import replace

import torch

from espalier.learners.lesson import Learned, Lesson
from espalier.streams.task import Split, Task
from espalier.training import Outcome, train_for
from espalier.training.again import as_trained, ask
from espalier.training.candidate import modules_named
from espalier.training.cost import forward_flops


def refit(lesson: Lesson, outcome: Outcome, learned: Learned) -> Learned:
    """`learned` with its modules trained on; as it is where nothing was trained, or the start was best."""
    chosen = learned.chosen
    if chosen.best_step == 0:
        return learned
    job = lesson.job({name: lesson.library.state(name) for name in modules_named([chosen.member.candidate])})
    epochs = -(-chosen.best_step // job.steps_per_epoch())
    there, (member,) = as_trained(job, [chosen])
    there = replace(there, task=with_val(job.task))
    again = train_for(there, member, epochs, lesson.progress)
    (result,) = again.results
    after = replace(chosen, states=result.states)
    answers = ask(job, [after], lesson.task.val.x, lesson.task.val.y)
    kept = answers.accuracies[0] >= chosen.val_accuracy
    lesson.record("refit", {"images": len(there.task.train), "steps": again.steps, "kept": kept})
    return replace(
        lesson.keep(outcome, chosen=after) if kept else learned,
        paper_flops=learned.paper_flops + result.samples * forward_flops(job.backbone),
        flops=learned.flops + again.flops + answers.flops,
    )


def with_val(task: Task) -> Task:
    """The task with its val images, without their augmented copies, among its train images."""
    count = task.val_originals
    x, y = torch.cat([task.train.x, task.val.x[:count]]), torch.cat([task.train.y, task.val.y[:count]])
    return replace(task, train=Split(x, y))
