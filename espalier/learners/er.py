"""Experience replay: one network trained on from task to task, on each new batch and as many remembered images.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019, algorithm 1, as the paper of MNTDP uses it
(Veniat, Denoyer, Ranzato, ICLR 2021, section 5): a head per task, batch norm with the first task's statistics, and the
mean cross-entropy over new and remembered images, each among the classes of its own task. On the fully connected
backbone tasks with as many classes share a head. All heads lie side by side in one wide head while a task is learned;
then it is cut, and every task is a plain path again.

The memory's size is not reckoned from tasks to come. The ring grows by `per_class` images with every class. So does the
reservoir, unless `budget` fixes it beforehand. Only a fixed one is a uniform sample of all images that ever came, since
what was dropped cannot come back; of one that grows, the new room goes to the task that brought it.

Images are remembered as they came, each once, and augmented anew when they are replayed; the released code of MNTDP
takes them from every epoch and stores them augmented, so a class with few images fills its part with versions of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from espalier.errors import InputError
from espalier.learners.episodic import Memory, reservoir, ring
from espalier.learners.lesson import Learned, Lesson, Path, all_fresh, paper_flops, to_device
from espalier.learners.options import option
from espalier.library import Change, TaskEntry
from espalier.nets import BIAS, State, backbone, numbers
from espalier.training import Copy, Rules, Trained, best
from espalier.training.rules import Outputs

EXTRA = "memory"
WIDE, FRESH = "all heads", "a new head"  # what is no module of the library


@dataclass(frozen=True)
class Er:
    kind: str = option("ring", "which images are remembered: 'ring', so many per class; 'reservoir', any alike")
    per_class: int = option(15, "images of the budget for each class of each task")
    budget: int | None = option(None, "of the reservoir: images in all, fixed beforehand; None: by per_class")

    def __post_init__(self) -> None:
        if self.kind not in ("ring", "reservoir"):
            raise InputError(f"there is no memory {self.kind!r}; use 'ring' or 'reservoir'.")
        if self.per_class < 1 or (self.budget is not None and self.budget < 1):
            raise InputError("a memory needs room for one image or more; give per_class and budget of 1 or more.")
        if self.kind == "ring" and self.budget is not None:
            raise InputError("a ring has per_class images of every class; leave budget to the reservoir.")

    def learn(self, lesson: Lesson) -> Learned:
        memory = _recall(lesson)
        learned = _train_on(lesson, memory) if lesson.library.tasks else lesson.keep_best([all_fresh(lesson)])
        memory = memory.after(lesson.task, self._chosen(lesson, memory))
        lesson.record("memory", {"images": len(memory)})
        # All blocks were trained, so the modules in use are the new ones.
        kept = kept_numbers([state for _, state in learned.change.modules.values()], memory)
        change = replace(learned.change, extras={EXTRA: memory.state()})
        return replace(learned, change=change, memory=kept)

    def _chosen(self, lesson: Lesson, memory: Memory) -> Tensor:
        """What to remember after the task: counts the images held before, then the task's own."""
        generator = lesson.job({}).generator("memory", device="cpu")
        held, new = len(memory), len(lesson.task.train)
        if self.kind == "ring":
            chosen = ring(lesson.task.train.y, lesson.task.n_classes, self.per_class, generator)
            return torch.cat([torch.arange(held), held + chosen])
        widths = [_width(lesson.library.state(path[-1])) for path in lesson.paths().values()]
        budget = self.budget or self.per_class * (sum(widths) + lesson.task.n_classes)
        coming = torch.cat([torch.arange(held), held + torch.randperm(new, generator=generator)])
        return coming[reservoir(held, int(memory.seen), new, budget, generator)]


def _recall(lesson: Lesson) -> Memory:
    if not lesson.library.tasks:
        return Memory.empty(lesson.task)
    memory = Memory(**to_device(lesson.library.extras()[EXTRA], lesson.task.train.x.device))
    memory.check_fits(lesson.task)
    return memory


