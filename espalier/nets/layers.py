"""Layers that work for one member or for many, as plain functions of tensors. Know nothing about blocks or training.

A *stack* of m members holds each parameter once with a leading axis m. Activations are (batch, m·channels, h, w):
member after member along the channels, so that a convolution over the stack is one grouped convolution. An input that
all members share has the channels of one member; the first layer then is an ordinary, dense convolution.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import fused

Stack = dict[str, Tensor]

BN_MOMENTUM = 0.1
BN_EPSILON = 1e-5


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0) -> Tensor:
    """`weight` is (m, out, in, k, k); x has m·in channels, or in channels shared by all members."""
    members, _, inputs = weight.shape[:3]
    groups = 1 if x.shape[1] == inputs else members
    flat, flat_bias = weight.flatten(0, 1), None if bias is None else bias.flatten()
    if bias is None and x.is_cuda and weight.shape[-1] == 1 and padding == 0:
        return _through_points(x[:, :, ::stride, ::stride], weight)
    if bias is None and x.is_cuda:
        x, flat = _as_the_gpu_likes_it(x, flat)
        out: Tensor = Convolution.apply(x, flat, stride, padding, groups)  # type: ignore[no-untyped-call]
        return out
    return F.conv2d(x, flat, flat_bias, stride, padding, groups=groups)


def _through_points(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution of single points is a product of matrices, and a GPU has no good kernel for it in groups."""
    members, outputs, inputs = weight.shape[:3]
    batch, _, height, width = x.shape
    points = x.permute(0, 2, 3, 1).reshape(batch * height * width, -1)
    out = linear_stack(points, weight.view(members, outputs, inputs))
    return out.view(batch, height, width, -1).permute(0, 3, 1, 2)


def linear_stack(x: Tensor, weight: Tensor) -> Tensor:
    """`weight` is (m, out, in); x is (rows, m·in), or (rows, in) shared by all members; gives (rows, m·out)."""
    members, _, inputs = weight.shape
    if x.shape[1] == inputs:
        return F.linear(x, weight.flatten(0, 1))
    return torch.bmm(x.view(len(x), members, inputs).transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1).flatten(1)


def _as_the_gpu_likes_it(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both channels-last, and of the type that autocast asks for: else every call would reorder its weights."""
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    layout = torch.channels_last
    return x.to(kind, memory_format=layout), weight.to(kind).contiguous(memory_format=layout)


class Convolution(torch.autograd.Function):
    """A convolution without bias whose gradient of the input is a convolution, too: that of the output's gradient with
    the weights turned round. cuDNN's own way can be three times slower, for some numbers of groups and for strides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int, groups: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = stride, padding, groups
        return F.conv2d(x, weight, None, stride, padding, groups=groups)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, groups = ctx.how
        given = given.contiguous(memory_format=torch.channels_last)
        input_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            input_gradient = gradient_of_input(given, weight, x.shape, stride, padding, groups)
        if ctx.needs_input_grad[1]:
            pairs = [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups
            weight_gradient = torch.ops.aten.convolution_backward(given, x, weight, None, *pairs, [False, True, False])[
                1
            ]
        return input_gradient, weight_gradient, None, None, None


def gradient_of_input(
    given: Tensor, weight: Tensor, shape: torch.Size, stride: int, padding: int, groups: int
) -> Tensor:
    """`given` is the gradient of the output, `shape` that of the input. With a stride, zeros lie between its places."""
    outputs, inputs, kernel, _ = weight.shape
    turned = weight.view(groups, outputs // groups, inputs, kernel, kernel).transpose(1, 2).flip(3, 4)
    turned = turned.reshape(groups * inputs, outputs // groups, kernel, kernel)
    if stride > 1:
        spread = (
            torch.zeros_like(given[:, :1, :1, :1])
            .expand(len(given), given.shape[1], *shape[2:])
            .contiguous(memory_format=torch.channels_last)
        )
        spread[:, :, ::stride, ::stride] = given
        given = spread
    return F.conv2d(
        given, turned.contiguous(memory_format=torch.channels_last), padding=kernel - 1 - padding, groups=groups
    )


def batch_norm(x: Tensor, stack: Stack, name: str, training: bool) -> Tensor:
    """Over m·channels; in training the running statistics of the stack are updated in place."""
    mean, var = stack[f"{name}.running_mean"].flatten(), stack[f"{name}.running_var"].flatten()
    weight, bias = stack[f"{name}.weight"].flatten(), stack[f"{name}.bias"].flatten()
    return F.batch_norm(x, mean, var, weight, bias, training, BN_MOMENTUM, BN_EPSILON)


def norm_relu(x: Tensor, stack: Stack, name: str, training: bool, beside: Tensor | None = None) -> Tensor:
    """ReLU(batch norm(x) + beside), where `beside` may be one member's activations, shared by all."""
    if not fused.usable(x, beside) or (not training and stack[f"{name}.weight"].requires_grad):
        out = batch_norm(x, stack, name, training)
        return F.relu(out if beside is None else add_shared(out, beside))
    weight, bias = stack[f"{name}.weight"].flatten(), stack[f"{name}.bias"].flatten()
    mean, var = stack[f"{name}.running_mean"].flatten(), stack[f"{name}.running_var"].flatten()
    if not training:
        return fused.norm_relu(x, weight, bias, fused.How(mean, var, False, BN_EPSILON), beside)
    now_mean, now_var = fused.batch_statistics(x)
    count = x.numel() // x.shape[1]
    mean.lerp_(now_mean, BN_MOMENTUM)
    var.lerp_(now_var * (count / (count - 1)), BN_MOMENTUM)  # the running one is unbiased
    return fused.norm_relu(x, weight, bias, fused.How(now_mean, now_var, True, BN_EPSILON), beside)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`weight` is (m, out, in); x is (batch, m·in), or (batch, in) shared by all members; gives (batch, m·out)."""
    members, _, inputs = weight.shape
    if x.shape[1] == inputs:
        return F.linear(x, weight.flatten(0, 1), bias.flatten())
    per_member = x.view(len(x), members, inputs).transpose(0, 1)
    out = torch.baddbmm(bias[:, None], per_member, weight.transpose(1, 2))
    return out.transpose(0, 1).flatten(1)


def add_shared(out: Tensor, x: Tensor) -> Tensor:
    """out + x, where x may be one member's activations, shared by all."""
    if out.shape == x.shape:
        return out + x
    batch, channels, height, width = x.shape
    return (out.view(batch, -1, channels, height, width) + x[:, None]).view_as(out)


def dropout(x: Tensor, features: int, share: float, generator: torch.Generator) -> Tensor:
    """The same mask for every member: so a member's mask does not depend on who else is in the stack."""
    kept = torch.rand((len(x), 1, features, *x.shape[2:]), device=x.device, generator=generator) >= share
    per_member = x.view(len(x), -1, features, *x.shape[2:])
    return (per_member * (kept / (1 - share)).to(x.dtype)).view_as(x)
