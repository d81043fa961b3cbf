"""Blocks and backbones: a backbone is a list of blocks, the last of them the head. Knows nothing about training.

The paper's three (ResNet, AlexNet, a fully connected net) and `tiny`, a narrow residual net for the mini streams.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from espalier.errors import InputError
from espalier.nets.layers import Stack, alone
from espalier.nets.pieces import (
    EVAL,
    ConvPool,
    Dense,
    Drops,
    GlobalPool,
    Mode,
    Piece,
    Residual,
    Shape,
    State,
    Stem,
    is_buffer,
)


@dataclass(frozen=True)
class Block:
    """A position in the backbone: its name, and the pieces it computes one after another."""

    name: str
    pieces: tuple[Piece, ...]

    def init(self, generator: torch.Generator) -> State:
        state: State = {}
        for prefix, piece in self._named():
            state |= {prefix + name: tensor for name, tensor in piece.init(generator).items()}
        return state

    def forward(self, stack: Stack, x: Tensor, mode: Mode) -> Tensor:
        for prefix, piece in self._named():
            own = {name[len(prefix) :]: tensor for name, tensor in stack.items() if name.startswith(prefix)}
            x = piece.forward(own, x, mode)
        return x

    def shape(self, given: Shape) -> Shape:
        for piece in self.pieces:
            given = piece.shape(given)
        return given

    def macs(self, given: Shape) -> int:
        """Multiply-accumulates of one image through one member."""
        total = 0
        for piece in self.pieces:
            total, given = total + piece.macs(given), piece.shape(given)
        return total

    def drops(self, given: Shape) -> Drops | None:
        """The dropout in it; a block has at most one."""
        found = None
        for piece in self.pieces:
            found, given = found or piece.drops(given), piece.shape(given)
        return found

    def gates(self) -> dict[str, int]:
        """The places that can have a gate, as their tensors are named without "gate" or "embedding": "0.", "1.1", …"""
        return {f"{prefix}{place}": units for prefix, piece in self._named() for place, units in piece.gates().items()}

    def _named(self) -> Iterator[tuple[str, Piece]]:
        return ((f"{number}.", piece) for number, piece in enumerate(self.pieces))


class Network(Protocol):
    """What turns normalised images into logits, given one state per block. A backbone is one."""

    def forward(self, states: Sequence[State], x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Backbone:
    """Blocks in order for images of one shape and tasks of one number of classes."""

    name: str
    image: Shape
    blocks: tuple[Block, ...]

    @property
    def plain_name(self) -> str:
        """Without the factor on its width."""
        return split_name(self.name)[0]

    @torch.no_grad()
    def forward(self, states: Sequence[State], x: Tensor) -> Tensor:
        """Normalised images through one plain network: one state per block (or per block but the last ones)."""
        for block, state in zip(self.blocks, states, strict=False):
            x = block.forward(alone(state), x, EVAL)
        return x

    def macs(self) -> list[int]:
        """Multiply-accumulates of one image, block by block."""
        return [block.macs(given) for block, given in zip(self.blocks, self.shapes(), strict=True)]

    def input_macs(self) -> list[int]:
        """Those of the layers that read the block's own input."""
        return [block.pieces[0].input_macs(given) for block, given in zip(self.blocks, self.shapes(), strict=True)]

    def shapes(self) -> list[Shape]:
        """What each block is given, of one image."""
        shapes = [self.image]
        for block in self.blocks[:-1]:
            shapes.append(block.shape(shapes[-1]))
        return shapes


def with_widths(net: Backbone, hidden: Sequence[int]) -> Backbone:
    """A fully connected backbone with as many units in its hidden layers."""
    sizes = pairwise([math.prod(net.image), *hidden, *net.blocks[-1].shape(())])
    blocks = [
        Block(block.name, (Dense(inputs, outputs, relu=block is not net.blocks[-1]),))
        for block, (inputs, outputs) in zip(net.blocks, sizes, strict=True)
    ]
    return replace(net, blocks=tuple(blocks))


def numbers(state: State) -> int:
    """How many values a state holds, parameters and buffers together."""
    return sum(tensor.numel() for tensor in state.values())


def parameters(state: State) -> int:
    """The number of trained values in a state."""
    return sum(tensor.numel() for name, tensor in state.items() if not is_buffer(name))


