"""PNN: a new column for every task, which reads all earlier columns; these stay as they are, so it never forgets.

Rusu et al., "Progressive Neural Networks", arXiv 2016, as the released code of the MNTDP paper has it (the equation
stands in `nets/columns.py`). What a task adds to memory grows with the number of tasks before it, and the time of a
training step with that number and its square: a learner for short streams. Knows nothing about how a column is trained.
"""

from dataclasses import dataclass

from espalier.learners.lesson import Learned, Lesson, to_device
from espalier.library import Change, TaskEntry
from espalier.nets.columns import Columns
from espalier.training import best
from espalier.training.columns import ColumnModel, column_flops


@dataclass(frozen=True)
class Pnn:
    def learn(self, lesson: Lesson) -> Learned:
        library, job = lesson.library, lesson.job({})
        earlier = {task: [to_device(state, job.device) for state in library.states(task)] for task in library.tasks}
        network = Columns(lesson.backbone, earlier)
        outcome = lesson.fit(job, ColumnModel(job, network, lesson.settings))
        chosen = best(outcome.results)
        modules = lesson.new_modules(chosen.states)
        # `network_of` looks up the columns to put beside this task's when it is to predict.
        entry = TaskEntry(lesson.name, tuple(modules), {"columns": list(earlier)})
        forward = column_flops(network, 1)[1]
        change = Change(modules, {lesson.name: entry})
        return Learned(chosen, change, chosen.samples * forward, outcome.flops, network=network)
