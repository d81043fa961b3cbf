"""A memory of images of past tasks, and two ways to choose them. Knows nothing about networks or training.

`ring`: so many of each class (Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019, section 4);
which ones is drawn from the seed: in shuffled training, the last to be seen are any. `reservoir`: a uniform sample of
all images that ever came (Vitter, "Random Sampling with a Reservoir", ACM TOMS 1985, algorithm R).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.errors import InputError
from espalier.nets import State
from espalier.streams.task import Task
from espalier.training import Replay
from espalier.training.job import stands_still
from espalier.training.rules import Outputs


@dataclass(frozen=True, eq=False)
class Memory:
    """Images as they were before augmentation, labels as their task has them, and what to normalise each task with."""

    x: Tensor
    y: Tensor
    task: Tensor  # an image's task: its row below
    mean: Tensor  # (tasks, channels, 1, 1)
    std: Tensor
    still: Tensor  # (tasks,) uint8: 1 where images are not augmented
    seen: Tensor  # how many images came so far, kept or not

    def __len__(self) -> int:
        return len(self.y)

    @staticmethod
    def empty(task: Task) -> "Memory":
        """What is remembered before the first task: nothing, of images such as the task's."""
        train, numbers = task.train, task.train.y[:0]
        mean, std, still = task.mean[None][:0], task.std[None][:0], numbers.to(torch.uint8)
        return Memory(train.x[:0], numbers, numbers, mean, std, still, numbers.sum())

    def state(self) -> State:
        """As an extra of the library; `Memory(**state)` is the way back."""
        return dict(vars(self))

    def check_fits(self, task: Task) -> None:
        mine, other = tuple(self.x.shape[1:]), tuple(task.train.x.shape[1:])
        if mine != other:
            raise InputError(
                f"the memory holds images of shape {mine}, and a task has {other}; give all tasks images of one shape."
            )

    def after(self, task: Task, kept: Tensor) -> "Memory":
        """The memory after a task. `kept` counts the images held before, then the task's train images."""
        kept = kept.to(self.y.device)
        number = torch.full_like(task.train.y, len(self.mean))
        still = self.still.new_tensor([stands_still(task)])
        return Memory(
            torch.cat([self.x, task.train.x])[kept],
            torch.cat([self.y, task.train.y])[kept],
            torch.cat([self.task, number])[kept],
            torch.cat([self.mean, task.mean[None]]),
            torch.cat([self.std, task.std[None]]),
            torch.cat([self.still, still]),
            self.seen + len(task.train),
        )

    def replay(self, outputs: tuple[Outputs, ...]) -> Replay:
        """For the trainer, given each task's part of the head."""
        first = torch.tensor([first for first, _ in outputs], device=self.y.device)
        labels = self.y + first[self.task]
        return Replay(self.x, labels, self.task, self.mean, self.std, self.still.bool(), outputs)

    def numbers(self) -> int:
        """What is stored, as the paper counts it: of each image its pixels, its label and its task."""
        return len(self) * (self.x.shape[1:].numel() + 2)


def ring(y: Tensor, classes: int, per_class: int, generator: torch.Generator) -> Tensor:
    """Which images of these labels to remember: `per_class` of each class, or all there are."""
    order = torch.randperm(len(y), generator=generator)
    shuffled = y.cpu()[order]
    return torch.cat([order[shuffled == label][:per_class] for label in range(classes)])


def reservoir(held: int, seen: int, new: int, budget: int, generator: torch.Generator) -> Tensor:
    """What the memory holds after `new` images came, `seen` having come before, of which `held` are in it.

    Counts the images held before, then the new ones. The i-th image of all that came takes a random place with
    probability budget / i: then every one of them is held with the same probability.
    """
    places = list(range(min(held + new, budget)))
    first = len(places) - held  # of the new ones, behind those that still found room
    count = torch.arange(seen + first + 1, seen + new + 1, dtype=torch.float64)
    drawn = (torch.rand(len(count), dtype=torch.float64, generator=generator) * count).long()
    for number in (drawn < budget).nonzero()[:, 0].tolist():
        places[int(drawn[number])] = held + first + number
    return torch.tensor(places)
