"""Adam over stacks whose members do not all step: the others stay, to the last bit. Knows nothing about networks.

The same arithmetic as torch.optim.Adam, which also passes over parameters without a gradient: neither momentum nor
weight decay moves them, and they do not count the step.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from espalier.nets import is_buffer
from espalier.nets.layers import Stack
from espalier.training.adam import BETA1, BETA2, EPSILON


class RowAdam:
    """Moments for the parameters of a stack, the members along the first axis; `lr` and `weight_decay` are (m,)."""

    def __init__(self, stack: Stack, lr: Tensor, weight_decay: Tensor) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self.first = {name: torch.zeros_like(t) for name, t in stack.items() if not is_buffer(name)}
        self.second = {name: torch.zeros_like(t) for name, t in self.first.items()}
        self.steps = torch.zeros(len(lr), dtype=torch.float64, device=lr.device)

    @torch.no_grad()
    def step(self, stack: Stack, rows: Tensor, gradients: Mapping[str, Tensor]) -> None:
        """Move these rows of the stack; the gradients are theirs alone, in that order."""
        self.steps[rows] += 1
        correction1, correction2 = 1 - BETA1 ** self.steps[rows], 1 - BETA2 ** self.steps[rows]
        for name, gradient in gradients.items():
            axes = (-1, *[1] * (gradient.dim() - 1))
            old = stack[name][rows]
            gradient = gradient.addcmul(old, self.weight_decay[rows].view(axes))
            first = self.first[name][rows].lerp(gradient, 1 - BETA1)
            second = (self.second[name][rows] * BETA2).addcmul(gradient, gradient, value=1 - BETA2)
            denominator = (second / correction2.to(second.dtype).view(axes)).sqrt() + EPSILON
            rate = (self.lr[rows] / correction1).to(first.dtype).view(axes)
            self.first[name][rows], self.second[name][rows] = first, second
            stack[name][rows] = old - rate * first / denominator

    def keep(self, rows: list[int]) -> None:
        """Let only these members stay."""
        self.lr, self.weight_decay, self.steps = self.lr[rows], self.weight_decay[rows], self.steps[rows]
        self.first = {name: tensor[rows] for name, tensor in self.first.items()}
        self.second = {name: tensor[rows] for name, tensor in self.second.items()}
