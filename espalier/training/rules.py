"""What a learner may add to plain training: data and functions of tensors. Knows nothing about tries or learners.

`Rules()` adds nothing. Rules speak of whole blocks, so all members of such a training must train the same blocks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from espalier.nets import Mode
from espalier.nets.layers import Stack
from espalier.streams.transforms import normalise

Stacks = Mapping[str, Stack]  # the trained tensors of all members, by block
Outputs = tuple[int, int]  # first, and behind the last, of the head's outputs that belong to a task


@dataclass(frozen=True, eq=False)
class Replay:
    """Remembered images (uint8) of earlier tasks; each is normalised by its own task's statistics.

    `y` counts outputs of the whole head; the loss of an image looks at its task's `outputs` alone. So `Rules.outputs`
    must say which are this task's.
    """

    x: Tensor
    y: Tensor
    task: Tensor  # which row of `mean`, `std`, `still` and `outputs` is an image's
    mean: Tensor  # (tasks, channels, 1, 1)
    std: Tensor
    still: Tensor  # (tasks,) bool: its images are not augmented
    outputs: tuple[Outputs, ...]

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def moves(self) -> bool:
        """Whether any image is augmented; looked up once, as a step must not wait for the device."""
        return not bool(self.still.all())

    def normalise(self, x: Tensor, task: Tensor) -> Tensor:
        return normalise(x, self.mean[task], self.std[task])


@dataclass(frozen=True, eq=False)
class Rules:
    penalty: Callable[[Stacks, Mode], Tensor] | None = None  # (members,), added to each member's loss
    project: Callable[[Stacks], None] | None = None  # changes the stacks in place, after every step
    free: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """By block and tensor, the share of each value's update that is made: where it is 0 the value stays, exactly."""
    sharpness: Callable[[int, int], tuple[float, float]] | None = None
    """Of learned gates: (step, from 0; steps of an epoch) → sharpness now, and at its most."""
    replay: Replay | None = None
    outputs: Outputs | None = None  # this task's part of the head; None: all of it


PLAIN = Rules()
