"""Test accuracy of paths. The only place that looks at test images."""

from collections.abc import Sequence

from espalier.library import State
from espalier.nets import Backbone
from espalier.streams.task import Task
from espalier.training.train import eval_batches, forward_path


def accuracy(task: Task, backbone: Backbone, states: Sequence[State], batch: int) -> float:
    """The share of a task's test images that a network, one state per block, puts into the right class."""
    correct = 0
    for x, y in eval_batches(task, task.test, batch):
        correct += int((forward_path(backbone, states, x).argmax(1) == y).sum())
    return correct / len(task.test)
