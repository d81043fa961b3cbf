"""What the training loop trains: all members of a task as one network, with their optimisers. Knows nothing about
stopping or choosing.

`TrieModel` is that of almost every learner: candidates laid over each other. A learner whose network is no candidate
writes a model of its own.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import aside
from espalier.training.adam import Adam
from espalier.training.candidate import Member
from espalier.training.cost import trie_flops, trunk_flops
from espalier.training.graphs import Graphs
from espalier.training.job import Job, augmented, shifted
from espalier.training.rules import Outputs, Replay
from espalier.training.trie import NOTHING, Cell, Trie, Trunk, evaluating


class Model(Protocol):
    """`members` are what is trained side by side: a candidate under a setting each."""

    @property
    def members(self) -> list[Member]: ...

    def batches(self, order: torch.Generator) -> list[Tensor]:
        """The train images of the next epoch, cut into batches: their places in the train split."""

    def step(self, chosen: Tensor, number: int) -> int:
        """Train on these images; it is step `number`, from 0. Gives the number of images that went through."""

    def frozen(self, x: Tensor) -> Trunk:
        """What frozen modules make of normalised images; it stays the same while members train, and leave."""

    def logits(self, x: Tensor, known: Trunk = NOTHING) -> Tensor:
        """What all members say of normalised images now: (batch, members, classes). What is known of `frozen` is not
        computed again."""

    def only(self, numbers: Sequence[int]) -> "Model":
        """These members, renumbered in that order, as they are now: to be asked, not to be trained."""

    def cells(self) -> list[tuple[int, Cell]]:
        """All that is trained, each with its place in a member's `states`."""

    def keep(self, numbers: list[int]) -> None:
        """Let only these members stay, in that order."""

    def flops(self) -> tuple[int, int]:
        """Operations per image: of a training step, and of evaluation."""

    def frozen_flops(self, known: Trunk = NOTHING) -> int:
        """Operations per image of `frozen`, where some of it is known."""

    def waiting_since(self, best: Tensor) -> Tensor:
        """(members,): the step since which each waits for a better accuracy, given that of its best."""

    @property
    def graphs(self) -> Graphs | None:
        """Where its work is captured; None: it cannot be."""


