"""DEN: one fully connected net that retrains what a task needs, grows where that is not enough, and splits what drifts.

Yoon, Yang, Lee, Hwang: "Lifelong Learning with Dynamically Expandable Networks", ICLR 2018, algorithms 1 to 4 and
equations 2 to 6. What the paper leaves open is as in the authors' code: proximal steps take a fixed amount off after
every optimiser step, L2 and the pull towards the weights of before act whenever old weights are trained, and at most
as many units are split as are added. The authors' l1 is 1e-5 for trainings of 4,300 steps; in the short ones of the
mini streams that leaves no zeros, and so nothing to select. Each phase is trained as the protocol says (its epochs,
patience and grid) and starts from the best member of the one before. The arithmetic on nets is in `den_parts`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.learners.den_parts import (
    B,
    Net,
    W,
    added,
    between,
    connected,
    corner,
    drifted,
    group_soft,
    grown,
    open_to,
    padded,
    soft,
    split,
    widths,
    without_useless,
)
from espalier.learners.lesson import Learned, Lesson, to_device
from espalier.learners.options import option
from espalier.library import Change, TaskEntry, own_tensors
from espalier.nets import Backbone, Mode, State, numbers, with_widths
from espalier.training import Copy, Fresh, Reuse, Rules, Slot, Trained, best
from espalier.training.cost import forward_flops
from espalier.training.job import eval_batches
from espalier.training.rules import Stacks


@dataclass(frozen=True)
class Den:
    units: int = option(10, "k: units added to each hidden layer in an expansion, and the most that are split")
    l1: float = option(1e-4, "taken off every weight by each step under L1 sparsity (equations 2, 3 and 5)")
    group: float = option(1e-3, "taken off the length of a new unit's weights by each step (γ of equation 5)")
    l2: float = option(1e-4, "weight of the squared weights while old ones are trained (equation 4)")
    pull: float = option(0.5, "weight of the squared distance to the weights of before the task (λ of equation 6)")
    enough: float = option(0.01, "τ: no expansion where the loss on the train images is at most this")
    split_at: float = option(0.05, "σ: units whose incoming weights moved farther than this are split")

    def learn(self, lesson: Lesson) -> Learned:
        lesson.refuse_convolutions("den")
        if not lesson.library.tasks:
            return self._first(lesson)
        before = _trunk(lesson)
        work = Work(lesson, before)
        self._train_head(work)
        self._retrain_selected(work, before)
        loss = work.loss()
        expanded = self._expand(work) if loss > self.enough else [0 for _ in before]
        halved = self._split(work, before)
        return work.learned({"loss_selected": loss, "expanded": expanded, "split": halved})

    def _first(self, lesson: Lesson) -> Learned:
        """Equation 2."""

        def sparse(stacks: Stacks) -> None:
            for stack in stacks.values():
                stack[W].copy_(soft(stack[W], self.l1))

        work = Work(lesson, [])
        work.train([Fresh() for _ in lesson.backbone.blocks], Rules(project=sparse))
        return work.learned({})

    def _train_head(self, work: "Work") -> None:
        """Equation 3: a sparse head on the layers as they are."""

        def sparse(stacks: Stacks) -> None:
            stacks["head"][W].copy_(soft(stacks["head"][W], self.l1))

        names = work.names()
        work.train([*(Reuse(name) for name in names[:-1]), Fresh()], Rules(project=sparse))

    def _retrain_selected(self, work: "Work", before: Net) -> None:
        """Equation 4, for the units that are connected to the task's outputs."""
        free = between(work.net, connected(work.net))
        work.train(work.copies(), Rules(penalty=self._penalty(work, before), free=work.by_block(free)))

    def _expand(self, work: "Work") -> list[int]:
        """Equation 5: new units, trained with sparsity; the useless ones go. Gives how many stay in each layer."""
        old = widths(work.net)
        work.net = grown(work.net, self.units, work.lesson.job({}).generator("den", "grown", device="cpu"))
        free = work.by_block(added(work.net, old))
        hidden = list(zip(work.blocks[:-1], old, strict=True))

        def sparse(stacks: Stacks) -> None:
            for block, stack in stacks.items():
                stack[W].copy_(torch.where(free[block][W] > 0, soft(stack[W], self.l1), stack[W]))
            for block, first in hidden:
                weight, bias = stacks[block][W][:, first:], stacks[block][B][:, first:]
                units = group_soft(torch.cat([weight, bias[..., None]], -1), self.group)
                weight.copy_(units[..., :-1])
                bias.copy_(units[..., -1])

        work.train(work.copies(), Rules(project=sparse, free=free))
        work.net = without_useless(work.net, old)
        return [now - first for now, first in zip(widths(work.net), old, strict=True)]

    def _split(self, work: "Work", before: Net) -> list[int]:
        """Algorithm 4: units that moved too far become two; then all is trained on under equation 6."""
        units = drifted(work.net, before, self.split_at, self.units)
        if any(units):
            work.net = split(work.net, before, units)
            work.train(work.copies(), Rules(penalty=self._penalty(work, before)))
        return [len(layer) for layer in units]

    def _penalty(self, work: "Work", before: Net) -> Callable[[Stacks, Mode], Tensor]:
        """l2/2 ‖W‖² + pull/2 ‖W - W'‖², the latter over what there was before."""
        old = dict(zip(work.blocks, before, strict=False))

        def penalty(stacks: Stacks, mode: Mode) -> Tensor:
            terms = []
            for block, stack in stacks.items():
                for name in (W, B):
                    terms.append(self.l2 / 2 * _squared(stack[name]))
                    if block in old:
                        moved = corner(stack[name], old[block][name]) - old[block][name]
                        terms.append(self.pull / 2 * _squared(moved))
            return torch.stack(terms).sum(0)

        return penalty


