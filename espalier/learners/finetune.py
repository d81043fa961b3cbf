"""Finetune: one network for all tasks, trained on from task to task, its head too. It forgets.

The head goes on only where the number of classes stays; else the task gets a new one, and keeps it.
"""

from dataclasses import dataclass

from espalier.learners.lesson import Learned, Lesson, all_fresh
from espalier.training import Copy, Fresh


@dataclass(frozen=True)
class Finetune:
    def learn(self, lesson: Lesson) -> Learned:
        paths = list(lesson.paths().values())
        if not paths:
            return lesson.keep_best([all_fresh(lesson)])
        fitting = [path[-1] for path in paths if lesson.head_fits(path)]
        last = Copy(fitting[-1], keep_statistics=True) if fitting else Fresh()
        return lesson.keep_best(
            [(*(Copy(module, keep_statistics=True) for module in paths[-1][:-1]), last)], replace_copied=True
        )
