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


class Adam:
    """Moments for parameters (m, …), the members along the first axis; `lr` and `weight_decay` are (m,).

    `free` has, for every parameter, None or the share of each value's update that is made, without the first axis.
    """

    def __init__(
        self, parameters: list[Tensor], lr: Tensor, weight_decay: Tensor, free: Sequence[Tensor | None] = ()
    ) -> None:
        self.parameters = parameters
        self.free = free or [None] * len(parameters)
        self.lr, self.weight_decay = lr.clone(), weight_decay
        self.full_lr = lr  # `lr` may be lowered in place
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]
        # A tensor, so that a captured step counts too.
        self.steps = torch.zeros((), dtype=torch.float64, device=lr.device)

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...]) -> None:
        self.steps += 1
        if fused.kernels is not None and self.lr.is_cuda and not any(free is not None for free in self.free):
            self._step_on_gpu(gradients)
            return
        rate, correction2 = self.lr / (1 - BETA1**self.steps), 1 - BETA2**self.steps
        for p, gradient, first, second, free in zip(
            self.parameters, gradients, self.first, self.second, self.free, strict=True
        ):
            axes = (-1, *[1] * (p.dim() - 1))
            gradient = gradient.addcmul(p, self.weight_decay.view(axes))
            first.lerp_(gradient, 1 - BETA1)
            second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            denominator = (second / correction2).sqrt_().add_(EPSILON)
            update = rate.view(axes) * first / denominator
            p.sub_(update if free is None else update.mul_(free))

    def _step_on_gpu(self, gradients: tuple[Tensor, ...]) -> None:
        """The same in one pass over each parameter."""
        for p, gradient, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            fused.kernels.adam[(-(-p.numel() // SIZE),)](
                p.detach(),
                gradient.contiguous(),
                first,
                second,
                self.lr,
                self.weight_decay,
                self.steps,
                p[0].numel(),
                p.numel(),
                BETA1,
                BETA2,
                math.log2(BETA1),
                math.log2(BETA2),
                EPSILON,
                SIZE,
            )

    def keep(self, parameters: list[Tensor], rows: list[int]) -> "Adam":
        """The optimiser of the members that stay: `parameters` are already theirs."""
        kept = Adam(parameters, self.full_lr[rows], self.weight_decay[rows], self.free)
        kept.first = [m[rows] for m in self.first]
        kept.second = [m[rows] for m in self.second]
        kept.steps = self.steps
        kept.lr.copy_(self.lr[rows])
        return kept
