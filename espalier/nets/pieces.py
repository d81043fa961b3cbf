"""The pieces blocks are made of. A piece says which tensors it has, how they begin, and what it computes.

`forward(stack, x, mode)` takes the tensors of one member or many (see `layers`) under the names that `init` gives
them. Sizes are known beforehand: `shape(input shape)` and `macs(input shape)` speak of one member and one image.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import layers
from espalier.nets.gates import gated, has_gate
from espalier.nets.layers import Stack

State = dict[str, Tensor]  # the tensors of one module or member: parameters and buffers by name
Shape = tuple[int, ...]  # of one image's activations: (channels, height, width) or (features,)


@dataclass(frozen=True)
class Mode:
    """Whether batch norm trains, and what dropout keeps, if anything is dropped.

    `frozen_norms`: batch norm does not train, though the rest does. `sharpness`: of learned gates (see `gates`).
    """

    training: bool = False
    kept: Tensor | None = None  # (batch, *what `Piece.drops` says), bool
    frozen_norms: bool = False
    sharpness: Tensor | None = None

    @property
    def norms_train(self) -> bool:
        return self.training and not self.frozen_norms


EVAL = Mode()
WEIGHT, BIAS = "0.linear.weight", "0.linear.bias"  # in the state of a block that is one dense layer, as heads are


class Piece(Protocol):
    def init(self, generator: torch.Generator) -> State: ...
    def forward(self, stack: Stack, x: Tensor, mode: Mode) -> Tensor: ...
    def shape(self, given: Shape) -> Shape: ...
    def macs(self, given: Shape) -> int: ...
    def input_macs(self, given: Shape) -> int: ...  # of the layers that read the piece's own input
    def gates(self) -> dict[str, int]: ...  # the places that can have a gate ("" or a number), and their units
    def drops(self, given: Shape) -> "Drops | None": ...  # where it has dropout


Drops = tuple[float, Shape]  # the share of values that dropout takes away, and the shape of what it acts on


def is_buffer(name: str) -> bool:
    """Whether a tensor of a state is a statistic or a fixed gate, and not a trained parameter."""
    return name.endswith(("running_mean", "running_var", "gate", "gate1"))


def uniform(generator: torch.Generator, fan_in: int, *shape: int) -> Tensor:
    """PyTorch's default for convolutions and linear layers: uniform within 1/√fan_in."""
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def _init_conv(generator: torch.Generator, name: str, inputs: int, outputs: int, kernel: int) -> State:
    return {f"{name}.weight": uniform(generator, inputs * kernel**2, outputs, inputs, kernel, kernel)}


def _init_norm(name: str, channels: int) -> State:
    ones, zeros = torch.ones(channels), torch.zeros(channels)
    return {
        f"{name}.weight": ones,
        f"{name}.bias": zeros,
        f"{name}.running_mean": zeros.clone(),
        f"{name}.running_var": ones.clone(),
    }


def _strided(size: int, stride: int) -> int:
    """A 3×3 convolution with padding 1."""
    return (size - 1) // stride + 1


@dataclass(frozen=True)
class Stem:
    """Convolution 3×3, batch norm, ReLU."""

    inputs: int
    outputs: int

    def init(self, generator: torch.Generator) -> State:
        return _init_conv(generator, "conv", self.inputs, self.outputs, 3) | _init_norm("norm", self.outputs)

    def forward(self, stack: Stack, x: Tensor, mode: Mode) -> Tensor:
        out = layers.conv_norm_relu(x, stack, "conv", "norm", mode.norms_train)
        return gated(out, stack, "", mode.sharpness)

    def shape(self, given: Shape) -> Shape:
        return (self.outputs, *given[1:])

    def macs(self, given: Shape) -> int:
        return 9 * self.inputs * self.outputs * given[1] * given[2]

    def input_macs(self, given: Shape) -> int:
        return self.macs(given)

    def gates(self) -> dict[str, int]:
        return {"": self.outputs}

    def drops(self, given: Shape) -> Drops | None:
        return None


