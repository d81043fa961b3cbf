"""Adam over stacks: every member has its own learning rate and weight decay. Knows nothing about networks.

The same arithmetic as torch.optim.Adam (betas 0.9 and 0.999, epsilon 1e-8, L2 added to the gradient).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from espalier.nets import fused

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
SIZE = 1024  # values that a program on a GPU moves
ALIGNED = 64  # every parameter begins at a multiple of so many values


class Adam:
    """Moments for parameters (m, …), the members along the first axis; `lr` and `weight_decay` are (m,) for each.

    The parameters become parts of one vector: so a step is the same few operations, however many they are. `free` has,
    for every parameter, None or the share of each value's update that is made, without the first axis.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: Sequence[Tensor],
        weight_decay: Sequence[Tensor],
        free: Sequence[Tensor | None] = (),
    ) -> None:
        self.parameters = list(parameters)
        self.values, self.slope, self.first, self.second = (self._vector() for _ in range(4))
        for p, part in zip(self.parameters, self.parts(self.values), strict=True):
            p.data = part.copy_(p.detach())
        self.slopes = [part.flatten() for part in self.parts(self.slope)]  # so all can be copied into at once
        self.rates, self.decays = list(lr), list(weight_decay)
        self.lr, self.weight_decay = self._spread(lr), self._spread(weight_decay)
        self.factor = self.values.new_ones(())  # of all learning rates
        self.free = free if any(share is not None for share in free) else ()
        self.shares = self._shares() if self.free else None
        # A tensor, so that a captured step counts too.
        self.steps = torch.zeros((), dtype=torch.float64, device=self.values.device)

    def _vector(self) -> Tensor:
        return self.parameters[0].new_zeros(sum(_room(p) for p in self.parameters))

    def parts(self, vector: Tensor) -> list[Tensor]:
        """What belongs to each parameter."""
        rooms = torch.split(vector, [_room(p) for p in self.parameters])
        return [room[: p.numel()].view(p.shape) for room, p in zip(rooms, self.parameters, strict=True)]

    def _spread(self, rates: Sequence[Tensor]) -> Tensor:
        """Each member's for all its values."""
        vector = self._vector()
        for part, rate in zip(self.parts(vector), rates, strict=True):
            part.copy_(rate.view(-1, *[1] * (part.dim() - 1)))
        return vector

    def _shares(self) -> Tensor:
        vector = self._vector() + 1
        for part, share in zip(self.parts(vector), self.free, strict=True):
            if share is not None:
                part.copy_(share.expand_as(part))
        return vector

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        self.steps += 1
        torch._foreach_copy_(self.slopes, [gradient.reshape(-1) for gradient in gradients])
        if fused.kernels is not None and self.values.is_cuda and self.shares is None:
            self._step_on_gpu()
            return
        slope = self.slope.addcmul(self.values, self.weight_decay)
        self.first.lerp_(slope, 1 - BETA1)
        self.second.mul_(BETA2).addcmul_(slope, slope, value=1 - BETA2)
        denominator = (self.second / (1 - BETA2**self.steps)).sqrt_().add_(EPSILON)
        update = (self.lr * self.factor).div_(1 - BETA1**self.steps).mul_(self.first).div_(denominator)
        self.values.sub_(update if self.shares is None else update.mul_(self.shares))

    def _step_on_gpu(self) -> None:
        """The same in one pass."""
        fused.kernels.adam[(-(-len(self.values) // SIZE),)](
            self.values,
            self.slope,
            self.first,
            self.second,
            self.lr,
            self.weight_decay,
            self.factor,
            self.steps,
            len(self.values),
            BETA1,
            BETA2,
            math.log2(BETA1),
            math.log2(BETA2),
            EPSILON,
            SIZE,
        )

    def keep(self, parameters: Sequence[Tensor], rows: Sequence[list[int]]) -> "Adam":
        """The optimiser of the members that stay: of every parameter these rows; those without any are gone.
        `parameters` are already theirs."""
        staying = [place for place, kept in enumerate(rows) if kept]
        rates, decays = ([each[place][rows[place]] for place in staying] for each in (self.rates, self.decays))
        free = [self.free[place] for place in staying] if self.free else ()
        kept = Adam(parameters, rates, decays, free)
        for mine, theirs in ((kept.first, self.first), (kept.second, self.second)):
            old = self.parts(theirs)
            for part, place in zip(kept.parts(mine), staying, strict=True):
                part.copy_(old[place][rows[place]])
        kept.factor, kept.steps = self.factor, self.steps
        return kept


def _room(parameter: Tensor) -> int:
    return -(-parameter.numel() // ALIGNED) * ALIGNED
