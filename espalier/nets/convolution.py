"""Convolutions of stacks on a GPU, with gradients that are fast for any number of members. Knows nothing about blocks.

cuDNN computes grouped convolutions of 64 channels well, and the gradients of their weights. Its gradient of the input
is three to seven times slower for some numbers of groups, and is computed as a convolution here. For 64 channels, the
width of the paper's ResNet, there is more of our own: strides, 1×1, and batches so small that cuDNN takes one group
after another, each cut out first; and on Hopper, `tiles`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import aside, tiles

try:
    from espalier.nets import conv_kernels as kernels
except ImportError:  # Triton comes with PyTorch for GPUs
    kernels = None  # type: ignore[assignment]

CHANNELS = 64  # of one member, where a kernel of our own is written for it
ROWS = 128  # of the tile that a program holds
WEIGHTS = 1024  # that a program moves
PROGRAMS = 1024  # about as many as keep a GPU busy
FEW_IMAGES = 48  # from here on cuDNN does not go group by group
SMALL_SIDE = 16  # larger maps are faster in cuDNN, but for a handful of images
SMALL_ROWS = 64  # of a tile of `small_conv`


def usable(x: Tensor, weight: Tensor) -> bool:
    """For `conv`: x is of as many members as `weight`, or shared by all and without a gradient."""
    per_member = x.shape[1] == weight.shape[0] * weight.shape[2]
    transformed = torch._C._are_functorch_transforms_active()  # as for the gradients of single images
    return kernels is not None and x.is_cuda and not transformed and (per_member or not x.requires_grad)


def can_fork(x: Tensor, weight: Tensor, stride: int) -> bool:
    """For `fork`: 64 channels in bfloat16, and images of even sides."""
    fits = weight.shape[1:] == (CHANNELS, CHANNELS, 3, 3) and stride == 2
    even = x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0
    return usable(x, weight) and fits and even and _kind(x) == torch.bfloat16


def can_fold(x: Tensor, weight: Tensor, beside: Tensor | None) -> bool:
    """For `conv_relu`: 64 channels in bfloat16, no gradients; cuDNN adds nothing that several members share."""
    fits = weight.shape[1:] == (CHANNELS, CHANNELS, 3, 3) and _kind(x) == torch.bfloat16
    own = beside is None or beside.shape[1] == len(weight) * CHANNELS
    return usable(x, weight) and fits and (own or tiled(x, weight)) and not torch.is_grad_enabled()


def tiled(x: Tensor, weight: Tensor) -> bool:
    """Whether `tiles` can compute this with a padding of 1; `weight` is (m, out, in, k, k)."""
    return usable(x, weight) and _kind(x) == torch.bfloat16 and tiles.usable(x, weight)


def conv(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """`weight` is (m, out, in, k, k); x has m·in channels, or in channels shared by all members. Stride 1, no bias."""
    return conv_beside(x, weight, padding)[0]


def conv_beside(x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """`conv`; the sums that a norm behind it needs, if they were taken on the way (see `tiles.summed`); and x. Who uses
    x beside its convolution takes this one: then both gradients are added on the way, too."""
    rounded = _last(x.to(_kind(x)))
    out, sums, same = Convolution.apply(rounded, weight, padding)  # type: ignore[no-untyped-call]
    return out, sums, same if x.requires_grad and x.dtype == rounded.dtype else x


def conv_relu(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, beside: Tensor | None) -> Tensor:
    """ReLU(conv(x)·scale + shift + beside) in one pass, 3×3 with stride 1; a norm that is known is such a scale.

    PyTorch does not ask cuDNN for a deterministic way here, and without `beside` gives it what was in memory, times 0;
    tests look whether either can be seen.
    """
    kind = _kind(x)
    scaled, _ = arranged(weight, kind, False, scale)
    if tiled(x, weight):
        return tiles.normed(_last(x.to(kind)), scaled, shift, None if beside is None else _last(beside.to(kind)))
    how = [1, 1], [1, 1], [1, 1], _groups(x, weight)
    if beside is None:
        return torch.cudnn_convolution_relu(_last(x.to(kind)), scaled, shift.to(kind), *how)
    added = _last(beside.to(kind))
    return torch.cudnn_convolution_add_relu(_last(x.to(kind)), scaled, added, 1.0, shift.to(kind), *how)


def fork(x: Tensor, weight: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
    """What a residual unit makes of its input where the size changes: a 3×3 and a 1×1 convolution with stride 2."""
    outs: tuple[Tensor, Tensor] = Fork.apply(_last(x.to(_kind(x))), weight, short)  # type: ignore[no-untyped-call]
    return outs


class Convolution(torch.autograd.Function):
    """The gradient of the input is a convolution, too: that of the output's gradient with the weights turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor | None, Tensor]:
        straight, turned = arranged(weight, x.dtype, ctx.needs_input_grad[0])
        ctx.groups = _groups(x, weight)
        ctx.padding, ctx.shape, ctx.tiled = padding, weight.shape, padding == 1 and tiled(x, weight)
        ctx.save_for_backward(x, straight, turned)
        ctx.set_materialize_grads(False)
        if not ctx.tiled:
            return _conv(x, straight, 1, padding, ctx.groups), None, x.view_as(x)
        out, sums = tiles.summed(x, straight)
        ctx.mark_non_differentiable(sums)
        return out, sums, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, given: Tensor | None, _: Tensor | None, beside: Tensor | None) -> tuple[Tensor | None, ...]:
        if given is None:
            return beside, None, None
        x, straight, turned = ctx.saved_tensors
        given, change, slope = _last(given), None, None
        if ctx.needs_input_grad[1]:
            with aside.away(x, given):
                # For an input that is shared cuDNN has one dense product.
                if ctx.tiled and x.shape[1] == given.shape[1]:
                    slope = tiles.of_weights(x, given)
                else:
                    slope = _of_weights(given, x, straight, (1, ctx.padding, ctx.groups), ctx.shape)
        if ctx.needs_input_grad[0] and ctx.tiled:
            change = tiles.convolve(given, turned, None if beside is None else _last(beside))
        elif ctx.needs_input_grad[0]:
            change = _conv(given, turned, 1, ctx.shape[-1] - 1 - ctx.padding, ctx.groups)
            change = change if beside is None else change + beside
        return change, slope, None


class Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
        straight, _ = arranged(weight, x.dtype, False)
        short_straight, _ = arranged(short, x.dtype, False)
        ctx.groups, ctx.shape = _groups(x, weight), weight.shape
        out = _conv(x, straight, 2, 1, ctx.groups)
        ctx.save_for_backward(x, straight, short_straight)
        return out, points(x, short_straight)

    @staticmethod
    def backward(ctx: Any, given: Tensor, short_given: Tensor) -> tuple[Tensor | None, ...]:
        x, straight, short_straight = ctx.saved_tensors
        given, short_given = _last(given), _last(short_given)
        change = slope = short_slope = None
        if any(ctx.needs_input_grad[1:]):  # a block trains both or none
            with aside.away(x, given, short_given):
                slope = _of_weights(given, x, straight, (2, 1, ctx.groups), ctx.shape)
                short_slope = points_weights(short_given, x)
        if ctx.needs_input_grad[0]:
            change = fork_gradient(given, short_given, straight, short_straight)
        return change, slope, short_slope


def arranged(
    weight: Tensor, kind: torch.dtype, turns: bool, scale: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Channels-last weights (m·out, in, k, k), and turned round for the gradient of the input, (m·in, out, k, k);
    `scale` is over m·out."""
    members, outputs, inputs, size, _ = weight.shape
    straight = torch.empty(members * outputs, size, size, inputs, dtype=kind, device=weight.device)
    turned = torch.empty(members * inputs if turns else 0, size, size, outputs, dtype=kind, device=weight.device)
    kernels.arrange[members, size * size, -(-outputs // CHANNELS)](
        weight.detach().contiguous(), weight if scale is None else scale, straight, turned,
        outputs, inputs, size * size, scale is not None, turns, CHANNELS,
    )  # fmt: skip
    return straight.permute(0, 3, 1, 2), turned.permute(0, 3, 1, 2) if turns else None


def _conv(x: Tensor, weight: Tensor, stride: int, padding: int, groups: int) -> Tensor:
    ours = weight.shape == (groups * CHANNELS, CHANNELS, 3, 3) and padding == 1 and x.dtype == torch.bfloat16
    small = len(x) < FEW_IMAGES and x.shape[2] <= SMALL_SIDE * stride
    if groups > 1 and ours and small:
        return small_conv(x, weight, stride)
    return F.conv2d(x, weight, stride=stride, padding=padding, groups=groups)


def small_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """A 3×3 convolution with padding, its stride a divisor of the image's sides; `weight` is (m·64, 64, 3, 3)."""
    batch, columns, height, width = x.shape
    out = x.new_empty(batch, height // stride, width // stride, columns)
    rows = out.numel() // columns
    kernels.small_conv[-(-rows // SMALL_ROWS), columns // CHANNELS](
        x, weight, out, rows, columns, height // stride, width // stride, stride, SMALL_ROWS, CHANNELS
    )
    return out.permute(0, 3, 1, 2)


def points(x: Tensor, weight: Tensor) -> Tensor:
    """A 1×1 convolution with stride 2; `weight` is (m·64, 64, 1, 1)."""
    batch, _, height, width = x.shape
    out = x.new_empty(batch, height // 2, width // 2, len(weight))
    rows, members = out.numel() // len(weight), len(weight) // CHANNELS
    kernels.points[-(-rows // ROWS), members](
        x, weight, out, rows, len(weight), x.shape[1], height // 2, width // 2, ROWS, CHANNELS
    )
    return out.permute(0, 3, 1, 2)


def points_weights(given: Tensor, x: Tensor) -> Tensor:
    """The gradient of the weights of `points`, (m, 64, 64, 1, 1)."""
    _, columns, height, width = given.shape
    rows, members = given.numel() // columns, columns // CHANNELS
    shares = max(1, min(PROGRAMS // members, rows // ROWS))
    sums = torch.empty(shares, members, CHANNELS, CHANNELS, 1, 1, device=x.device)
    share = -(-rows // (shares * ROWS)) * ROWS
    kernels.points_weights[shares, members](
        given, x, sums, rows, columns, x.shape[1], height, width, share, ROWS, CHANNELS
    )
    return sums.sum(0)


def fork_gradient(given: Tensor, short_given: Tensor, straight: Tensor, short_straight: Tensor) -> Tensor:
    batch, columns, height, width = given.shape
    change = given.new_empty(batch, 2 * height, 2 * width, columns)
    rows = given.numel() // columns
    kernels.fork_gradient[-(-rows // ROWS), columns // CHANNELS, 4](
        given, short_given, straight, short_straight, change, rows, columns, height, width, ROWS, CHANNELS
    )
    return change.permute(0, 3, 1, 2)


def _of_weights(given: Tensor, x: Tensor, straight: Tensor, how: tuple[int, int, int], shape: torch.Size) -> Tensor:
    stride, padding, groups = how
    sizes = [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups
    found = torch.ops.aten.convolution_backward(given, x, straight, None, *sizes, [False, True, False])[1]
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    slope = torch.empty(shape, dtype=kind, device=x.device)
    _, _, inputs, size, _ = shape
    kernels.disarrange[(-(-slope.numel() // WEIGHTS),)](
        _last(found), slope, inputs, size * size, slope.numel(), WEIGHTS
    )
    return slope


def _groups(x: Tensor, weight: Tensor) -> int:
    return 1 if x.shape[1] == weight.shape[2] else len(weight)


def _kind(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