@dataclass(frozen=True)
class Residual:
    """Two 3×3 convolutions with batch norm, and the input added; where its size changes, through a 1×1 convolution."""

    inputs: int
    outputs: int
    stride: int = 1

    @property
    def _projects(self) -> bool:
        return self.stride != 1 or self.inputs != self.outputs

    def init(self, generator: torch.Generator) -> State:
        state = _init_conv(generator, "conv1", self.inputs, self.outputs, 3) | _init_norm("norm1", self.outputs)
        state |= _init_conv(generator, "conv2", self.outputs, self.outputs, 3) | _init_norm("norm2", self.outputs)
        if self._projects:
            state |= _init_conv(generator, "short", self.inputs, self.outputs, 1) | _init_norm(
                "short_norm", self.outputs
            )
        return state

    def forward(self, stack: Stack, x: Tensor, mode: Mode) -> Tensor:
        if not (self._projects or mode.norms_train or torch.is_grad_enabled()):
            return self._evaluated(stack, x, mode)
        training, sums = mode.norms_train, None
        if self._projects:
            out, beside = layers.fork(x, stack["conv1.weight"], stack["short.weight"], self.stride)
        else:
            out, sums, beside = layers.conv_beside(x, stack["conv1.weight"])
        if has_gate(stack, "1"):
            out = gated(layers.norm_relu(out, stack, "norm1", training, sums=sums), stack, "1", mode.sharpness)
            out, sums, _ = layers.conv_beside(out, stack["conv2.weight"])
        else:
            out, sums = layers.norm_relu_conv(out, stack, "norm1", "conv2", training, sums)
        short = "short_norm" if self._projects else None
        out = layers.norm_relu(out, stack, "norm2", training, beside=beside, beside_norm=short, sums=sums)
        return gated(out, stack, "", mode.sharpness)

    def _evaluated(self, stack: Stack, x: Tensor, mode: Mode) -> Tensor:
        """Where norms can go into the convolutions before them."""
        out = layers.conv_norm_relu(x, stack, "conv1", "norm1", False)
        out = gated(out, stack, "1", mode.sharpness)
        out = layers.conv_norm_relu(out, stack, "conv2", "norm2", False, beside=x)
        return gated(out, stack, "", mode.sharpness)

    def shape(self, given: Shape) -> Shape:
        return (self.outputs, _strided(given[1], self.stride), _strided(given[2], self.stride))

    def macs(self, given: Shape) -> int:
        _, height, width = self.shape(given)
        weights = 9 * self.inputs * self.outputs + 9 * self.outputs**2
        return (weights + (self.inputs * self.outputs if self._projects else 0)) * height * width

    def input_macs(self, given: Shape) -> int:
        _, height, width = self.shape(given)
        return (9 + (1 if self._projects else 0)) * self.inputs * self.outputs * height * width

    def gates(self) -> dict[str, int]:
        return {"1": self.outputs, "": self.outputs}

    def drops(self, given: Shape) -> Drops | None:
        return None


@dataclass(frozen=True)
class GlobalPool:
    """The mean over all places: (batch, channels, h, w) → (batch, channels)."""

    def init(self, generator: torch.Generator) -> State:
        return {}

    def forward(self, stack: Stack, x: Tensor, mode: Mode) -> Tensor:
        return x.mean((2, 3))

    def shape(self, given: Shape) -> Shape:
        return given[:1]

    def macs(self, given: Shape) -> int:
        return 0

    def input_macs(self, given: Shape) -> int:
        return self.macs(given)

    def gates(self) -> dict[str, int]:
        return {}

    def drops(self, given: Shape) -> Drops | None:
        return None


@dataclass(frozen=True)
class ConvPool:
    """AlexNet's: convolution without padding, ReLU, dropout, max pooling by 2."""

    inputs: int
    outputs: int
    kernel: int
    drop: float

    def init(self, generator: torch.Generator) -> State:
        fan_in = self.inputs * self.kernel**2
        bias = {"conv.bias": uniform(generator, fan_in, self.outputs)}
        return _init_conv(generator, "conv", self.inputs, self.outputs, self.kernel) | bias

    def forward(self, stack: Stack, x: Tensor, mode: Mode) -> Tensor:
        out = F.relu(layers.conv(x, stack["conv.weight"], stack["conv.bias"]))
        out = gated(out, stack, "", mode.sharpness)
        out = out if mode.kept is None else layers.dropout(out, mode.kept, self.drop)
        return F.max_pool2d(out, 2)

    def shape(self, given: Shape) -> Shape:
        return (self.outputs, *(side // 2 for side in self._sides(given)))

    def macs(self, given: Shape) -> int:
        height, width = self._sides(given)
        return self.inputs * self.outputs * self.kernel**2 * height * width

    def input_macs(self, given: Shape) -> int:
        return self.macs(given)

    def gates(self) -> dict[str, int]:
        return {"": self.outputs}

    def drops(self, given: Shape) -> Drops | None:
        return self.drop, (self.outputs, *self._sides(given))

    def _sides(self, given: Shape) -> list[int]:
        """Before pooling."""
        return [side - self.kernel + 1 for side in given[1:]]


@dataclass(frozen=True)
class Dense:
    """Linear layer; images or maps are flattened first. With ReLU and dropout unless it is a head."""

    inputs: int
    outputs: int
    relu: bool = True
    drop: float = 0.0

    def init(self, generator: torch.Generator) -> State:
        return {
            "linear.weight": uniform(generator, self.inputs, self.outputs, self.inputs),
            "linear.bias": uniform(generator, self.inputs, self.outputs),
        }

    def forward(self, stack: Stack, x: Tensor, mode: Mode) -> Tensor:
        # Members lie one after another along the channels, so flattening keeps each member's features together.
        out = layers.linear(x.flatten(1), stack["linear.weight"], stack["linear.bias"])
        out = gated(F.relu(out), stack, "", mode.sharpness) if self.relu else out
        return out if mode.kept is None else layers.dropout(out, mode.kept, self.drop)

    def shape(self, given: Shape) -> Shape:
        return (self.outputs,)

    def macs(self, given: Shape) -> int:
        return self.inputs * self.outputs

    def input_macs(self, given: Shape) -> int:
        return self.macs(given)

    def gates(self) -> dict[str, int]:
        return {"": self.outputs} if self.relu else {}

    def drops(self, given: Shape) -> Drops | None:
        return (self.drop, (self.outputs,)) if self.drop else None
