"""Batch norm, what is added to it, and ReLU as one pass over memory, for stacks in bfloat16 on a GPU. Knows nothing
about blocks.

Between convolutions of 64 channels a GPU waits for memory, and every pass over the activations counts. Done one after
another, norm, addition and ReLU pass over them 13 times in a training step; here 8 times. Activations in the
channels-last layout are a matrix, a row for each place of each image, a column for each channel of each member.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

try:
    from espalier.nets import kernels
except ImportError:  # Triton comes with PyTorch for GPUs
    kernels = None  # type: ignore[assignment]

__all__ = ["How", "batch_statistics", "kernels", "norm_relu", "usable"]

COLUMNS, ROWS = 64, 128  # of the tile that a program holds
PROGRAMS = 1024  # about as many as keep a GPU busy


def usable(x: Tensor, beside: Tensor | None) -> bool:
    """Whether the kernels below can take these activations; what is added may be shared by all members."""
    if kernels is None or not x.is_cuda or x.dtype != torch.bfloat16 or x.shape[1] % COLUMNS:
        return False
    if not x.is_contiguous(memory_format=torch.channels_last):
        return False
    if beside is None:
        return True
    if beside.dtype != x.dtype or not beside.is_contiguous(memory_format=torch.channels_last):
        return False
    return beside.shape == x.shape or (beside.shape[1] % COLUMNS == 0 and not beside.requires_grad)


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of every channel of every member over the batch."""
    rows, columns = x.numel() // x.shape[1], x.shape[1]
    sums = _partial(columns, rows, x.device)
    kernels.column_sums[sums.shape[0], columns // COLUMNS](
        x.detach(), sums, rows, columns, _share(rows, sums), ROWS, COLUMNS
    )
    mean, square = (sums.sum(0) / rows).unbind()
    return mean, (square - mean * mean).clamp_(min=0)


def norm_relu(x: Tensor, weight: Tensor, bias: Tensor, how: "How", beside: Tensor | None) -> Tensor:
    """ReLU(norm(x) + beside), everything over m·channels."""
    out: Tensor = NormRelu.apply(x, weight, bias, beside, how)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class How:
    """The statistics to normalise by; `of_batch`: they are those of x, and its gradient passes through them too."""

    mean: Tensor
    var: Tensor
    of_batch: bool
    epsilon: float


class NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None, how: How) -> Tensor:
        rows, columns = x.numel() // x.shape[1], x.shape[1]
        deviation = torch.rsqrt(how.var + how.epsilon)
        scale = weight * deviation
        out, added = torch.empty_like(x), x if beside is None else beside
        shift = bias - how.mean * scale
        kernels.apply[_tiles(rows, columns)](
            x, added, out, scale, shift, rows, columns, added.shape[1], beside is not None, ROWS, COLUMNS
        )
        ctx.save_for_backward(x, out, how.mean, deviation, scale)
        ctx.of_batch, ctx.adds = how.of_batch, beside is not None
        return out

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        x, out, mean, deviation, scale = ctx.saved_tensors
        given = given.contiguous(memory_format=torch.channels_last)
        rows, columns = x.numel() // x.shape[1], x.shape[1]
        weight = bias = None
        first = second = torch.zeros_like(mean)
        if ctx.of_batch:
            sums = _partial(columns, rows, x.device)
            kernels.backward_sums[sums.shape[0], columns // COLUMNS](
                given, x, out, mean, deviation, sums, rows, columns, _share(rows, sums), ROWS, COLUMNS
            )
            bias, weight = sums.sum(0).unbind()
            first, second = bias / rows, weight / rows
        change, passed = torch.empty_like(x), torch.empty_like(x) if ctx.adds else x
        kernels.backward_apply[_tiles(rows, columns)](
            given, x, out, change, passed, mean, deviation, scale, first, second, rows, columns, ctx.adds, ROWS, COLUMNS
        )
        return change, weight, bias, passed if ctx.adds and ctx.needs_input_grad[3] else None, None


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // ROWS), columns // COLUMNS


def _partial(columns: int, rows: int, device: torch.device) -> Tensor:
    """Room for two sums over each of some shares of the rows."""
    shares = max(1, min(PROGRAMS * COLUMNS // columns, rows // ROWS))
    return torch.empty(shares, 2, columns, device=device)


def _share(rows: int, sums: Tensor) -> int:
    shares: int = sums.shape[0]
    return -(-rows // (shares * ROWS)) * ROWS
