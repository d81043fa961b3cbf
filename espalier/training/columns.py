"""A model that trains a column beside frozen ones: all settings side by side, the frozen columns once for all of them.

Knows nothing about stopping or choosing, nor about libraries. What a column is, `nets/columns.py` says.
"""

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from espalier.nets import State
from espalier.nets.columns import Columns, column
from espalier.nets.layers import Stack
from espalier.training.adam import Adam
from espalier.training.candidate import Fresh, Member, Setting
from espalier.training.cost import FLOPS_PER_MAC
from espalier.training.graphs import Graphs
from espalier.training.job import Job, augmented
from espalier.training.model import member_losses
from espalier.training.trie import NOTHING, Cell, Modes, Trunk, cut, evaluating, repeated, take_rows


class ColumnModel:
    """One member per setting, each a fresh column; at every block all members are one cell."""

    def __init__(self, job: Job, network: Columns, settings: Sequence[Setting]) -> None:
        self.job, self.network = job, network
        self.members = [Member(tuple(Fresh() for _ in job.backbone.blocks), setting) for setting in settings]
        count, states = len(settings), fresh_column(job, network.earlier)
        self._cells = [Cell(list(range(count)), repeated(state, count), True, None) for state in states]
        rates = torch.tensor([s.lr for s in settings], device=job.device)
        decays = torch.tensor([s.weight_decay for s in settings], device=job.device)
        parameters = self._parameters()
        self.optimiser = Adam(parameters, [rates] * len(parameters), [decays] * len(parameters))
        self.crops = job.generator("augment")
        self.graphs = Graphs() if job.speed.graphs else None

    def batches(self, order: torch.Generator) -> list[Tensor]:
        return self.job.batches(order)

    def step(self, chosen: Tensor, number: int) -> int:
        job = self.job
        x = job.task.normalise(augmented(job.task, chosen, job.protocol, self.crops))
        inputs = {"x": x, "y": job.task.train.y[chosen], **job.drawn(number, len(x))}
        if self.graphs is None:
            self._compute(**inputs)
        else:
            self.graphs.run("step", self._compute, inputs)
        return len(x)

    def _compute(self, x: Tensor, y: Tensor, **drawn: Tensor) -> None:
        """Forward, backward, and a step of every member."""
        logits = self._run(x, self.job.modes(drawn)).to(self.job.task.mean.dtype)
        loss = member_losses(logits, y).sum()
        self.optimiser.step(torch.autograd.grad(loss, self.optimiser.parameters))

    def frozen(self, x: Tensor) -> Trunk:
        return NOTHING  # it is computed anew each time

    def logits(self, x: Tensor, known: Trunk = NOTHING) -> Tensor:
        return self._run(x, evaluating)

    def _run(self, x: Tensor, modes: Modes) -> Tensor:
        with self.job.precision():
            return self.network.run(self._stacks(), x, modes).view(len(x), len(self.members), -1)

    def only(self, numbers: Sequence[int]) -> "ColumnModel":
        there = copy(self)
        there.members = [self.members[number] for number in numbers]
        there._cells = [cut(cell, numbers) for cell in self._cells]
        return there

    def cells(self) -> list[tuple[int, Cell]]:
        return list(enumerate(self._cells))

    def keep(self, numbers: list[int]) -> None:
        self.members = [self.members[number] for number in numbers]
        for cell in self._cells:
            cell.stack, cell.members = take_rows(cell.stack, numbers), list(range(len(numbers)))
        if self.graphs is not None:
            self.graphs.forget()
        if numbers:
            parameters = self._parameters()
            self.optimiser = self.optimiser.keep(parameters, [numbers] * len(parameters))

    def flops(self) -> tuple[int, int]:
        return column_flops(self.network, len(self.members))

    def frozen_flops(self, known: Trunk = NOTHING) -> int:
        return 0

    def waiting_since(self, best: Tensor) -> Tensor:
        return best

    def _stacks(self) -> list[Stack]:
        return [cell.stack for cell in self._cells]

    def _parameters(self) -> list[Tensor]:
        return [p for cell in self._cells for p in cell.parameters()]


def fresh_column(job: Job, earlier: Sequence[str]) -> list[State]:
    """How a column begins: its own blocks as in any network of this task, each copy by a draw of its own."""

    def copies(task: str) -> list[State]:
        blocks = job.backbone.blocks[1:]
        return [block.init(job.generator("fresh", block.name, task, device="cpu")) for block in blocks]

    states = column(job.fresh(), {task: copies(task) for task in earlier})
    return [{name: tensor.to(job.device) for name, tensor in state.items()} for state in states]


def column_flops(network: Columns, members: int) -> tuple[int, int]:
    """Operations per image: of a training step, and of evaluation; counted as in `cost`."""
    macs, input_macs, count = network.backbone.macs(), network.backbone.input_macs(), len(network.earlier)
    frozen = count * macs[0] + count * (count + 1) // 2 * sum(macs[1:-1])  # no one reads the heads of frozen columns
    own, laterals = sum(macs), count * sum(macs[1:])
    forward = frozen + members * (own + laterals)
    # What reads the image or a frozen column needs no gradient of its input.
    inputs = own - input_macs[0] + laterals - count * sum(input_macs[1:])
    backward = members * (own + laterals + inputs)
    return FLOPS_PER_MAC * (forward + backward), FLOPS_PER_MAC * forward
