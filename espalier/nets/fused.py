"""Batch norm, what is added to it, and ReLU as one pass over memory, for stacks in bfloat16 on a GPU. Knows nothing
about blocks.

Between convolutions of 64 channels a GPU waits for memory, and every pass over the activations counts. Done one after
another, norm, addition and ReLU pass over them 13 times in a training step; here 8 or 10 times. Activations in the
channels-last layout are a matrix, a row for each place of each image, a column for each channel of each member.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

try:
    from espalier.nets import kernels
except ImportError:  # Triton comes with PyTorch for GPUs
    kernels = None  # type: ignore[assignment]

__all__ = ["Norm", "added_up", "applied", "join", "kernels", "known", "measured", "norm_relu", "through_norm", "usable"]

COLUMNS = 64  # there must be a multiple of it
ROWS = 32  # of the tile that a program holds (see `signs` in kernels); it is as wide as `_wide` says, or 64 columns
PROGRAMS = 1024  # about as many as keep a GPU busy with sums
SUMS_WARPS = 8  # for tiles of 64 columns; half as many where a program also keeps sums of twice as many
SHARES, ADDED = 128, 16  # what a program adds up at a time, shares and columns: few, so that there are many programs
MARKING_WARPS = 2  # the bits of signs are put together across warps
CHANGE_WARPS = {COLUMNS: 4, 2 * COLUMNS: 8}  # of `backward_apply`, by how wide its tiles are


@dataclass(frozen=True, eq=False)
class Norm:
    """A batch norm ready to be applied, everything over m·channels: x·scale + shift. `of_batch`: its statistics are
    those of x, and the gradient of x passes through them too."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    deviation: Tensor  # one over the standard deviation
    scale: Tensor
    shift: Tensor
    of_batch: bool


def usable(x: Tensor, beside: Tensor | None) -> bool:
    """Whether the kernels can take these activations; what is added may be shared by all members."""
    if kernels is None or not x.is_cuda or x.dtype != torch.bfloat16 or x.shape[1] % COLUMNS:
        return False
    if not x.is_contiguous(memory_format=torch.channels_last):
        return False
    if beside is None:
        return True
    if beside.dtype != x.dtype or not beside.is_contiguous(memory_format=torch.channels_last):
        return False
    return beside.shape == x.shape or (beside.shape[1] % COLUMNS == 0 and not beside.requires_grad)


