"""The trainer: candidates in, trained candidates out. All members of a task run as one trie, on the same batches.

Knows nothing about libraries, learners or test images. Every member has its own setting, early stopping and best
state; members that stopped leave, and the stacks are packed again. What a member learns depends on the seed and on
itself alone, not on who else is trained beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import EVAL, Backbone, Mode, State
from espalier.nets.layers import Stack
from espalier.seeds import torch_seed
from espalier.streams.task import Place, Split, Task
from espalier.streams.transforms import augment
from espalier.training.adam import Adam
from espalier.training.candidate import Candidate, Member, ModuleStates, Reuse, Setting, Trained
from espalier.training.cost import forward_flops, trie_flops
from espalier.training.protocol import Protocol
from espalier.training.trie import Cell, Modes, Trie, evaluating, take_rows

CURVE = 5  # the learning curve is taken after 0 … 5 steps
PACK_WHEN_LEFT = 0.25  # the share of a stack that must have stopped before it is packed again

Progress = Callable[[int, int, int, float], None]  # step, most steps there can be, members still training, best so far


@dataclass(frozen=True, eq=False)
class Job:
    """One task's training: everything but the candidates. `modules` holds the states that candidates name."""

    task: Task
    backbone: Backbone
    modules: ModuleStates
    protocol: Protocol
    seed: int
    place: Place

    def fresh(self) -> list[State]:
        """How fresh modules begin: the same for all candidates of the task."""
        generators = (self.generator("fresh", block.name, device="cpu") for block in self.backbone.blocks)
        states = [block.init(g) for block, g in zip(self.backbone.blocks, generators, strict=True)]
        return [{name: t.to(self.device) for name, t in state.items()} for state in states]

    def generator(self, *purpose: str | int, device: str | torch.device | None = None) -> torch.Generator:
        return torch.Generator(device or self.device).manual_seed(torch_seed(self.seed, *self.place, *purpose))

    def modes(self, step: int) -> Modes:
        """How blocks run at a training step. A dropout mask is named by step and block: it is the same for every
        member, whatever else is in the stack."""
        return lambda depth: Mode(True, self.generator("dropout", step, self.backbone.blocks[depth].name))

    @property
    def device(self) -> torch.device:
        return self.task.train.x.device

    def batches(self, order: torch.Generator) -> list[Tensor]:
        """The train images of one epoch in random order, cut into batches; a last one of a single image, on which
        batch norm could not train, joins the one before."""
        shuffled = torch.randperm(len(self.task.train), generator=order, device=self.device)
        batches = list(torch.split(shuffled, self.protocol.batch))
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches


@dataclass(frozen=True, eq=False)
class Outcome:
    """All members trained, in the order of candidates, then settings; and the operations that really ran."""

    results: list[Trained]
    flops: int


def train(job: Job, candidates: Sequence[Candidate], settings: Sequence[Setting], progress: Progress) -> Outcome:
    """Every candidate under every setting. A candidate that trains nothing is only evaluated, under one."""
    members = [
        Member(candidate, setting)
        for candidate in candidates
        for setting in (settings if Member(candidate, settings[0]).trains else settings[:1])
    ]
    frozen = [m for m in members if not m.trains]
    results = dict(zip(frozen, (evaluate_frozen(job, member) for member in frozen), strict=True))
    flops = len(frozen) * len(job.task.val) * forward_flops(job.backbone)
    trained = [m for m in members if m.trains]
    if trained:
        run = _Run(job, trained, progress)
        run.train()
        results |= run.results
        flops += run.flops
    return Outcome([results[member] for member in members], flops)


def evaluate_frozen(job: Job, member: Member) -> Trained:
    """A member that trains nothing: its accuracy is what it is."""
    states = [job.modules[slot.module] for slot in member.candidate if isinstance(slot, Reuse)]
    correct = 0
    for x, y in eval_batches(job.task, job.task.val, job.protocol.eval_batch):
        correct += int((forward_path(job.backbone, states, x).argmax(1) == y).sum())
    nothing = tuple(None for _ in states)
    return Trained(member, correct / len(job.task.val), 0, 0, 0, nothing, (nothing,) * (CURVE + 1))


