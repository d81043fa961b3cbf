"""A network that holds many paths at once, and learns which to take: the model of MNTDP-S. Knows nothing about
stopping or choosing, nor about libraries.

Every member has one fresh module per block, shared by all paths, and a distribution Γ over the paths (`paths.py`).
Veniat, Denoyer, Ranzato: "Efficient Continual Learning with Modular Networks and Task-Driven Priors", ICLR 2021,
equation 1 and algorithm 1. The train images are halved. In turn, a batch of the first half trains the fresh modules of
one path that each member draws, and a batch of the second half trains Γ by REINFORCE, with a path drawn for every image
and the network as it is in evaluation. A member whose path is *fixed* trains its weights on all batches, along its
likeliest path, on which every member is also evaluated.

The frozen modules are computed once for all members; they are as many as the chosen old paths have, so a step costs
the same after any number of tasks if one path is chosen, and grows with the modules of all tasks if all are. A step
waits for the device once or twice, as the drawn paths decide what runs.
"""

from collections.abc import Iterable, Sequence
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import EVAL, is_buffer
from espalier.nets.layers import Stack, join_unless_shared
from espalier.training.candidate import Fresh, Member, Setting
from espalier.training.cost import FLOPS_PER_MAC
from espalier.training.job import Job, augmented
from espalier.training.model import member_losses
from espalier.training.paths import Paths, entropy, reinforce_loss, sample
from espalier.training.row_adam import RowAdam
from espalier.training.trie import NOTHING, Cell, Modes, Prefix, Trunk, behind, cut, evaluating, repeated, take_rows

SURE = 0.99  # of a path: the paper's
NO_ENTROPY = 1e-3  # the released code's
GAMMA = "logits"  # the tensor of Γ's own cell, which lies behind those of the blocks

Walk = tuple[int, Prefix]  # a member, and the path it takes
Used = tuple[int, Tensor, Stack]  # depth, the members that went through its fresh modules, and their rows of it


