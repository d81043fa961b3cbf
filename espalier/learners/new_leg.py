"""New leg: the first task's network with a new first block for each task; the rest is frozen, or trained on."""

from dataclasses import dataclass

from espalier.errors import InputError
from espalier.learners.lesson import Learned, Lesson, all_fresh
from espalier.learners.options import option
from espalier.training import Copy, Fresh, Reuse


@dataclass(frozen=True)
class NewLeg:
    finetune: bool = option(False, "train the shared blocks on, for all tasks; else they stay as they are")

    def learn(self, lesson: Lesson) -> Learned:
        paths = list(lesson.paths().values())
        if not paths:
            return lesson.keep_best([all_fresh(lesson)])
        if not lesson.head_fits(paths[-1]):
            raise InputError(
                f"new-leg shares one head among all tasks, and task {lesson.name} has another number of classes "
                f"({lesson.task.n_classes}); choose another learner for this stream."
            )
        shared = paths[-1][1:]
        slots = (
            [Copy(module, keep_statistics=True) for module in shared]
            if self.finetune
            else [Reuse(module) for module in shared]
        )
        return lesson.keep_best([(Fresh(), *slots)], replace_copied=self.finetune)