@torch.no_grad()
def known(weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float) -> Norm:
    """By statistics from before."""
    deviation, scale, shift = torch.empty(3, len(weight), device=weight.device).unbind()
    kernels.prepare[(len(weight) // COLUMNS,)](weight, bias, mean, var, deviation, scale, shift, epsilon, COLUMNS)
    return Norm(weight, bias, mean, deviation, scale, shift, False)


@torch.no_grad()
def measured(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor],
    momentum: float,
    epsilon: float,
    sums: Tensor | None = None,
) -> Norm:
    """By the statistics of x; the running mean and variance follow them, in place. `sums` are those of `column_sums`,
    if they are known: (shares, 2, columns)."""
    rows, columns = _matrix(x)
    if sums is None:
        sums = _partial(2, columns, rows, x.device)
        kernels.column_sums[len(sums), columns // COLUMNS](
            x, sums, rows, columns, _share(rows, sums), ROWS, COLUMNS, num_warps=SUMS_WARPS
        )
    mean, deviation, scale, shift = torch.empty(4, columns, device=x.device).unbind()
    kernels.statistics[(columns // ADDED,)](
        sums, weight, bias, *running, mean, deviation, scale, shift,
        len(sums), rows, columns, momentum, epsilon, SHARES, ADDED,
    )  # fmt: skip
    return Norm(weight, bias, mean, deviation, scale, shift, True)


def applied(
    x: Tensor, norm: Norm, beside: Tensor | None = None, beside_norm: Norm | None = None, marks: bool = False
) -> tuple[Tensor, Tensor]:
    """`norm_relu` without a gradient, and the signs that `marks` asks for."""
    rows, columns = _matrix(x)
    out, other = torch.empty_like(x), x if beside is None else beside
    second, wide = beside_norm or norm, _wide(other.shape[1])
    signs = torch.empty(-(-rows // ROWS) if marks else 0, columns, dtype=torch.int32, device=x.device)
    kernels.apply[_tiles(rows, columns, wide)](
        x, other, out, signs, norm.scale, norm.shift, second.scale, second.shift,
        rows, columns, other.shape[1], beside is not None, beside_norm is not None, marks, ROWS, wide,
        num_warps=MARKING_WARPS if marks else 4,
    )  # fmt: skip
    return out, signs


def added_up(sums: Tensor) -> Tensor:
    """Of all shares: (shares, some, columns) → (some, columns)."""
    shares, some, columns = sums.shape
    total = torch.empty(some, columns, device=sums.device)
    kernels.add_up[(some * columns // ADDED,)](sums, total, shares, some * columns, SHARES, ADDED)
    return total


def through_norm(passed: Tensor, x: Tensor, norm: Norm, total: Tensor) -> Tensor:
    """The gradient of x, given what ReLU let back of that of norm(x), and the sums of `backward_sums` over all rows."""
    rows, columns = _matrix(x)
    change, wide = torch.empty_like(x), _wide(columns)
    kernels.backward_apply[_tiles(rows, columns, wide)](
        passed, x, x, x, norm.mean, norm.deviation, norm.scale, norm.shift, norm.mean, norm.deviation, norm.scale,
        total, change, change, rows, columns, columns, False, False, norm.of_batch, True, ROWS, wide,
        num_warps=CHANGE_WARPS[wide],
    )  # fmt: skip
    return change


def norm_relu(x: Tensor, norm: Norm, beside: Tensor | None = None, beside_norm: Norm | None = None) -> Tensor:
    """ReLU(norm(x) + beside_norm(beside)); without `beside_norm` what is beside is added as it is."""
    more = (None, None) if beside_norm is None else (beside_norm.weight, beside_norm.bias)
    out: Tensor = NormRelu.apply(x, norm.weight, norm.bias, beside, *more, norm, beside_norm)  # type: ignore[no-untyped-call]
    return out


def join(parts: Sequence[Tensor]) -> Tensor:
    """Activations of several stacks as those of one."""
    out: Tensor = Join.apply(*parts)  # type: ignore[no-untyped-call]
    return out


class Join(torch.autograd.Function):
    """PyTorch's `cat` takes twice the time."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        ctx.widths = [part.shape[1] for part in parts]
        batch, _, height, width = parts[0].shape
        out = parts[0].new_empty(batch, height, width, sum(ctx.widths))
        for part, place in zip(parts, torch.split(out, ctx.widths, 3), strict=True):
            rows, columns = _matrix(part)
            kernels.place_beside[_tiles(rows, columns, _wide(columns))](
                part, place, rows, columns, out.shape[3], ROWS, _wide(columns)
            )
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, ...]:
        return torch.split(given, ctx.widths, 1)


class NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        beside: Tensor | None,
        beside_weight: Tensor | None,
        beside_bias: Tensor | None,
        norm: Norm,
        beside_norm: Norm | None,
    ) -> Tensor:
        adds, norms = beside is not None, beside_norm is not None
        out, signs = applied(x, norm, beside, beside_norm, adds and any(ctx.needs_input_grad))
        ctx.save_for_backward(x, beside if norms else x, signs)
        ctx.norm, ctx.second, ctx.adds, ctx.norms = norm, beside_norm or norm, adds, norms
        return out

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        x, other, signs = ctx.saved_tensors
        norm, second, adds, norms = ctx.norm, ctx.second, ctx.adds, ctx.norms
        given, apart = _as_rows(given)
        rows, columns = _matrix(x)
        tensors = (x, other, signs, norm.mean, norm.deviation, norm.scale, norm.shift, second.mean, second.deviation)
        total, passed = None, given
        if norm.of_batch or ctx.needs_input_grad[1]:
            wide = _wide(columns)
            sums = _partial(3 if norms else 2, columns, rows, x.device, PROGRAMS * wide // COLUMNS)
            sum_apart = apart
            passed, apart = (torch.empty_like(x), columns) if adds else (given, apart)
            kernels.backward_sums[len(sums), columns // wide](
                given, *tensors, passed, sums, rows, columns, sum_apart, _share(rows, sums),
                adds, norms, ROWS, wide, num_warps=SUMS_WARPS * COLUMNS // wide,
            )  # fmt: skip
            total = added_up(sums)
        change, wide = torch.empty_like(x), _wide(columns)
        kept = adds and total is not None  # `backward_sums` has kept what ReLU let back
        beside_change = torch.empty_like(x) if norms or (adds and not kept) else passed
        kernels.backward_apply[_tiles(rows, columns, wide)](
            passed, *tensors, second.scale, norm.mean if total is None else total, change, beside_change,
            rows, columns, apart, adds, norms, norm.of_batch, kept, ROWS, wide, num_warps=CHANGE_WARPS[wide],
        )  # fmt: skip
        bias, along, beside_along = (None, None, None) if total is None else (*total, None)[:3]
        beside_given = beside_change if adds and ctx.needs_input_grad[3] else None
        return change, along, bias, beside_given, beside_along, bias if norms else None, None, None


def _matrix(x: Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[1], x.shape[1]


def _as_rows(x: Tensor) -> tuple[Tensor, int]:
    """A matrix of activations, and how far its rows are apart: neighbouring columns of a wider one may stay there."""
    if x.is_contiguous(memory_format=torch.channels_last):
        return x, x.shape[1]
    _, _, height, width = x.shape
    apart = x.stride(3)
    if width > 1 and x.stride() == (height * width * apart, 1, width * apart, apart):
        return x, apart
    return x.contiguous(memory_format=torch.channels_last), x.shape[1]


def _wide(columns: int) -> int:
    return COLUMNS * 2 if columns % (COLUMNS * 2) == 0 else COLUMNS


def _tiles(rows: int, columns: int, wide: int) -> tuple[int, int]:
    return -(-rows // ROWS), columns // wide


def _partial(count: int, columns: int, rows: int, device: torch.device, programs: int = PROGRAMS) -> Tensor:
    """Room for some sums over each of some shares of the rows."""
    shares = max(1, min(programs * COLUMNS // columns, rows // ROWS))
    return torch.empty(shares, count, columns, device=device)


def _share(rows: int, sums: Tensor) -> int:
    return -(-rows // (len(sums) * ROWS)) * ROWS
