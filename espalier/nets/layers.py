"""Layers that work for one member or for many, as plain functions of tensors. Know nothing about blocks or training.

A *stack* of m members holds each parameter once with a leading axis m. Activations are (batch, m·channels, h, w):
member after member along the channels, so that a convolution over the stack is one grouped convolution. An input that
all members share has the channels of one member; the first layer then is an ordinary, dense convolution.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import chain, convolution, fused

Stack = dict[str, Tensor]

BN_MOMENTUM = 0.1
BN_EPSILON = 1e-5


def alone(state: Mapping[str, Tensor]) -> Stack:
    """A stack of one member."""
    return {name: tensor[None] for name, tensor in state.items()}


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0) -> Tensor:
    """`weight` is (m, out, in, k, k); x has m·in channels, or in channels shared by all members."""
    if stride == 1 and convolution.usable(x, weight):
        out = convolution.conv(x, weight, padding)
        return out if bias is None else out + bias.flatten().to(out.dtype)[:, None, None]
    members, _, inputs = weight.shape[:3]
    groups = 1 if x.shape[1] == inputs else members
    flat_bias = None if bias is None else bias.flatten()
    return F.conv2d(x, weight.flatten(0, 1), flat_bias, stride, padding, groups=groups)


def conv_beside(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """A 3×3 convolution of x; the sums that a norm behind it needs, if they are known; and x, for whoever uses it
    beside the convolution, in the same layout and precision."""
    if convolution.usable(x, weight):
        return convolution.conv_beside(x, weight, 1)
    return conv(x, weight, padding=1), None, x


def fork(x: Tensor, weight: Tensor, short: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Two convolutions of the same x, 3×3 and 1×1."""
    if convolution.can_fork(x, weight, stride):
        return convolution.fork(x, weight, short)
    return conv(x, weight, stride=stride, padding=1), conv(x, short, stride=stride)


def batch_norm(x: Tensor, stack: Stack, name: str, training: bool) -> Tensor:
    """Over m·channels; in training the running statistics of the stack are updated in place."""
    mean, var = stack[f"{name}.running_mean"].flatten(), stack[f"{name}.running_var"].flatten()
    weight, bias = stack[f"{name}.weight"].flatten(), stack[f"{name}.bias"].flatten()
    return F.batch_norm(x, mean, var, weight, bias, training, BN_MOMENTUM, BN_EPSILON)


def conv_norm_relu(
    x: Tensor, stack: Stack, conv_name: str, norm_name: str, training: bool, beside: Tensor | None = None
) -> Tensor:
    """ReLU(norm(conv(x)) + beside), the convolution 3×3; `beside` as in `norm_relu`."""
    weight = stack[f"{conv_name}.weight"]
    if not training and convolution.can_fold(x, weight, beside):
        norm = _fused_norm(x, stack, norm_name, training)
        return convolution.conv_relu(x, weight, norm.scale, norm.shift, beside)
    out, sums, _ = conv_beside(x, weight)
    return norm_relu(out, stack, norm_name, training, beside, sums=sums)


def norm_relu_conv(
    x: Tensor, stack: Stack, norm_name: str, conv_name: str, training: bool, sums: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """conv(ReLU(norm(x))), 3×3; `sums` of x and of what it gives as in `conv_beside`."""
    weight = stack[f"{conv_name}.weight"]
    if chain.usable(x, weight):
        return chain.norm_relu_conv(x, _fused_norm(x, stack, norm_name, training, sums), weight)
    return conv_beside(norm_relu(x, stack, norm_name, training, sums=sums), weight)[:2]


def norm_relu(
    x: Tensor,
    stack: Stack,
    name: str,
    training: bool,
    beside: Tensor | None = None,
    beside_norm: str | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """ReLU(norm(x) + beside), where `beside` may be one member's activations, shared by all; `beside_norm` is the name
    of a norm through which it goes before; `sums` of x as in `conv_beside`."""
    if not fused.usable(x, beside):
        out = batch_norm(x, stack, name, training)
        if beside is not None and beside_norm is not None:
            beside = batch_norm(beside, stack, beside_norm, training)
        return F.relu(out if beside is None else add_shared(out, beside))
    norm = _fused_norm(x, stack, name, training, sums)
    if beside is None or beside_norm is None:
        return fused.norm_relu(x, norm, beside)
    return fused.norm_relu(x, norm, beside, _fused_norm(beside, stack, beside_norm, training))


def _fused_norm(x: Tensor, stack: Stack, name: str, training: bool, sums: Tensor | None = None) -> fused.Norm:
    weight, bias = stack[f"{name}.weight"].flatten(), stack[f"{name}.bias"].flatten()
    mean, var = stack[f"{name}.running_mean"].flatten(), stack[f"{name}.running_var"].flatten()
    if training:
        return fused.measured(x, weight, bias, (mean, var), BN_MOMENTUM, BN_EPSILON, sums)
    return fused.known(weight, bias, mean, var, BN_EPSILON)


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


def join(parts: Sequence[Tensor]) -> Tensor:
    """Activations of several stacks, of the same images in the same order, as those of one."""
    if len(parts) == 1:
        return parts[0]
    if parts[0].dim() == 4 and all(fused.usable(part, None) for part in parts):
        return fused.join(parts)
    return torch.cat(list(parts), 1)


def join_unless_shared(parts: Sequence[Tensor]) -> Tensor:
    """One and the same input of all members stays as it is, shared by them."""
    return parts[0] if all(part is parts[0] for part in parts) else join(parts)


def dropout(x: Tensor, kept: Tensor, share: float) -> Tensor:
    """`kept` has one member's shape. The same mask for every member: so it does not depend on who else is in the
    stack."""
    per_member = x.view(len(x), -1, *kept.shape[1:])
    return (per_member * (kept / (1 - share)).to(x.dtype)[:, None]).view_as(x)
