"""EWC and online EWC: one network trained on, held back where earlier tasks need it.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017, equation 3: the loss of a task
plus λ/2 · Σ_t Σ_i F_t,i (θ_i - θ_t,i)², F the diagonal of the Fisher information at the end of each earlier task t.
Online: Schwarz et al., "Progress & Compress", ICML 2018, section 2.2: one F, decayed by γ at every task, anchored at
the last weights.

The sum over tasks folds: it is Σ_i A_i θ_i² - 2 B_i θ_i + c with A = ΣF, B = ΣFθ_t, c = ΣFθ_t². So two tensors do,
and a step costs the same after any number of tasks; the memory that is reported is nevertheless the paper's count, a
Fisher and an anchor per task. Every task has a head of its own, free of the penalty; with the fully connected
backbone all tasks share one, as in MNTDP's experiments, while they have as many classes. Batch norm keeps the first
task's statistics. Unlike in MNTDP's released code the Fisher matrix is that of images without augmentation, and the
first task, which has no penalty yet, is trained under the whole grid.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from espalier.learners.lesson import Learned, Lesson, all_fresh, to_device
from espalier.learners.options import option
from espalier.library import Change
from espalier.nets import EVAL, Backbone, State, is_buffer, parameters
from espalier.training import Copy, Fresh, Rules, Setting, Slot
from espalier.training.cost import FLOPS_PER_MAC, forward_flops
from espalier.training.rules import Stacks

FISHER_IMAGES = 1024  # at most this many train images
AT_ONCE = 64  # per-image gradients held together
KINDS = ("fisher", "pull", "constant")


@dataclass(frozen=True)
class Ewc:
    strength: float = option(100.0, "λ, how much old weights are held")
    online: bool = option(False, "one decayed Fisher matrix and the last weights, instead of a sum over tasks")
    decay: float = option(0.9, "γ, what is left of the old Fisher matrix at each task, online")

    def learn(self, lesson: Lesson) -> Learned:
        if not lesson.library.tasks:
            learned = lesson.keep_best([all_fresh(lesson)])
            folded = Folded()
        else:
            *trunk, head = list(lesson.paths().values())[-1]
            slots: list[Slot] = [Copy(module, keep_statistics=True) for module in trunk]
            slots.append(Copy(head, keep_statistics=True) if _shares_head(lesson) else Fresh())
            folded = Folded.read(to_device(lesson.library.extras()["ewc"], lesson.task.train.x.device))
            folded = folded.of(_shared_names(lesson))
            rules = Rules(penalty=lambda stacks, mode: self.strength / 2 * folded.distance(stacks))
            learned = lesson.keep_best([tuple(slots)], replace_copied=True, settings=_settings(lesson), rules=rules)
        states = [state for state in learned.chosen.states if state is not None]
        folded = self._with_this_task(lesson, folded, states)
        change = Change(learned.change.modules, learned.change.tasks, {"ewc": folded.written()})
        flops = learned.flops + fisher_flops(lesson)
        return replace(learned, change=change, flops=flops, memory=self.memory(lesson, states))

    def _with_this_task(self, lesson: Lesson, folded: "Folded", states: Sequence[State]) -> "Folded":
        shared = _shared_names(lesson)
        fisher = {name: tensor for name, tensor in fisher_diagonal(lesson, states).items() if name in shared}
        weights = {
            f"{b.name}/{n}": t for b, s in zip(lesson.backbone.blocks, states, strict=True) for n, t in s.items()
        }
        if not self.online:
            return folded.plus(fisher, weights)
        decayed = {name: self.decay * old for name, old in folded.fisher.items()}
        return Folded().plus(_sum(decayed, fisher), weights)

    def memory(self, lesson: Lesson, states: Sequence[State]) -> int:
        """The network and its heads, without statistics, and as many Fishers and anchors of what is shared."""
        *trunk, head = [parameters(state) for state in states]
        shared, tasks = sum(trunk), lesson.index + 1
        if _shares_head(lesson):
            shared, heads = shared + head, 0
        else:
            old = dict.fromkeys(path[-1] for path in lesson.paths().values())  # some tasks may share one
            heads = head + sum(parameters(lesson.library.state(module)) for module in old)
        return shared + heads + 2 * shared * (1 if self.online else tasks)


@dataclass(frozen=True, eq=False)
class Folded:
    """Σ_t F_t (θ - θ_t)² as A θ² - 2 B θ + c, each by "block/tensor"."""

    fisher: Mapping[str, Tensor] = field(default_factory=dict)  # A = Σ F
    pull: Mapping[str, Tensor] = field(default_factory=dict)  # B = Σ F θ_t
    constant: Mapping[str, Tensor] = field(default_factory=dict)  # c = Σ F θ_t²

    def plus(self, fisher: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> "Folded":
        pull = {name: f * weights[name] for name, f in fisher.items()}
        constant = {name: (p * weights[name]).sum() for name, p in pull.items()}
        return Folded(_sum(self.fisher, fisher), _sum(self.pull, pull), _sum(self.constant, constant))

    def of(self, names: Container[str]) -> "Folded":
        """Without all other tensors."""
        parts = ({n: t for n, t in part.items() if n in names} for part in (self.fisher, self.pull, self.constant))
        return Folded(*parts)

    def distance(self, stacks: Stacks) -> Tensor:
        """(members,): the sum over all shared values."""
        terms = []
        for name, fisher in self.fisher.items():
            block, tensor = name.split("/")
            theta = stacks[block][tensor]
            moved = (theta * (fisher * theta - 2 * self.pull[name])).flatten(1).sum(1)
            terms.append(moved + self.constant[name])
        return torch.stack(terms).sum(0)

    def written(self) -> State:
        return {f"{kind}/{name}": t for kind in KINDS for name, t in getattr(self, kind).items()}

    @staticmethod
    def read(state: State) -> "Folded":
        parts = (
            {name.removeprefix(f"{kind}/"): t for name, t in state.items() if name.startswith(f"{kind}/")}
            for kind in KINDS
        )
        return Folded(*parts)


def fisher_diagonal(lesson: Lesson, states: Sequence[State]) -> dict[str, Tensor]:
    """The mean over train images of the squared gradient of the log-likelihood, by "block/tensor".

    The label is the network's own answer, with the fully connected backbone the true one, as in the released code.
    """
    task, backbone = lesson.task, lesson.backbone
    draw = lesson.job({}).generator("fisher")
    chosen = torch.randperm(len(task.train), generator=draw, device=task.train.x.device)[:FISHER_IMAGES]
    x, y = task.normalise(task.train.x[chosen]), task.train.y[chosen]
    if not _fully_connected(lesson):
        y = torch.cat([backbone.forward(states, part).argmax(1) for part in torch.split(x, AT_ONCE)])
    return mean_squared_gradients(backbone, states, x, y)


def fisher_flops(lesson: Lesson) -> int:
    """What `fisher_diagonal` runs: forward and backward passes, without the gradient of the images, and for labels."""
    backbone, images = lesson.backbone, min(len(lesson.task.train), FISHER_IMAGES)
    passes = 3 if _fully_connected(lesson) else 4
    return images * (passes * forward_flops(backbone) - FLOPS_PER_MAC * backbone.input_macs()[0])


def mean_squared_gradients(backbone: Backbone, states: Sequence[State], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of the cross-entropy of each image alone, in evaluation mode; all images' gradients at once, some at a time."""
    named = {f"{b.name}/{name}": t for b, s in zip(backbone.blocks, states, strict=True) for name, t in s.items()}
    trained = {name: tensor for name, tensor in named.items() if not is_buffer(name)}

    def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        out = image[None]
        for block in backbone.blocks:
            own = {n.split("/")[1]: t[None] for n, t in (named | parameters).items() if n.startswith(f"{block.name}/")}
            out = block.forward(own, out, EVAL)
        return F.cross_entropy(out, label[None])

    total = {name: torch.zeros_like(tensor) for name, tensor in trained.items()}
    for images, labels in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True):
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(trained, images, labels)
        for name, gradient in gradients.items():
            total[name] += gradient.square().sum(0)
    return {name: tensor / len(x) for name, tensor in total.items()}


def _shared_names(lesson: Lesson) -> set[str]:
    """The parameters that all tasks share, as "block/tensor"."""
    shared = lesson.backbone.blocks if _shares_head(lesson) else lesson.backbone.blocks[:-1]
    draw = torch.Generator()
    return {f"{block.name}/{name}" for block in shared for name in block.init(draw) if not is_buffer(name)}


def _sum(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: left[name] + tensor if name in left else tensor for name, tensor in right.items()}


def _settings(lesson: Lesson) -> list[Setting]:
    """The smallest learning rate alone, as in the released code; the fully connected backbone tries all."""
    if _fully_connected(lesson):
        return list(lesson.settings)
    slowest = min(setting.lr for setting in lesson.settings)
    return [setting for setting in lesson.settings if setting.lr == slowest]


def _fully_connected(lesson: Lesson) -> bool:
    return lesson.backbone.plain_name == "fc"


def _shares_head(lesson: Lesson) -> bool:
    if not _fully_connected(lesson):
        return False
    return all(lesson.head_fits(path) for path in lesson.paths().values())
