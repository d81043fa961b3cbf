"""The trainer: candidates in, trained candidates out. All members of a task run as one model, on the same batches.

Knows nothing about libraries, learners or test images. Every member has its own setting, early stopping and best
state; members that stopped leave, and the stacks are packed again. What a member learns depends on the seed and on
itself alone, not on who else is trained beside it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from espalier.device import out_of_memory, release
from espalier.nets import State
from espalier.nets.layers import Stack
from espalier.training.candidate import Candidate, Member, Reuse, Setting, Trained
from espalier.training.cost import forward_flops
from espalier.training.job import Job, eval_batches
from espalier.training.judge import Judge
from espalier.training.model import Model, TrieModel
from espalier.training.renewal import Pair, Renewal
from espalier.training.stacks import together
from espalier.training.trie import Cell, take_rows

CURVE = 5  # the learning curve is taken after 0 … 5 steps
PACK_WHEN_LEFT = 0.25  # the share of the members that must have stopped before the others are packed again
# Where steps are captured they are packed once those who stopped have cost as much as so many steps of all members,
# which is about what capturing anew costs, and may cost as much again.
PACK_CAPTURED_AFTER = 30.0
LOOK_AFTER = 1.0  # seconds after which the accuracies are looked at, though nobody can have stopped

Progress = Callable[[int, int, int, float], None]  # step, most steps there can be, members still training, best so far


@dataclass(frozen=True, eq=False)
class Outcome:
    """All members trained, in the order of candidates, then settings; the operations that really ran, the steps that
    were made, and the seconds spent in them (on a GPU, in asking for them)."""

    results: list[Trained]
    flops: int
    steps: int = 0
    step_seconds: float = 0.0


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
    if not trained:
        return Outcome([results[member] for member in members], flops)
    outcome = _fit_in_turn(job, trained, progress)
    results |= {result.member: result for result in outcome.results}
    return replace(outcome, results=[results[member] for member in members], flops=flops + outcome.flops)


def _fit_in_turn(job: Job, members: Sequence[Member], progress: Progress) -> Outcome:
    """One stack after another. A stack for which there is not enough memory is cut into halves."""
    waiting = together(job, members, min(job.protocol.batch, len(job.task.train)))
    done: list[Outcome] = []
    while waiting:
        stack = waiting.pop(0)
        try:
            done.append(fit(job, TrieModel(job, stack), _part(progress, done, waiting)))
            continue
        except RuntimeError as error:
            if len(stack) == 1 or not out_of_memory(error):
                raise
        release(job.device)  # here, as the error held on to what there was
        half = len(stack) // 2
        waiting[:0] = [stack[:half], stack[half:]]
    return Outcome(
        [result for outcome in done for result in outcome.results],
        sum(outcome.flops for outcome in done),
        sum(outcome.steps for outcome in done),
        sum(outcome.step_seconds for outcome in done),
    )


def _part(progress: Progress, done: Sequence[Outcome], waiting: Sequence[Sequence[Member]]) -> Progress:
    """For a stack between others: the steps of all count."""
    first, parts, more = len(done), len(done) + 1 + len(waiting), sum(map(len, waiting))
    before = max((result.val_accuracy for outcome in done for result in outcome.results), default=0.0)

    def told(step: int, most: int, members: int, best: float) -> None:
        progress(first * most + step, parts * most, members + more, max(best, before))

    return told


def fit(job: Job, model: Model, progress: Progress) -> Outcome:
    """Train a model until all its members have stopped; the results are in the order of its members."""
    members = list(model.members)
    run = _Run(job, model, progress)
    run.train()
    return run.outcome(members)


def train_for(job: Job, member: Member, epochs: int, progress: Progress) -> Outcome:
    """One member for so many epochs, without a look at the validation images: as it is after the last step, and without
    a validation accuracy (-1).

    As no good moment can be picked, the learning rate falls to 0 in the second half: the end is one.
    """
    model = TrieModel(job, [member])
    run = _Run(job, model, progress)
    order, most = job.generator("batches"), epochs * job.steps_per_epoch()
    run.remember_early()
    for _ in range(epochs):
        for chosen in model.batches(order):
            model.slow_down(min(1.0, 2 * (1 - run.step / most)))
            run.train_step(chosen)
        progress(run.step, most, 1, run.best_seen)
    run.keep_last()
    return run.outcome([member])


def evaluation(job: Job, model: Model) -> Callable[[], None]:
    """What is done after every epoch, to be timed: all members on the validation images, and the best states kept."""
    run = _Run(job, model, lambda *told: None)
    assert run.judge.at_once, "of more images some are not asked, as nobody gets better here"
    return lambda: run._evaluate(0)


def evaluate_frozen(job: Job, member: Member) -> Trained:
    """A member that trains nothing: its accuracy is what it is."""
    states = [job.modules[slot.module] for slot in member.candidate if isinstance(slot, Reuse)]
    correct = 0
    for x, y in eval_batches(job.task, job.task.val, job.protocol.eval_batch):
        with job.precision():
            correct += int((job.backbone.forward(states, x).argmax(1) == y).sum())
    nothing = tuple(None for _ in states)
    return Trained(member, correct / len(job.task.val), 0, 0, 0, nothing, (nothing,) * (CURVE + 1))


@dataclass(eq=False)
class _Trainee:
    """What training keeps of a trained cell: the best states of its members, and those of the first steps."""

    place: int  # in a member's states
    cell: Cell
    best: Stack
    rows: Tensor  # the numbers of the cell's members
    early: list[Stack] = field(default_factory=list)

    def pairs(self) -> list[Pair]:
        return [Pair(tensor, self.best[name], self.rows) for name, tensor in self.cell.stack.items()]

    def keep(self, rows: list[int]) -> None:
        """The cell was packed to these of its rows."""
        self.best = take_rows(self.best, rows)
        self.rows = self.rows.new_tensor(self.cell.members)
        self.early = [take_rows(stack, rows) for stack in self.early]


class _Run:
    """The state of one training: the model, its trainees, and what is known of each member."""

    def __init__(self, job: Job, model: Model, progress: Progress) -> None:
        self.job, self.model, self.progress = job, model, progress
        self.judge = Judge(job, model)
        self.work = [self.judge.work[member] for member in model.members]
        self.trainees = [
            _Trainee(place, cell, _copy(cell.stack), torch.tensor(cell.members, device=job.device))
            for place, cell in model.cells()
        ]
        self.best_states = self._renewal()
        self.places = max(len(job.backbone.blocks), *(1 + trainee.place for trainee in self.trainees))
        count = len(model.members)
        self.best_accuracy = torch.full((count,), -1.0, dtype=torch.float64, device=job.device)
        self.best_step = torch.zeros(count, dtype=torch.long, device=job.device)
        self.active = torch.ones(count, dtype=torch.bool, device=job.device)  # not stopped
        self.now = torch.zeros((), dtype=torch.long, device=job.device)  # the step, where the device sees it
        self.stopped: dict[int, tuple[int, int]] = {}  # member's number → steps and samples until it stopped
        self.results: dict[Member, Trained] = {}
        self.step = self.samples = self.flops = 0
        self.step_seconds = 0.0
        self.lost = 0.0  # steps' worth of work on members that had stopped, since they were last packed
        self.best_seen = 0.0  # of all members, also those that left
        self.next_stop = 0  # no member can have waited too long before this step
        self.looked = time.monotonic()

    def train(self) -> None:
        protocol, order = self.job.protocol, self.job.generator("batches")
        most = protocol.max_epochs * self.job.steps_per_epoch()
        self.remember_early()
        self._evaluate(most)
        for _ in range(protocol.max_epochs):
            batches = self.model.batches(order)
            most = protocol.max_epochs * len(batches)  # a model may cut its own
            for chosen in batches:
                self.train_step(chosen)
                if self.step in protocol.early or chosen is batches[-1]:
                    self._evaluate(most)
                if not self.model.members:
                    return
        self._leave(list(range(len(self.model.members))))

    def outcome(self, members: Sequence[Member]) -> Outcome:
        flops = self.flops + self.judge.flops
        return Outcome([self.results[member] for member in members], flops, self.step, self.step_seconds)

    def keep_last(self) -> None:
        """All members stop, and what they are now is taken for their best."""
        self.best_states.renew(self.active)
        self.best_step.fill_(self.step)
        self._leave(list(range(len(self.model.members))))

    def train_step(self, chosen: Tensor) -> None:
        start = time.perf_counter()
        seen = self.model.step(chosen, self.step)
        self.step_seconds += time.perf_counter() - start
        self.step += 1
        self.samples += seen
        self.lost += self._idle()
        self.flops += seen * self.model.flops()[0]
        if self.step <= CURVE:
            self.remember_early()

    def remember_early(self) -> None:
        for trainee in self.trainees:
            trainee.early.append(_copy(trainee.cell.stack))

    @torch.no_grad()
    def _evaluate(self, most: int) -> None:
        """Validation accuracy of every member; the best states are kept, and who has waited too long stops.

        Where all images are asked at once, a GPU is asked how it went only when somebody can have stopped, or now and
        then for those who watch: it would stand still until it is given the next step.
        """
        self.now.fill_(self.step)
        if self.model.graphs is None or not self.judge.at_once:
            self._judge()
        else:
            self.model.graphs.run("evaluation", self._judge, {})
        if self.judge.at_once:
            self.judge.count_all()
        if self.step >= self.next_stop or time.monotonic() - self.looked > LOOK_AFTER:
            self._look()
        self.progress(self.step, most, len(self.model.members) - len(self.stopped), self.best_seen)
        if self._pays_to_pack(most):
            self._leave(list(self.stopped))

    def _idle(self) -> float:
        """The share of a step that goes into members who have stopped."""
        return sum(self.work[number] for number in self.stopped) / sum(self.work)

    def _pays_to_pack(self, most: int) -> bool:
        if not self.stopped:
            return False
        if len(self.stopped) == len(self.model.members):
            return True
        if self.model.graphs is None:
            return len(self.stopped) >= PACK_WHEN_LEFT * len(self.model.members)
        return min(self.lost, self._idle() * (most - self.step)) >= PACK_CAPTURED_AFTER

    def _look(self) -> None:
        """Ask who has waited too long, and when the next can have."""
        since = self.model.waiting_since(self.best_step).tolist()
        patience = self.job.protocol.patience
        for number in range(len(since)):
            if self.step - since[number] >= patience and number not in self.stopped:
                self.stopped[number] = (self.step, self.samples)
                self.active[number] = False
        self.next_stop = patience + min((at for n, at in enumerate(since) if n not in self.stopped), default=self.step)
        self.best_seen = max(self.best_seen, float(self.best_accuracy.max()))
        self.looked = time.monotonic()

    def _judge(self) -> None:
        """Note in place who is better than ever; who has stopped may still be in the stack, but trains no more."""
        accuracy = self._accuracy()
        improved = (accuracy > self.best_accuracy) & self.active
        self.best_accuracy.copy_(torch.where(improved, accuracy, self.best_accuracy))
        self.best_step.copy_(torch.where(improved, self.now, self.best_step))
        self.best_states.renew(improved)

    def _accuracy(self) -> Tensor:
        """Of all members; where many images are asked, -1 for those that are not better than ever."""
        if self.judge.at_once:
            return self.judge.accuracies()
        going = [number for number in range(len(self.model.members)) if number not in self.stopped]
        return self.judge.better_than(self.best_accuracy, going)

    def _leave(self, numbers: list[int]) -> None:
        self._take_down(numbers)
        self._pack([n for n in range(len(self.model.members)) if n not in numbers])
        self.stopped, self.lost = {}, 0.0

    def _take_down(self, numbers: list[int]) -> None:
        """The results of these members."""
        best = [_by_row(trainee.best) for trainee in self.trainees]
        early = [[_by_row(stack) for stack in stacks] for stacks in zip(*(t.early for t in self.trainees), strict=True)]
        accuracies, best_steps = self.best_accuracy.tolist(), self.best_step.tolist()
        for number in numbers:
            member = self.model.members[number]
            steps, samples = self.stopped.get(number, (self.step, self.samples))
            states = _copied(self._states(number, best))
            then = [self._states(number, early[step]) for step in range(min(CURVE, steps) + 1)]
            then += [_copied(then[-1]) for _ in range(CURVE + 1 - len(then))]
            self.results[member] = Trained(
                member, accuracies[number], best_steps[number], steps, samples, states, tuple(then)
            )

    def _pack(self, staying: list[int]) -> None:
        rows = [trainee.cell.rows_of(staying) for trainee in self.trainees]
        self.model.keep(staying)
        for trainee, kept in zip(self.trainees, rows, strict=True):
            trainee.keep(kept)
        self.trainees = [trainee for trainee in self.trainees if trainee.cell.members]
        self.best_accuracy, self.best_step = self.best_accuracy[staying], self.best_step[staying]
        self.active, self.work = self.active[staying], [self.work[number] for number in staying]
        self.best_states = self._renewal()

    def _renewal(self) -> Renewal:
        """Captured work stands where it is in memory."""
        pairs = [pair for trainee in self.trainees for pair in trainee.pairs()]
        return Renewal(pairs, in_place=self.model.graphs is not None)

    def _states(self, number: int, states_of: list[list[State]]) -> tuple[State | None, ...]:
        """A member's trained modules, block by block; `states_of` has those of each trainee, row by row."""
        found: list[State | None] = [None] * self.places
        for trainee, states in zip(self.trainees, states_of, strict=True):
            if number in trainee.cell.members:
                found[trainee.place] = states[trainee.cell.members.index(number)]
        return tuple(found)


def _copy(stack: Stack) -> Stack:
    """On a GPU in one kernel: there are thousands of tensors in all."""
    copies = {name: torch.empty_like(tensor) for name, tensor in stack.items()}
    torch._foreach_copy_(list(copies.values()), [tensor.detach() for tensor in stack.values()])
    return copies


def _copied(states: tuple[State | None, ...]) -> tuple[State | None, ...]:
    return tuple(None if state is None else _copy(state) for state in states)


def _by_row(stack: Stack) -> list[State]:
    """Each row of a stack as a state of its own, in the same memory."""
    rows = zip(*(tensor.unbind() for tensor in stack.values()), strict=True)
    return [dict(zip(stack, row, strict=True)) for row in rows]