def _train_on(lesson: Lesson, memory: Memory) -> Learned:
    """All blocks trained on, for all tasks, with the memory."""
    paths = lesson.paths()
    trunk = next(iter(paths.values()))[:-1]
    heads, own = _heads(lesson)
    parts = _parts(heads)
    wide = backbone(lesson.backbone.name, lesson.backbone.image, sum(map(_width, heads.values())))
    candidate = (*(Copy(module, keep_statistics=True) for module in trunk), Copy(WIDE))
    replay = memory.replay(tuple(parts[path[-1]] for path in paths.values()))
    outcome = lesson.train(
        [candidate],
        rules=Rules(replay=replay, outputs=parts[own]),
        states={WIDE: side_by_side(heads.values())},
        backbone=wide,
    )
    chosen = best(outcome.results)
    flops = paper_flops(outcome.results, chosen.member.setting, wide)
    change = _change(lesson, (*trunk, own), parts, chosen)
    return Learned(_with_own_head(chosen, parts[own]), change, flops, outcome.flops)


def _change(lesson: Lesson, path: Path, parts: Mapping[str, Outputs], chosen: Trained) -> Change:
    """The wide head cut, and all tasks on the new modules. `path` is this task's, of the modules that were copied."""
    *trunk, heads = (state for state in chosen.states if state is not None)
    *blocks, last = (block.name for block in lesson.backbone.blocks)
    new = {old: f"{lesson.name}.{block}" for old, block in zip(path, (*blocks, last), strict=True)}
    modules = lesson.new_modules([*trunk, None])
    for name, entry in lesson.library.tasks.items():
        new.setdefault(entry.path[-1], f"{lesson.name}.{last}.{name}")
    modules |= {new[head]: (last, cut(heads, part)) for head, part in parts.items()}
    entries = {
        name: TaskEntry(name, tuple(new[module] for module in entry.path), entry.info)
        for name, entry in lesson.library.tasks.items()
    }
    entries[lesson.name] = TaskEntry(lesson.name, tuple(new[module] for module in path), {})
    return Change(modules, entries)


def _heads(lesson: Lesson) -> tuple[dict[str, State], str]:
    """All heads by module, as this task finds them, and which of them is this task's: a fresh one, behind the others,
    or on the fully connected backbone the one of tasks with as many classes."""
    device = lesson.task.train.x.device
    heads = {path[-1]: to_device(lesson.library.state(path[-1]), device) for path in lesson.paths().values()}
    if lesson.backbone.plain_name == "fc":
        for module, state in heads.items():
            if _width(state) == lesson.task.n_classes:
                return heads, module
    return {**heads, FRESH: lesson.job({}).fresh()[-1]}, FRESH


def _parts(heads: Mapping[str, State]) -> dict[str, Outputs]:
    """Where each head lies in the wide one."""
    ends = list(accumulate(map(_width, heads.values()), initial=0))
    return dict(zip(heads, pairwise(ends), strict=True))


def side_by_side(heads: Iterable[State]) -> State:
    """One head with the outputs of all."""
    states = list(heads)
    return {name: torch.cat([state[name] for state in states]) for name in states[0]}


def cut(head: State, part: Outputs) -> State:
    """The head that has these of a wide head's outputs."""
    return {name: tensor[slice(*part)] for name, tensor in head.items()}


def _width(head: State) -> int:
    return len(head[BIAS])


def _with_own_head(chosen: Trained, part: Outputs) -> Trained:
    """The result as the task's path has it, without the other tasks' outputs."""

    def narrow(states: tuple[State | None, ...]) -> tuple[State | None, ...]:
        assert states[-1] is not None
        return (*states[:-1], cut(states[-1], part))

    return replace(chosen, states=narrow(chosen.states), early=tuple(map(narrow, chosen.early)))


def kept_numbers(states: Iterable[State], memory: Memory) -> int:
    """As the paper counts memory: the network's values, and of each image its pixels, its label and its task."""
    return sum(map(numbers, states)) + memory.numbers()
