"""Accuracy of a network on a task's images. Besides it nothing looks at test images."""

from collections.abc import Sequence

from espalier.library import State
from espalier.nets import Network
from espalier.streams.task import Split, Task
from espalier.training.job import eval_batches


def accuracy(task: Task, network: Network, states: Sequence[State], batch: int) -> float:
    """The share of a task's test images that a network, one state per block, puts into the right class."""
    return accuracy_on(task.test, task, network, states, batch)


def accuracy_on(split: Split, task: Task, network: Network, states: Sequence[State], batch: int) -> float:
    correct = 0
    for x, y in eval_batches(task, split, batch):
        correct += int((network.forward(states, x).argmax(1) == y).sum())
    return correct / len(split)
