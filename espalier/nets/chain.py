"""Norm, ReLU and the convolution behind them as one step, so that what lies between is passed over less often. For
activations that `tiles` and `fused` can take; knows nothing about blocks.

The gradient comes back through the convolution, ReLU and into the sums that the norm's own gradient needs in one pass.
"""

from typing import Any

import torch
from torch import Tensor

from espalier.nets import aside, convolution, fused, tiles


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether `norm_relu_conv` can take them: x of all members, their weights (m, 64, 64, 3, 3)."""
    return x.shape[1] == len(weight) * weight.shape[2] and fused.usable(x, None) and convolution.tiled(x, weight)


def norm_relu_conv(x: Tensor, norm: fused.Norm, weight: Tensor) -> tuple[Tensor, Tensor]:
    """conv(ReLU(norm(x))), 3×3, and its sums as `tiles.summed` has them."""
    outs: tuple[Tensor, Tensor] = NormReluConv.apply(x, norm.weight, norm.bias, weight, norm)  # type: ignore[no-untyped-call]
    return outs


class NormReluConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, norm: fused.Norm
    ) -> tuple[Tensor, Tensor]:
        between, _ = fused.applied(x, norm)
        straight, turned = convolution.arranged(weight, x.dtype, any(ctx.needs_input_grad[:3]))
        out, sums = tiles.summed(between, straight)
        ctx.save_for_backward(x, between, turned)
        ctx.norm = norm
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)
        return out, sums

    @staticmethod
    def backward(ctx: Any, given: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, between, turned = ctx.saved_tensors
        norm, given = ctx.norm, given.contiguous(memory_format=torch.channels_last)
        slope = None
        if ctx.needs_input_grad[3]:
            with aside.away(between, given):
                slope = tiles.of_weights(between, given)
        if not any(ctx.needs_input_grad[:3]):
            return None, None, None, slope, None
        passed, sums = tiles.masked(given, turned, x, norm.scale, norm.shift, norm.mean, norm.deviation)
        bias, along = total = fused.added_up(sums)
        change = fused.through_norm(passed, x, norm, total) if ctx.needs_input_grad[0] else None
        return change, along, bias, slope, None