# How the ten pieces of the ResNet (stem, eight residual units, head) are cut into blocks.
RESNET_CUTS: dict[str, Sequence[int]] = {
    "resnet": (0, 1, 1, 2, 2, 3, 3, 4, 5, 6),
    "resnet-3": (0, 0, 0, 0, 0, 1, 1, 1, 1, 2),
    "resnet-6": (0, 1, 1, 2, 2, 3, 3, 4, 4, 5),
    "resnet-10": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
}


def _resnet(cut: str, image: Shape, classes: int, factor: float) -> list[Block]:
    width = _wide(64, factor)
    strides = (1, 1, 2, 1, 2, 1, 2, 1)
    pieces: list[list[Piece]] = [[Stem(image[0], width)]]
    pieces += [[Residual(width, width, stride)] for stride in strides]
    pieces[-1].append(GlobalPool())
    pieces.append([Dense(width, classes, relu=False)])
    places = RESNET_CUTS[cut]
    grouped = [
        [p for own, place in zip(pieces, places, strict=True) if place == b for p in own] for b in range(places[-1] + 1)
    ]
    names = ["stem", *(f"stage{i}" for i in range(1, len(grouped) - 1)), "head"]
    return [Block(name, tuple(group)) for name, group in zip(names, grouped, strict=True)]


def _alexnet(image: Shape, classes: int, factor: float) -> list[Block]:
    conv1, conv2, conv3, dense = (_wide(width, factor) for width in (64, 128, 256, 2048))
    convs = (ConvPool(image[0], conv1, 4, 0.2), ConvPool(conv1, conv2, 3, 0.2), ConvPool(conv2, conv3, 2, 0.5))
    given = image
    for piece in convs:
        given = piece.shape(given)
    features = given[0] * given[1] * given[2]
    return [
        *(Block(f"conv{i}", (piece,)) for i, piece in enumerate(convs, start=1)),
        Block("dense1", (Dense(features, dense, drop=0.5),)),
        Block("dense2", (Dense(dense, dense, drop=0.5),)),
        Block("head", (Dense(dense, classes, relu=False),)),
    ]


def _fully_connected(image: Shape, classes: int, factor: float) -> list[Block]:
    inputs, width = image[0] * image[1] * image[2], _wide(1000, factor)
    return [
        Block("dense1", (Dense(inputs, width),)),
        Block("dense2", (Dense(width, width),)),
        Block("head", (Dense(width, classes, relu=False),)),
    ]


TINY_WIDTH = 8


def _tiny(image: Shape, classes: int, factor: float) -> list[Block]:
    width = _wide(TINY_WIDTH, factor)
    return [
        Block("stem", (Stem(image[0], width),)),
        Block("stage1", (Residual(width, 2 * width, 2),)),
        Block("stage2", (Residual(2 * width, 2 * width, 2),)),
        Block("stage3", (Residual(2 * width, 4 * width, 2), GlobalPool())),
        Block("head", (Dense(4 * width, classes, relu=False),)),
    ]


def _wide(width: int, factor: float) -> int:
    return max(1, int(width * factor + 1e-6))  # cut off, as the published sizes of HAT's wide networks are


Make = Callable[[Shape, int, float], list[Block]]  # (image, classes, factor on all widths) → blocks

BACKBONES: dict[str, Make] = {
    **{cut: partial(_resnet, cut) for cut in RESNET_CUTS},
    "alexnet": _alexnet,
    "fc": _fully_connected,
    "tiny": _tiny,
}


def backbone(name: str, image: Shape, classes: int) -> Backbone:
    """The backbone of that name for images (channels, height, width) and a number of classes.

    `alexnet-x2.5` is `alexnet` with all hidden layers 2.5 times as wide; so with every other.
    """
    plain, factor = split_name(name)
    if plain not in BACKBONES:
        raise InputError(
            f"there is no backbone {name!r}; the backbones are {', '.join(BACKBONES)}, and any of them with a "
            f"factor on its width, as in 'fc-x2.5'."
        )
    made = Backbone(name, image, tuple(BACKBONES[plain](image, classes, factor)))
    if any(side < 1 for shape in made.shapes() for side in shape):
        raise InputError(f"images of {image[1]}×{image[2]} pixels are too small for {name}; scale them up.")
    return made


def split_name(name: str) -> tuple[str, float]:
    """The plain name of a backbone, and the factor on its width."""
    found = re.fullmatch(r"(.+)-x(\d{1,2}(?:\.\d{1,3})?)", name)
    if found is None or float(found[2]) == 0:
        return name, 1.0
    return found[1], float(found[2])