class TrieModel:
    def __init__(self, job: Job, members: Sequence[Member]) -> None:
        self.job, self.rules = job, job.rules
        self.trie = Trie(job.backbone, members, job.modules, job.fresh())
        rates = torch.tensor([m.setting.lr for m in members], device=job.device)
        decays = torch.tensor([m.setting.weight_decay for m in members], device=job.device)
        cells = self.cells()
        self.optimiser = Adam(
            self._parameters(),
            [rates[cell.members] for _, cell in cells for _ in cell.parameters()],
            [decays[cell.members] for _, cell in cells for _ in cell.parameters()],
            [share for depth, cell in cells for share in self._free(depth, cell)],
        )
        self.crops, self.recall = job.generator("augment"), job.generator("replay")
        self.parts = self._parts()
        self.graphs = Graphs() if job.speed.graphs else None

    def _parts(self) -> Tensor | None:
        """(tasks of the replay and this one, outputs of the head): which belong to each; None: all to this task."""
        if self.rules.outputs is None:
            return None
        old = () if self.rules.replay is None else self.rules.replay.outputs
        return outputs_mask([*old, self.rules.outputs], _outputs_of(self.trie), self.job.device)

    def _parameters(self) -> list[Tensor]:
        return [p for _, cell in self.cells() for p in cell.parameters()]

    def _free(self, depth: int, cell: Cell) -> list[Tensor | None]:
        free = self.rules.free.get(self.job.backbone.blocks[depth].name, {})
        return [free.get(name) for name in cell.parameter_names()]

    @property
    def members(self) -> list[Member]:
        return self.trie.members

    def batches(self, order: torch.Generator) -> list[Tensor]:
        return self.job.batches(order)

    def step(self, chosen: Tensor, number: int) -> int:
        job, rules = self.job, self.rules
        x = job.task.normalise(augmented(job.task, chosen, job.protocol, self.crops))
        y, own = job.task.train.y[chosen], None
        if rules.outputs is not None and self.parts is not None:
            y, own = y + rules.outputs[0], self.parts[-1:]
        if rules.replay is not None:
            x, y, own = self._with_replay(rules.replay, x, y)
        inputs = {"x": x, "y": y, **({} if own is None else {"own": own}), **job.drawn(number, len(x))}
        if self.graphs is None:
            self._compute(**inputs)
        else:
            self.graphs.run("step", self._compute, inputs)
        return len(x)

    def _compute(self, x: Tensor, y: Tensor, own: Tensor | None = None, **drawn: Tensor) -> None:
        """Forward, backward, and a step of every member."""
        modes = self.job.modes(drawn)
        # Not with a penalty, whose gradient is added to that of the weights at once, on the main line.
        with aside.lines(x.device) if self.rules.penalty is None else nullcontext():
            with self.job.precision():
                logits = self.trie.forward(x, modes)
            logits = logits.to(self.job.task.mean.dtype)
            loss = member_losses(logits if own is None else masked(logits, own), y)
            if self.rules.penalty is not None:
                loss = loss + self.rules.penalty(self.stacks(), modes(0))
            self._update(loss.sum())
        if self.rules.project is not None:
            with torch.no_grad():
                self.rules.project(self.stacks())

    def _with_replay(self, replay: Replay, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The batch with as many remembered images added, as far as there are; and which outputs each may use."""
        assert self.parts is not None
        count = min(len(replay), len(x))
        chosen = torch.randint(len(replay), (count,), generator=self.recall, device=x.device)
        task, old = replay.task[chosen], replay.x[chosen]
        if replay.moves:
            moved = shifted(old, self.job.protocol, self.crops)
            old = torch.where(replay.still[task].view(-1, 1, 1, 1), old, moved)
        own = torch.cat([self.parts[-1:].expand(len(x), -1), self.parts[task]])
        return torch.cat([x, replay.normalise(old, task)]), torch.cat([y, replay.y[chosen]]), own

    def _update(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.optimiser.parameters)
        aside.back()
        self.optimiser.step(gradients)

    def slow_down(self, factor: float) -> None:
        """Learning rates are those of the settings times `factor` from now on."""
        self.optimiser.factor.fill_(factor)

    def stacks(self) -> dict[str, dict[str, Tensor]]:
        """The trained tensors by block, for rules, which know one cell per block."""
        cells = self.cells()
        assert len({depth for depth, _ in cells}) == len(cells)
        return {self.job.backbone.blocks[depth].name: cell.stack for depth, cell in cells}

    def frozen(self, x: Tensor) -> Trunk:
        with self.job.precision():
            return self.trie.trunk(x)

    def logits(self, x: Tensor, known: Trunk = NOTHING) -> Tensor:
        with aside.lines(x.device), self.job.precision():
            logits = self.trie.forward(x, evaluating, known)
        return logits if self.rules.outputs is None else logits[:, :, slice(*self.rules.outputs)]

    def only(self, numbers: Sequence[int]) -> "TrieModel":
        there = copy(self)
        there.trie = self.trie.only(numbers)
        return there

    def cells(self) -> list[tuple[int, Cell]]:
        return self.trie.trained_cells()

    def keep(self, numbers: list[int]) -> None:
        rows = [cell.rows_of(numbers) for _, cell in self.cells() for _ in cell.parameters()]
        self.trie.keep(numbers)
        if self.graphs is not None:
            self.graphs.forget()
        if numbers:
            self.optimiser = self.optimiser.keep(self._parameters(), rows)

    def flops(self) -> tuple[int, int]:
        return trie_flops(self.trie)

    def frozen_flops(self, known: Trunk = NOTHING) -> int:
        return trunk_flops(self.trie, known)

    def waiting_since(self, best: Tensor) -> Tensor:
        return best


def member_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of each member: logits (batch, members, classes) → (members,)."""
    expanded = y[:, None].expand(logits.shape[:2])
    return F.cross_entropy(logits.transpose(1, 2), expanded, reduction="none").mean(0)


def outputs_mask(outputs: Sequence[Outputs], total: int, device: torch.device) -> Tensor:
    """(tasks, all outputs of a head): which belong to each task."""
    places = torch.arange(total, device=device)
    return torch.stack([(places >= first) & (places < behind) for first, behind in outputs])


def masked(logits: Tensor, own: Tensor) -> Tensor:
    """Logits of which only the outputs in `own` (batch or 1, outputs) count."""
    return logits.masked_fill(~own[:, None], -torch.inf)


def _outputs_of(trie: Trie) -> int:
    return int(trie.backbone.blocks[-1].shape(trie.backbone.shapes()[-1])[0])
