"""RCL: a controller, taught by reinforcement, says how many units each layer gets for a new task.

Xu, Zhu: "Reinforced Continual Learning", NeurIPS 2018, section 3. The first task is trained plainly. For each later one
the controller (see `rcl_controller`) samples children: the network so far, its weights frozen, with k₁, k₂, … new units
in its hidden layers and a head of its own. A child is trained; its reward is its validation accuracy - α · Σ k. After
all episodes the child with the best reward is kept. A new controller begins at every task.

All children of an episode are members of one stack: each has the greatest width there can be, and gates shut the units
that it lacks. A task's path holds its whole network at its own width; older tasks keep theirs, so nothing is forgotten.
What counts as memory is what the method must keep: the newest network, which holds all older ones, and every head.
Knows nothing about convolutions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from espalier.learners.lesson import Learned, Lesson, all_fresh, to_device
from espalier.learners.options import option
from espalier.learners.rcl_controller import Controller
from espalier.library import Change, TaskEntry
from espalier.nets import BIAS, WEIGHT, State, parameters, with_widths
from espalier.nets.pieces import uniform
from espalier.training import Candidate, Copy, Rules, Setting, Trained, best
from espalier.training.cost import forward_flops

Added = tuple[int, ...]  # new units of each hidden layer
GATE = "0.gate"


@dataclass(frozen=True)
class Rcl:
    most_new: int = option(30, "units a layer may get for a task, at most half its first width")
    alpha: float = option(1e-4, "what a new unit costs in validation accuracy")
    episodes: int = option(6, "updates of the controller for a task")
    children: int = option(8, "networks sampled and trained in an episode")
    controller_lr: float = option(0.03, "learning rate of the controller")

    def learn(self, lesson: Lesson) -> Learned:
        lesson.refuse_convolutions("rcl")
        if not lesson.library.tasks:
            learned = lesson.keep_best([all_fresh(lesson)])
            return replace(learned, memory=sum(parameters(state) for _, state in learned.change.modules.values()))
        return self._grow(lesson)

    def _grow(self, lesson: Lesson) -> Learned:
        last = list(lesson.library.tasks.values())[-1]
        old = [to_device(lesson.library.state(module), lesson.task.train.x.device) for module in last.path[:-1]]
        # The search has one setting, that of the task before; the child that is kept is tried with all of the grid.
        search = Setting(last.info["lr"], last.info["weight_decay"])
        most = min(self.most_new, max(1, lesson.backbone.shapes()[1][0] // 2))
        nursery = Nursery(lesson, old, most)
        tried = self._search(lesson, nursery, search)
        kept = max(tried, key=lambda child: reward(tried[child].val_accuracy, child, self.alpha))  # the first of equals
        others = nursery.train([kept], [setting for setting in lesson.settings if setting != search])
        chosen = best([tried[kept], *others])
        counted = list(tried.items()) + ([(kept, chosen)] if chosen is not tried[kept] else [])
        chosen = nursery.narrow(kept, chosen)
        modules = lesson.new_modules(chosen.states)
        change = Change(modules, {lesson.name: TaskEntry(lesson.name, tuple(modules), {"added": list(kept)})})
        paper_flops = sum(result.samples * nursery.forward_flops(child) for child, result in counted)
        memory = last.info["memory"] + nursery.new_numbers(kept)
        return Learned(chosen, change, paper_flops, nursery.flops, memory)

    def _search(self, lesson: Lesson, nursery: "Nursery", setting: Setting) -> dict[Added, Trained]:
        """All children that were sampled, in that order. One sampled again would come out the same: it is not trained
        again."""
        begin, draw = (lesson.job({}).generator("controller", what, device="cpu") for what in ("begin", "draw"))
        controller = Controller(len(nursery.old), nursery.most + 1, self.controller_lr, begin)
        tried: dict[Added, Trained] = {}
        for _ in range(self.episodes):
            actions = controller.sample(self.children, draw)
            children: list[Added] = [tuple(row) for row in actions.tolist()]
            new = [child for child in dict.fromkeys(children) if child not in tried]
            tried |= zip(new, nursery.train(new, [setting]), strict=True)
            rewards = [reward(tried[child].val_accuracy, child, self.alpha) for child in children]
            lesson.record("episode", {"added": children, "rewards": rewards, "value": controller.value().item()})
            controller.update(actions, torch.tensor(rewards))
        return tried


def reward(accuracy: float, added: Added, alpha: float) -> float:
    return accuracy - alpha * sum(added)


class Nursery:
    """Trains children of the network `old` (its hidden layers) that have up to `most` new units in each layer."""

    def __init__(self, lesson: Lesson, old: Sequence[State], most: int) -> None:
        self.lesson, self.old, self.most = lesson, old, most
        generator = lesson.job({}).generator("new units", device="cpu")
        self.widest = widened(old, [most] * len(old), lesson.task.n_classes, generator)
        self.blocks = [block.name for block in lesson.backbone.blocks]
        self.flops = 0

    def train(self, children: Sequence[Added], settings: Sequence[Setting]) -> list[Trained]:
        """All children under all settings, side by side at the greatest width."""
        if not children or not settings:
            return []
        states: dict[str, State] = {}
        candidates: list[Candidate] = []
        for child in children:
            names = [f"add{'+'.join(map(str, child))}.{block}" for block in self.blocks]
            states |= zip(names, shut(self.widest, self.widths(child)), strict=True)
            candidates.append(tuple(Copy(name) for name in names))
        wide = with_widths(self.lesson.backbone, [len(state[BIAS]) for state in self.widest[:-1]])
        rules = Rules(free=dict(zip(self.blocks, freedom(self.old, self.widest), strict=True)))
        outcome = self.lesson.train(candidates, settings, rules, states, wide)
        self.flops += outcome.flops
        return outcome.results

    def narrow(self, child: Added, result: Trained) -> Trained:
        """A child at its own width, without gates."""
        widths = self.widths(child)
        early = tuple(tuple(cut(_all(states), widths)) for states in result.early)
        return replace(result, states=tuple(cut(_all(result.states), widths)), early=early)

    def widths(self, child: Added) -> list[int]:
        return [len(state[BIAS]) + new for state, new in zip(self.old, child, strict=True)]

    def new_numbers(self, child: Added) -> int:
        """How many values a child has that the network before it has not: those that are trained."""
        free = freedom(self.old, cut(self.widest, self.widths(child)))
        return sum(int(share.sum()) for tensors in free for share in tensors.values())

    def forward_flops(self, child: Added) -> int:
        return forward_flops(with_widths(self.lesson.backbone, self.widths(child)))


def widened(old: Sequence[State], added: Sequence[int], classes: int, generator: torch.Generator) -> list[State]:
    """The hidden layers with new units behind the old ones, and a new head. New units read all units of the layer
    before; what an old unit would read from new ones begins at zero."""
    states: list[State] = []
    inputs = old[0][WEIGHT].shape[1]
    for state, new in zip([*old, None], [*added, classes], strict=True):
        drawn = uniform(generator, inputs, new, inputs), uniform(generator, inputs, new)
        weight, bias = (tensor.to(old[0][WEIGHT]) for tensor in drawn)
        if state is not None:
            padded = F.pad(state[WEIGHT], (0, inputs - state[WEIGHT].shape[1]))
            weight, bias = torch.cat([padded, weight]), torch.cat([state[BIAS], bias])
        states.append({WEIGHT: weight, BIAS: bias})
        inputs = len(bias)
    return states


def freedom(old: Sequence[State], states: Sequence[State]) -> list[State]:
    """Which values of a widened network are trained (1) and which stay (0), as `Rules.free` has it: old units also read
    nothing new."""
    free = [{name: torch.ones_like(tensor) for name, tensor in state.items()} for state in states]
    for share, state in zip(free, old, strict=False):
        units = len(state[BIAS])
        share[WEIGHT][:units] = 0
        share[BIAS][:units] = 0
    return free


def shut(states: Sequence[State], widths: Sequence[int]) -> list[State]:
    """The same network with gates that leave only the first units of each hidden layer."""
    gates = [torch.ones_like(state[BIAS]) for state in states[:-1]]
    for gate, width in zip(gates, widths, strict=True):
        gate[width:] = 0
    return [*(state | {GATE: gate} for state, gate in zip(states, gates, strict=False)), states[-1]]


def cut(states: Sequence[State], widths: Sequence[int]) -> list[State]:
    """The network of the first units of each hidden layer alone."""
    outputs = [*widths, len(states[-1][BIAS])]
    inputs = [states[0][WEIGHT].shape[1], *widths]
    return [
        {WEIGHT: state[WEIGHT][:units, :read].contiguous(), BIAS: state[BIAS][:units].contiguous()}
        for state, units, read in zip(states, outputs, inputs, strict=True)
    ]


def _all(states: Sequence[State | None]) -> list[State]:
    """The states of a member that trains every block."""
    return [state for state in states if state is not None]
