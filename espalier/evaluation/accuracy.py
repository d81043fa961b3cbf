"""Accuracy of a network on a task's images. Besides it nothing looks at test images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from espalier.nets import Network, State
from espalier.streams.task import Split, Task
from espalier.streams.transforms import normalise


def accuracy(task: Task, network: Network, states: Sequence[State], batch: int) -> float:
    """The share of a task's test images that a network, one state per block, puts into the right class."""
    return accuracy_on(task.test, task.mean, task.std, network, states, batch)


def accuracy_on(
    split: Split, mean: Tensor, std: Tensor, network: Network, states: Sequence[State], batch: int
) -> float:
    correct = 0
    for x, y in zip(torch.split(split.x, batch), torch.split(split.y, batch), strict=True):
        correct += int((network.forward(states, normalise(x, mean, std)).argmax(1) == y).sum())
    return correct / len(split)