@torch.no_grad()
def forward_path(backbone: Backbone, states: Sequence[State], x: Tensor) -> Tensor:
    """Normalised images through one plain network: one state per block (or per block but the last ones)."""
    for block, state in zip(backbone.blocks, states, strict=False):
        x = block.forward({name: tensor[None] for name, tensor in state.items()}, x, EVAL)
    return x


def eval_batches(task: Task, split: Split, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for x, y in zip(torch.split(split.x, size), torch.split(split.y, size), strict=True):
        yield task.normalise(x), y


@dataclass(eq=False)
class _Trainee:
    """What training keeps of a trained cell besides its stack: the optimiser, the best state, the first steps'."""

    cell: Cell
    adam: Adam
    best: Stack
    early: list[Stack] = field(default_factory=list)

    def save_best(self, improved: Tensor) -> None:
        rows = improved[self.cell.members]
        for name, tensor in self.cell.stack.items():
            mask = rows.view(-1, *[1] * (tensor.dim() - 1))
            self.best[name] = torch.where(mask, tensor.detach(), self.best[name])

    def keep(self, rows: list[int]) -> None:
        """The cell was packed to these of its rows."""
        self.adam = self.adam.keep(self.cell.parameters(), rows)
        self.best = take_rows(self.best, rows)
        self.early = [take_rows(stack, rows) for stack in self.early]


class _Run:
    """The state of one training: the trie, its trainees, and what is known of each member."""

    def __init__(self, job: Job, members: list[Member], progress: Progress) -> None:
        self.job, self.progress = job, progress
        self.trie = Trie(job.backbone, members, job.modules, job.fresh())
        rates = torch.tensor([m.setting.lr for m in members], device=job.device)
        decays = torch.tensor([m.setting.weight_decay for m in members], device=job.device)
        self.trainees = [
            _Trainee(cell, Adam(cell.parameters(), rates[cell.members], decays[cell.members]), _copy(cell.stack))
            for cell in self.trie.trained_cells()
        ]
        self.best_accuracy = torch.full((len(members),), -1.0, dtype=torch.float64, device=job.device)
        self.best_step = torch.zeros(len(members), dtype=torch.long, device=job.device)
        self.stopped: dict[int, tuple[int, int]] = {}  # member's number → steps and samples until it stopped
        self.results: dict[Member, Trained] = {}
        self.step = self.samples = self.flops = 0
        self.best_seen = 0.0  # of all members, also those that left

    def train(self) -> None:
        job, protocol = self.job, self.job.protocol
        order, crops = job.generator("batches"), job.generator("augment")
        most = protocol.max_epochs * -(-len(job.task.train) // protocol.batch)
        self._remember_early()
        self._evaluate(most)
        for _ in range(protocol.max_epochs):
            batches = job.batches(order)
            for chosen in batches:
                x = augmented(job.task, chosen, protocol, crops)
                self._train_step(job.task.normalise(x), job.task.train.y[chosen])
                if self.step in protocol.early or chosen is batches[-1]:
                    self._evaluate(most)
                if not self.trie.members:
                    return
        self._leave(list(range(len(self.trie.members))))

    def _train_step(self, x: Tensor, y: Tensor) -> None:
        logits = self.trie.forward(x, self.job.modes(self.step))
        loss = member_losses(logits, y).sum()
        parameters = [p for trainee in self.trainees for p in trainee.adam.parameters]
        gradients = iter(torch.autograd.grad(loss, parameters))
        for trainee in self.trainees:
            trainee.adam.step(tuple(next(gradients) for _ in trainee.adam.parameters))
        self.step += 1
        self.samples += len(x)
        self.flops += len(x) * trie_flops(self.trie)[0]
        if self.step <= CURVE:
            self._remember_early()

    def _remember_early(self) -> None:
        for trainee in self.trainees:
            trainee.early.append(_copy(trainee.cell.stack))

    @torch.no_grad()
    def _evaluate(self, most: int) -> None:
        """Validation accuracy of every member; the best states are kept, and who has waited too long stops."""
        accuracy = self._accuracy()
        improved = accuracy > self.best_accuracy
        improved[list(self.stopped)] = False  # still in the stack, but no more in training
        self.best_accuracy = torch.where(improved, accuracy, self.best_accuracy)
        self.best_step = torch.where(improved, self.step, self.best_step)
        for trainee in self.trainees:
            trainee.save_best(improved)
        waited = (self.step - self.best_step >= self.job.protocol.patience).tolist()
        for number in range(len(waited)):
            if waited[number] and number not in self.stopped:
                self.stopped[number] = (self.step, self.samples)
        self.best_seen = max(self.best_seen, float(self.best_accuracy.max()))
        self.progress(self.step, most, len(waited) - len(self.stopped), self.best_seen)
        if len(self.stopped) >= max(1, PACK_WHEN_LEFT * len(self.trie.members)):
            self._leave(list(self.stopped))

    def _accuracy(self) -> Tensor:
        correct = torch.zeros(len(self.trie.members), dtype=torch.float64, device=self.job.device)
        for x, y in eval_batches(self.job.task, self.job.task.val, self.job.protocol.eval_batch):
            correct += (self.trie.forward(x, evaluating).argmax(2) == y[:, None]).sum(0)
        self.flops += len(self.job.task.val) * trie_flops(self.trie)[1]
        return correct / len(self.job.task.val)

    def _leave(self, numbers: list[int]) -> None:
        """Take down the results of these members, and pack the others."""
        for number in numbers:
            steps, samples = self.stopped.get(number, (self.step, self.samples))
            states = self._states(number, lambda trainee: trainee.best)
            early = [
                self._states(number, lambda trainee, at=at: trainee.early[at])  # type: ignore[misc]
                for at in (min(step, steps) for step in range(CURVE + 1))
            ]
            member = self.trie.members[number]
            accuracy, step = self.best_accuracy[number].item(), int(self.best_step[number])
            self.results[member] = Trained(member, accuracy, step, steps, samples, states, tuple(early))
        staying = [n for n in range(len(self.trie.members)) if n not in numbers]
        rows = [trainee.cell.rows_of(staying) for trainee in self.trainees]
        self.trie.keep(staying)
        for trainee, kept in zip(self.trainees, rows, strict=True):
            trainee.keep(kept)
        self.trainees = [trainee for trainee in self.trainees if trainee.cell.members]
        self.best_accuracy, self.best_step = self.best_accuracy[staying], self.best_step[staying]
        self.stopped = {}

    def _states(self, number: int, pick: Callable[[_Trainee], Stack]) -> tuple[State | None, ...]:
        """A member's trained modules, block by block, each a copy of its row in a stack."""
        at_depth: dict[int, State] = {}
        for trainee in self.trainees:
            if number in trainee.cell.members:
                row = trainee.cell.members.index(number)
                depth = next(d for d, cells in enumerate(self.trie.cells) if trainee.cell in cells)
                at_depth[depth] = {name: tensor[row].clone() for name, tensor in pick(trainee).items()}
        return tuple(at_depth.get(depth) for depth in range(len(self.trie.blocks)))


def augmented(task: Task, chosen: Tensor, protocol: Protocol, generator: torch.Generator) -> Tensor:
    """The chosen train images, cropped and mirrored at random; permuted pixels have no neighbours to be moved with."""
    x = task.train.x[chosen]
    pad = protocol.pad * x.shape[-1] // 32
    if task.spec.permutation is not None or not (pad or protocol.flip):
        return x
    return augment(x, generator, pad, protocol.flip)


def member_losses(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of each member: logits (batch, members, classes) → (members,)."""
    expanded = y[:, None].expand(logits.shape[:2])
    return F.cross_entropy(logits.transpose(1, 2), expanded, reduction="none").mean(0)


def _copy(stack: Stack) -> Stack:
    return {name: tensor.detach().clone() for name, tensor in stack.items()}