def _squared(stack: Tensor) -> Tensor:
    return stack.square().flatten(1).sum(1)


@dataclass(eq=False)
class Work:
    """One task's training: the net as it is now, and what it took."""

    lesson: Lesson
    net: Net
    chosen: list[Trained] = field(default_factory=list)  # the best member of each phase
    starts: list[Net] = field(default_factory=list)  # what each phase began with
    paper_flops: int = 0
    flops: int = 0

    @property
    def blocks(self) -> list[str]:
        return [block.name for block in self.lesson.backbone.blocks]

    def names(self) -> list[str]:
        """Of the task's modules."""
        return [f"{self.lesson.name}.{block}" for block in self.blocks]

    def copies(self) -> list[Slot]:
        return [Copy(name) for name in self.names()]

    def by_block(self, states: Sequence[State]) -> dict[str, State]:
        return dict(zip(self.blocks, states, strict=True))

    def backbone(self) -> Backbone:
        """The lesson's, as wide as the net is now."""
        plain, hidden = self.lesson.backbone, self.net[: len(self.blocks) - 1]
        return with_widths(plain, [len(layer[B]) for layer in hidden]) if hidden else plain

    def train(self, slots: Sequence[Slot], rules: Rules) -> None:
        """Train the net, a slot per block, and go on with the best member; a re-used block stays as it is."""
        backbone = self.backbone()
        states = dict(zip(self.names(), self.net, strict=False))
        outcome = self.lesson.train([tuple(slots)], rules=rules, states=states, backbone=backbone)
        result = best(outcome.results)
        self.starts.append(self.net)
        self.chosen.append(result)
        self.net = _filled(result.states, self.net)
        self.paper_flops += result.samples * forward_flops(backbone)
        self.flops += outcome.flops

    def loss(self) -> float:
        """Mean cross-entropy on the train images."""
        task, backbone = self.lesson.task, self.backbone()
        batches = eval_batches(task, task.train, self.lesson.protocol.eval_batch)
        total = sum(F.cross_entropy(backbone.forward(self.net, x), y, reduction="sum").item() for x, y in batches)
        self.flops += len(task.train) * forward_flops(backbone)
        return total / len(task.train)

    def learned(self, told: dict[str, object]) -> Learned:
        """The net for all tasks: old ones use its hidden layers too, gated to the units they know."""
        lesson, library, width = self.lesson, self.lesson.library, widths(self.net)
        modules = lesson.new_modules(self.net)
        path = tuple(modules)
        tasks = {lesson.name: TaskEntry(lesson.name, path, {"units": width, **told})}
        extras = {own_tensors(lesson.name): self._gates(width)}
        heads = numbers(self.net[-1])
        for name, known in _known_units(lesson).items():
            module = library.tasks[name].path[-1]
            head = library.state(module)
            heads += len(head[B]) * (known[-1] + 1)  # the zeros for newer units need not be kept
            if head[W].shape[1] < width[-1]:
                module, head = f"{lesson.name}.head.{name}", padded(head, width[-1])
                modules[module] = ("head", head)
            tasks[name] = TaskEntry(name, (*path[:-1], module), library.tasks[name].info)
            extras[own_tensors(name)] = self._gates(known)
        # One stamp per hidden unit says all that the gates do.
        memory = sum(map(numbers, self.net[:-1])) + heads + sum(width)
        return Learned(self._summary(), Change(modules, tasks, extras), self.paper_flops, self.flops, memory)

    def _gates(self, known: Sequence[int]) -> State:
        parts = zip(self.blocks[:-1], known, widths(self.net), strict=True)
        return {f"{block}/0.gate": open_to(units, width) for block, units, width in parts}

    def _summary(self) -> Trained:
        """All phases as one: the first steps are those of the first phase."""
        first, last = self.chosen[0], self.chosen[-1]
        return replace(
            last,
            steps=sum(phase.steps for phase in self.chosen),
            samples=sum(phase.samples for phase in self.chosen),
            states=tuple(self.net),
            early=tuple(tuple(_filled(states, self.starts[0])) for states in first.early),
        )


def _filled(trained: Sequence[State | None], net: Sequence[State]) -> Net:
    return [net[depth] if state is None else state for depth, state in enumerate(trained)]


def _trunk(lesson: Lesson) -> Net:
    """The hidden layers as the last task left them."""
    last = list(lesson.library.tasks.values())[-1]
    return [to_device(lesson.library.state(module), lesson.task.train.x.device) for module in last.path[:-1]]


def _known_units(lesson: Lesson) -> dict[str, list[int]]:
    """How many units of each hidden layer there were when a task had been learned: those with its stamp or an older."""
    extras = lesson.library.extras()
    blocks = [block.name for block in lesson.backbone.blocks[:-1]]
    return {
        name: [int(extras[own_tensors(name)][f"{block}/0.gate"].sum()) for block in blocks]
        for name in lesson.library.tasks
    }