class Supernet:
    """One member per setting; `setting.path_lr` is the learning rate of its Γ.

    `fix` says when a member's path is fixed: "probability", as soon as its likeliest path has more than 0.99;
    "entropy", at an epoch's end when the entropy of Γ is below 0.001. With both, at the latest after half the epochs.
    """

    def __init__(self, job: Job, paths: Paths, settings: Sequence[Setting], entropy_weight: float, fix: str) -> None:
        self.job, self.paths, self.blocks = job, paths, job.backbone.blocks
        self.entropy_weight, self.fix = entropy_weight, fix
        self.members = [Member(tuple(Fresh() for _ in self.blocks), setting) for setting in settings]
        count = len(settings)
        stacks = [*(repeated(state, count) for state in job.fresh()), {GAMMA: paths.uniform(count).requires_grad_()}]
        self._cells = [Cell(list(range(count)), stack, True, None) for stack in stacks]
        values = [(s.lr, s.weight_decay, s.path_lr or 0.0) for s in settings]
        rates, decays, path_rates = torch.tensor(values, device=job.device).T
        self.optimisers = [RowAdam(stack, rates, decays) for stack in stacks[:-1]]
        self.optimisers.append(RowAdam(stacks[-1], path_rates, torch.zeros_like(path_rates)))
        self.fixed = [False] * count
        self.fixed_at = [0] * count  # the step
        self.steps = 0
        self.epochs = 0
        self.crops = job.generator("augment")
        # A member's draws are named by its setting: who else is trained beside it does not change them.
        self.draws = [job.generator("path", *map(repr, value), device="cpu") for value in values]
        self.halves = halves(job.task.train.y)
        self.graphs = None  # the drawn paths decide what runs
        self._spent = [0, 0]  # multiply-accumulates per image, of the last step and of the last evaluation

    def batches(self, order: torch.Generator) -> list[Tensor]:
        """Batches of the first and of the second half in turn, as many of each; so steps 0, 2, … have the first."""
        self._fix_between_epochs()
        self.epochs += 1
        count = -(-len(self.halves[0]) // self.job.protocol.batch)
        cut = [
            torch.tensor_split(half[torch.randperm(len(half), generator=order, device=half.device)], count)
            for half in self.halves
        ]
        return [batch for both in zip(*cut, strict=True) for batch in both]

    def _fix_between_epochs(self) -> None:
        if 2 * self.epochs >= self.job.protocol.max_epochs:
            self._fix([True] * len(self.members))
        elif self.fix == "entropy":
            self._fix((entropy(self._log_p().detach()) < NO_ENTROPY).tolist())

    def _fix(self, sure: Iterable[bool]) -> None:
        for member, now in enumerate(sure):
            if now and not self.fixed[member]:
                self.fixed[member], self.fixed_at[member] = True, self.steps

    def step(self, chosen: Tensor, number: int) -> int:
        job, log_p = self.job, self._log_p()
        x, y = job.task.normalise(augmented(job.task, chosen, job.protocol, self.crops)), job.task.train.y[chosen]
        if self.fix == "probability":
            self._fix((log_p.max(1).values.exp() > SURE).tolist())
        walks = self._likeliest_walks()
        free = [member for member, _ in walks if not self.fixed[member]]
        self._spent[0] = 0
        if number % 2 == 0:
            for member, end in zip(free, self._draw(log_p, free, 1).flatten().tolist(), strict=True):
                walks[member] = member, self.paths.prefixes[end]
        else:
            walks = [walk for walk in walks if self.fixed[walk[0]]]
            if free:
                self._path_step(x, y, log_p, free)
        self._weight_step(x, y, walks, job.modes(job.drawn(number, len(x))))
        self.steps += 1
        return len(x)

    def _weight_step(self, x: Tensor, y: Tensor, walks: list[Walk], modes: Modes) -> None:
        """One step of the fresh modules that the members walk through. All others stay, to the last bit."""
        walks = [walk for walk in walks if len(walk[1]) < len(self.blocks)]
        if not walks:
            return
        logits, used, macs = self._along(x, walks, modes)
        logits = logits.to(self.job.task.mean.dtype)
        names = [[name for name in stack if not is_buffer(name)] for _, _, stack in used]
        parameters = [stack[name] for (_, _, stack), own in zip(used, names, strict=True) for name in own]
        gradients = iter(torch.autograd.grad(member_losses(logits, y).sum(), parameters))
        for (depth, rows, stack), own in zip(used, names, strict=True):
            whole = self._cells[depth].stack
            self.optimisers[depth].step(whole, rows, {name: next(gradients) for name in own})
            for name in stack.keys() - own:  # batch norm has updated the statistics of the rows
                whole[name][rows] = stack[name]
        self._spent[0] += macs + self._backward_macs(used)

    def _path_step(self, x: Tensor, y: Tensor, log_p: Tensor, members: list[int]) -> None:
        """One step of the Γ of these members; the reward of a path is how little an image's loss is."""
        drawn = self._draw(log_p, members, len(x))
        loss = reinforce_loss(log_p[members], drawn, self._rewards(x, y, members, drawn))
        loss = loss - self.entropy_weight * entropy(log_p[members])
        (gradient,) = torch.autograd.grad(loss.sum(), self._gamma())
        rows = torch.tensor(members, device=x.device)
        self.optimisers[-1].step(self._cells[-1].stack, rows, {GAMMA: gradient[rows]})

    def _draw(self, log_p: Tensor, members: list[int], count: int) -> Tensor:
        """(members, count) paths."""
        uniform = [torch.rand(count, generator=self.draws[member], dtype=log_p.dtype) for member in members]
        if not uniform:
            return torch.zeros(0, count, dtype=torch.long)
        return sample(log_p[members].detach(), torch.stack(uniform).to(log_p.device))

    @torch.no_grad()
    def _rewards(self, x: Tensor, y: Tensor, members: list[int], drawn: Tensor) -> Tensor:
        """(members, batch): every image by a path of its own. One pass through all fresh modules will do: where an
        image's path branches off, they are given what the old prefix makes of it."""
        rows = torch.tensor(members, device=x.device)
        with self.job.precision():
            trunk = self._trunk(x, self.paths.prefixes)
            live = trunk[()]
            for depth, block in enumerate(self.blocks):
                if depth:
                    live = self._branched(live, trunk, drawn.T, depth)
                live = block.forward(_rows(self._cells[depth].stack, rows), live, EVAL)
            live = self._branched(live, trunk, drawn.T, len(self.blocks))
        logits = live.to(self.job.task.mean.dtype).view(len(x), len(members), -1)
        macs = self.job.backbone.macs()
        self._spent[0] += len(members) * sum(macs) + self._trunk_macs(trunk)
        labels = y[:, None].expand(len(x), len(members))
        return -F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").T

    def _branched(self, live: Tensor, trunk: dict[Prefix, Tensor], drawn: Tensor, depth: int) -> Tensor:
        """`live`, with what the old prefixes of this depth give where their paths are drawn: (batch, members)."""
        each = live.view(*drawn.shape, -1, *live.shape[2:])
        for number, prefix in enumerate(self.paths.prefixes):
            if len(prefix) == depth:
                here = (drawn == number).view(*drawn.shape, *[1] * (each.dim() - 2))
                each = torch.where(here, trunk[prefix][:, None], each)
        return each.flatten(1, 2)

    def frozen(self, x: Tensor) -> Trunk:
        return NOTHING  # it is computed anew each time

    def logits(self, x: Tensor, known: Trunk = NOTHING) -> Tensor:
        logits, _, self._spent[1] = self._along(x, self._likeliest_walks(), evaluating)
        return logits

    def only(self, numbers: Sequence[int]) -> "Supernet":
        there = copy(self)
        there.members = [self.members[number] for number in numbers]
        there._cells, there._spent = [cut(cell, numbers) for cell in self._cells], [0, 0]
        return there

    def _along(self, x: Tensor, walks: list[Walk], modes: Modes) -> tuple[Tensor, list[Used], int]:
        """Members along a path each, for the whole batch: logits (batch, walks, classes), the rows of the stacks that
        were used, and the multiply-accumulates of an image."""
        order = sorted(walks, key=lambda walk: len(walk[1]))  # the first to branch off first, so that others join them
        members = torch.tensor([member for member, _ in order], device=x.device)
        live: list[Tensor] = []
        used: list[Used] = []
        going = 0
        with self.job.precision():
            trunk = self._trunk(x, [prefix for _, prefix in walks])
            for depth, block in enumerate(self.blocks):
                joining = [trunk[prefix] for _, prefix in order if len(prefix) == depth]
                going += len(joining)
                if going:
                    stack = _rows(self._cells[depth].stack, members[:going])
                    live = [block.forward(stack, join_unless_shared([*live, *joining]), modes(depth))]
                    used.append((depth, members[:going], stack))
        whole = [trunk[prefix] for _, prefix in order[going:]]
        logits = torch.cat([*live, *whole], 1).view(len(x), len(order), -1)
        macs = self.job.backbone.macs()
        spent = self._trunk_macs(trunk) + sum(len(rows) * macs[depth] for depth, rows, _ in used)
        return logits[:, [order.index(walk) for walk in walks]], used, spent

    def _trunk(self, x: Tensor, prefixes: Iterable[Prefix]) -> dict[Prefix, Tensor]:
        """What old prefixes make of images, and all shorter ones on the way: each is computed once."""
        known: dict[Prefix, Tensor] = {(): x.contiguous(memory_format=torch.channels_last)}
        for prefix in prefixes:
            behind(prefix, known, self.blocks, self.job.modules)
        return known

    def _trunk_macs(self, trunk: Iterable[Prefix]) -> int:
        macs = self.job.backbone.macs()
        return sum(macs[len(prefix) - 1] for prefix in trunk if prefix)

    def _backward_macs(self, used: list[Used]) -> int:
        """A gradient of the weights, and one of the input but at the first block, which has nothing before it."""
        macs, input_macs = self.job.backbone.macs(), self.job.backbone.input_macs()
        return sum(
            len(rows) * (2 * macs[depth] - (0 if place else input_macs[depth]))
            for place, (depth, rows, _) in enumerate(used)
        )

    def _gamma(self) -> Tensor:
        return self._cells[-1].stack[GAMMA]

    def _log_p(self) -> Tensor:
        return self.paths.log_probabilities(self._gamma())

    def _likeliest_walks(self) -> list[Walk]:
        return [(member, self.paths.prefixes[end]) for member, end in enumerate(self.paths.likeliest(self._gamma()))]

    def cells(self) -> list[tuple[int, Cell]]:
        return list(enumerate(self._cells))

    def keep(self, numbers: list[int]) -> None:
        self.members = [self.members[number] for number in numbers]
        self.fixed = [self.fixed[number] for number in numbers]
        self.fixed_at = [self.fixed_at[number] for number in numbers]
        self.draws = [self.draws[number] for number in numbers]
        for cell, optimiser in zip(self._cells, self.optimisers, strict=True):
            cell.stack, cell.members = take_rows(cell.stack, numbers), list(range(len(numbers)))
            optimiser.keep(numbers)

    def waiting_since(self, best: Tensor) -> Tensor:
        """Nobody stops before its path is fixed: the paths that are drawn until then get better by turns."""
        since = [at if fixed else self.steps for at, fixed in zip(self.fixed_at, self.fixed, strict=True)]
        return torch.maximum(best, best.new_tensor(since))

    def flops(self) -> tuple[int, int]:
        """Of the last step and the last evaluation, counted as in `cost.py`; without Γ's own few operations."""
        return FLOPS_PER_MAC * self._spent[0], FLOPS_PER_MAC * self._spent[1]

    def frozen_flops(self, known: Trunk = NOTHING) -> int:
        return 0


def halves(y: Tensor) -> tuple[Tensor, Tensor]:
    """The places of the first half of each class, rounded up, and of the second. The only image of a class is in both:
    neither step should know a class less than the other."""
    first = torch.zeros_like(y, dtype=torch.bool)
    second = torch.zeros_like(first)
    for label in y.unique():  # type: ignore[no-untyped-call]
        mine = (y == label).nonzero().flatten()
        middle = (len(mine) + 1) // 2
        first[mine[:middle]] = True
        second[mine[min(middle, len(mine) - 1) :]] = True
    return first.nonzero().flatten(), second.nonzero().flatten()


def _rows(stack: Stack, rows: Tensor) -> Stack:
    """Copies, with a gradient of their own where they are trained."""
    return {name: tensor.detach()[rows].requires_grad_(not is_buffer(name)) for name, tensor in stack.items()}
