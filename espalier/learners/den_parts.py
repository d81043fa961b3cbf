"""The parts of DEN (see `den`): sparsity, selection, growth and splits of a fully connected net, as pure functions.

A net is a list of states, one per layer, each with a weight (outputs, inputs) and a bias; the last is the head. Units
are only ever appended: what a layer held before a task is the upper left corner of what it holds after it, and the
time stamp of a unit is told by its place. Knows nothing about training, tasks or libraries.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from espalier.nets import BIAS, WEIGHT, State
from espalier.nets.pieces import uniform

W, B = WEIGHT, BIAS
Net = list[State]


def soft(w: Tensor, threshold: float) -> Tensor:
    """The proximal step of threshold · |w|: all values move towards zero, those within it become zero."""
    return w.sign() * (w.abs() - threshold).clamp(min=0)


def group_soft(rows: Tensor, threshold: float) -> Tensor:
    """The proximal step of threshold · Σ‖row‖ (…, rows, values): rows get shorter, those within it become zero."""
    lengths = rows.square().sum(-1, keepdim=True).sqrt()
    return torch.where(lengths > threshold, rows * (1 - threshold / lengths), 0)


def widths(net: Sequence[State]) -> list[int]:
    """Of the hidden layers."""
    return [len(layer[B]) for layer in net[:-1]]


def connected(net: Sequence[State]) -> list[Tensor]:
    """Which units of each hidden layer reach an output over weights that are not zero, found from the outputs back."""
    reached = torch.ones_like(net[-1][B], dtype=torch.bool)
    found: list[Tensor] = []
    for layer in reversed(net[1:]):
        reached = (layer[W][reached] != 0).any(0)
        found.insert(0, reached)
    return found


def between(net: Sequence[State], units: Sequence[Tensor]) -> list[State]:
    """1 where a value belongs to the net of these hidden units, all inputs and all outputs; else 0."""
    everything = torch.ones(net[0][W].shape[1], dtype=torch.bool, device=net[0][W].device)
    sides = [everything, *units, torch.ones_like(net[-1][B], dtype=torch.bool)]
    return [
        {W: (after[:, None] & before).to(layer[W].dtype), B: after.to(layer[B].dtype)}
        for layer, before, after in zip(net, sides[:-1], sides[1:], strict=True)
    ]


def added(net: Sequence[State], before: Sequence[int]) -> list[State]:
    """1 for the values that came with units behind the first `before` of each hidden layer, and for the whole head,
    which is the task's own; else 0."""
    masks = [{name: torch.ones_like(tensor) for name, tensor in layer.items()} for layer in net]
    for depth, old in enumerate(before):
        inputs = before[depth - 1] if depth else net[0][W].shape[1]
        masks[depth][W][:old, :inputs] = 0
        masks[depth][B][:old] = 0
    return masks


def grown(net: Sequence[State], units: int, generator: torch.Generator) -> Net:
    """With more units in every hidden layer. They read the layer before at random, and nothing that was there reads
    them yet: the net computes what it did."""
    result: Net = []
    for depth, layer in enumerate(net):
        weight, bias = layer[W], layer[B]
        outputs, inputs = weight.shape
        if depth:
            weight = torch.cat([weight, weight.new_zeros(outputs, units)], 1)
            inputs += units
        if depth < len(net) - 1:
            new_weight, new_bias = uniform(generator, inputs, units, inputs), uniform(generator, inputs, units)
            weight, bias = torch.cat([weight, new_weight.to(weight)]), torch.cat([bias, new_bias.to(bias)])
        result.append({W: weight, B: bias})
    return result


def without_useless(net: Sequence[State], before: Sequence[int]) -> Net:
    """Without the units behind the first `before` that read nothing or that nothing reads, from the top down. A unit
    whose bias is zero too, as group sparsity leaves it, is missed by none."""
    net = [dict(layer) for layer in net]
    for depth in reversed(range(len(before))):
        layer, above = net[depth], net[depth + 1]
        useful = ((layer[W] != 0).any(1) | (layer[B] != 0)) & (above[W] != 0).any(0)
        useful[: before[depth]] = True
        net[depth] = {W: layer[W][useful], B: layer[B][useful]}
        net[depth + 1] = {W: above[W][:, useful], B: above[B]}
    return net


def drift(now: State, before: State) -> Tensor:
    """ρ: how far the weights into each old unit of a layer have moved, over what they read before (‖w - w'‖)."""
    return (corner(now[W], before[W]) - before[W]).square().sum(1).sqrt()


def drifted(net: Sequence[State], before: Sequence[State], threshold: float, most: int) -> list[list[int]]:
    """The units of each hidden layer that moved by more than the threshold: the farthest ones, at most so many."""
    found = []
    for now, old in zip(net[:-1], before, strict=True):
        moved = drift(now, old)
        order = moved.argsort(descending=True, stable=True)[:most].tolist()
        found.append(sorted(unit for unit in order if moved[unit] > threshold))
    return found


def split(net: Sequence[State], before: Sequence[State], units: Sequence[list[int]]) -> Net:
    """Each of these units becomes two: in its place the one of before the task, and behind the layer the drifted one.

    Whoever serves this task alone (its head, the drifted copies, the units added for it) now reads the drifted copy
    in place of the old. A unit that was not split serves old tasks too: it goes on reading the old copy, and its
    weight for the drifted one begins at zero.
    """
    result: Net = []
    for depth, layer in enumerate(net):
        weight, bias = layer[W], layer[B]
        hidden = depth < len(net) - 1
        copied = units[depth] if hidden else []
        new_rows, new_bias = weight[copied], bias[copied]
        if hidden:
            old = before[depth]
            weight, bias = weight.clone(), bias.clone()
            weight[copied] = 0  # what came during the task is nothing to the old copy
            weight[copied, : old[W].shape[1]] = old[W][copied]
            bias[copied] = old[B][copied]
        if depth:
            shared = len(before[depth][B]) if hidden else 0  # the first rows: units that old tasks use
            weight = torch.cat([_keeping(weight[:shared], units[depth - 1]), _moved(weight[shared:], units[depth - 1])])
            new_rows = _moved(new_rows, units[depth - 1])
        result.append({W: torch.cat([weight, new_rows]), B: torch.cat([bias, new_bias])})
    return result


def _keeping(rows: Tensor, units: list[int]) -> Tensor:
    return torch.cat([rows, rows.new_zeros(len(rows), len(units))], 1)


def _moved(rows: Tensor, units: list[int]) -> Tensor:
    drifted_columns = rows[:, units]
    rows = rows.clone()
    rows[:, units] = 0
    return torch.cat([rows, drifted_columns], 1)


def corner(now: Tensor, before: Tensor) -> Tensor:
    """The part of a tensor, or of a stack of them, that there was before."""
    for axis, size in enumerate(before.shape, start=now.dim() - before.dim()):
        now = now.narrow(axis, 0, size)
    return now


def padded(head: State, width: int) -> State:
    """A head that reads a layer of that width, and nothing of what it did not read."""
    weight = head[W]
    return head | {W: torch.cat([weight, weight.new_zeros(len(weight), width - weight.shape[1])], 1)}


def open_to(units: int, width: int) -> Tensor:
    """The gate of a layer for a task that knows its first units alone."""
    return (torch.arange(width) < units).float()
