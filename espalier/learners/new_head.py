"""New head: the first task's network with a new last block for each task; the rest is frozen, or trained on."""

from dataclasses import dataclass

from espalier.learners.lesson import Learned, Lesson, all_fresh
from espalier.learners.options import option
from espalier.training import Copy, Fresh, Reuse


@dataclass(frozen=True)
class NewHead:
    finetune: bool = option(False, "train the shared blocks on, for all tasks; else they stay as they are")

    def learn(self, lesson: Lesson) -> Learned:
        paths = list(lesson.paths().values())
        if not paths:
            return lesson.keep_best([all_fresh(lesson)])
        shared = paths[-1][:-1]
        slots = (
            [Copy(module, keep_statistics=True) for module in shared]
            if self.finetune
            else [Reuse(module) for module in shared]
        )
        return lesson.keep_best([(*slots, Fresh())], replace_copied=self.finetune)
