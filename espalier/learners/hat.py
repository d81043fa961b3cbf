"""HAT: one network for all tasks; each task learns which units it uses, and what earlier tasks use stays as it is.

Serrà, Surís, Miron, Karatzoglou: "Overcoming Catastrophic Forgetting with Hard Attention to the Task", ICML 2018.
Every task has an embedding e for each unit; the unit's output is multiplied by σ(s·e) (equation 1, in `nets.gates`),
with s rising from 1/s_max to s_max (equation 3), and once the task is learned by 1 or 0. A weight between two units
that earlier tasks use is not changed (equation 2), and a penalty keeps tasks from using more new units than they need
(equations 4 and 5). Every task has a head, an embedding and, where there is batch norm, statistics of its own.

Other than in the paper: gates are exactly 0 or 1 once a task is learned, and it is the whole step of the optimiser that
is held back, weight decay too, so old answers stay the same, bit for bit. s rises over several epochs where one has
only a few steps. An embedding that begins with most gates shut is mirrored, for the sake of narrow layers. Rates are
chosen task by task on validation accuracy, not on the whole stream. Gradients are not clipped.

Knows nothing about how blocks compute, except which gate each of their layers reads and feeds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from espalier.errors import InputError
from espalier.learners.lesson import Learned, Lesson, paper_flops
from espalier.learners.options import option
from espalier.library import Change, TaskEntry, own_tensors
from espalier.nets import Backbone, Block, Mode, State, is_buffer, numbers
from espalier.nets.gates import attention
from espalier.training import Candidate, Copy, Fresh, Rules, Setting, Trained, best
from espalier.training.rules import Stacks

LIMIT = 6.0  # embeddings stay within ±LIMIT (section 2.5)
RISE = 10  # the fewest steps over which the sharpness rises

Masks = dict[str, Tensor]  # "block/tensor" of an embedding → one value per unit

# Of a piece's layers: behind which gate of the piece the units lie that it reads (None: the piece's input), and feeds.
LAYERS: dict[str, tuple[str | None, str]] = {
    "conv": (None, ""),
    "norm": (None, ""),
    "linear": (None, ""),
    "conv1": (None, "1"),
    "norm1": (None, "1"),
    "conv2": ("1", ""),
    "norm2": ("1", ""),
    "short": (None, ""),
    "short_norm": (None, ""),
}


@dataclass(frozen=True)
class Hat:
    rates: tuple[float, ...] = option(
        (5e-2, 1e-2, 5e-3, 1e-3), "learning rates to choose from for each task, beside the protocol's weight decays"
    )
    capacity: float = option(0.75, "weight of the penalty on units that no earlier task uses (c of equation 4)")
    sharpest: float = option(400.0, "the sharpness of the gates at its most (s_max)")

    def learn(self, lesson: Lesson) -> Learned:
        net, owned = lesson.backbone, lesson.library.extras()
        begin, past = _begin(lesson), used_units(net, owned.values())
        left = {key: (1 - mask).to(lesson.task.train.x.device) for key, mask in past.items()}
        rules = Rules(
            penalty=lambda stacks, mode: self.capacity * new_capacity(stacks, left, mode),
            project=limit,
            free=free_shares(net, list(begin.values()), left),
            sharpness=lambda step, epoch: (sharpness(step, epoch, self.sharpest), self.sharpest),
        )
        candidate: Candidate = (*(Copy(module) for module in begin), Fresh())
        outcome = lesson.train([candidate], self._settings(lesson), rules, begin)
        chosen = best(_sound(outcome.results))
        change = _change(lesson, chosen, owned)
        flops = paper_flops(outcome.results, chosen.member.setting, net)
        return Learned(chosen, change, flops, outcome.flops, _numbers_kept(lesson, change))

    def _settings(self, lesson: Lesson) -> list[Setting]:
        decays = dict.fromkeys(setting.weight_decay for setting in lesson.settings)
        return [Setting(rate, decay) for rate in self.rates for decay in decays]


def _begin(lesson: Lesson) -> dict[str, State]:
    """What the shared blocks begin with, by module: fresh weights, or those of the last task; new embeddings."""
    job, blocks = lesson.job({}), lesson.backbone.blocks[:-1]
    if lesson.library.tasks:
        name, entry = list(lesson.library.tasks.items())[-1]
        modules, states = entry.path, lesson.library.states(name)
    else:
        modules, states = tuple(f"{lesson.name}.{block.name}" for block in blocks), job.fresh()
    draws = [job.generator("embedding", block.name, device="cpu") for block in blocks]
    return {
        module: state | random_embeddings(block, draw)
        for module, state, block, draw in zip(modules, states, blocks, draws, strict=False)
    }


def _sound(results: Sequence[Trained]) -> list[Trained]:
    """Those without a value that overflowed: it would reach the shared weights of all tasks."""
    sound = [r for r in results if all(bool(t.isfinite().all()) for state in r.states for t in (state or {}).values())]
    if not sound:
        raise InputError("no learning rate trains HAT on this task without overflow; give it smaller ones.")
    return sound


def _change(lesson: Lesson, chosen: Trained, owned: Mapping[str, State]) -> Change:
    """New shared modules, which all tasks use from now on; the task's head, embeddings and statistics."""
    net, name = lesson.backbone, lesson.name
    states = [{key: t.cpu() for key, t in state.items()} for state in chosen.states if state is not None]
    modules = lesson.new_modules([{key: t for key, t in state.items() if not is_own(key)} for state in states])
    path = tuple(modules)
    own = {
        f"{block.name}/{key}": t
        for block, state in zip(net.blocks, states, strict=True)
        for key, t in state.items()
        if is_own(key)
    }
    extras = {**owned, own_tensors(name): own}
    tasks = {task: replace(entry, path=(*path[:-1], entry.path[-1])) for task, entry in lesson.library.tasks.items()}
    used = capacity_used(net, states[:-1], used_units(net, extras.values()))
    return Change(modules, {**tasks, name: TaskEntry(name, path, {"capacity_used": used})}, extras)


def _numbers_kept(lesson: Lesson, change: Change) -> int:
    """The shared weights once, and of every task its head and its own tensors."""
    heads = [lesson.library.modules[entry.path[-1]].numbers for entry in lesson.library.tasks.values()]
    new = [state for _, state in change.modules.values()]
    return sum(heads) + sum(map(numbers, [*new, *(change.extras or {}).values()]))


def embedding_name(place: str) -> str:
    """The tensor of a place that can have a gate: "0." → "0.embedding", "0.1" → "0.embedding1"."""
    piece, inner = place.split(".")
    return f"{piece}.embedding{inner}"


def is_own(name: str) -> bool:
    """Whether a tensor of a shared block is every task's own: an embedding, or a statistic of batch norm."""
    return ".embedding" in name or is_buffer(name)


def random_embeddings(block: Block, generator: torch.Generator) -> State:
    """Normal, as the authors have it, and mirrored where fewer than half of the gates would be open: in a layer of a
    few units all could be shut, and nothing would be learned."""
    state: State = {}
    for place, units in block.gates().items():
        drawn = torch.randn(units, generator=generator)
        state[embedding_name(place)] = drawn if (drawn > 0).sum() >= (drawn < 0).sum() else -drawn
    return state


def used_units(net: Backbone, owned: Iterable[State]) -> Masks:
    """1 for every unit that some task uses, whose own tensors these are; 0 for the others."""
    masks = {
        f"{block.name}/{embedding_name(place)}": torch.zeros(units)
        for block in net.blocks[:-1]
        for place, units in block.gates().items()
    }
    for own in owned:
        masks = {key: torch.maximum(mask, attention(own[key], None).to(mask)) for key, mask in masks.items()}
    return masks


def free_shares(net: Backbone, states: Sequence[State], left: Masks) -> dict[str, dict[str, Tensor]]:
    """Equation 2: for each shared tensor, by block, the share of its update that is made.

    `states` are those of the shared blocks; `left` has 1 for every unit that no earlier task uses.
    """
    given = torch.zeros(net.image[0], device=next(iter(left.values())).device)  # every task reads the image
    free: dict[str, dict[str, Tensor]] = {}
    for block, state in zip(net.blocks[:-1], states, strict=True):
        free[block.name] = {}
        for number, piece in enumerate(block.pieces):
            ends: dict[str | None, Tensor] = {None: given}
            ends |= {place: left[f"{block.name}/{number}.embedding{place}"] for place in piece.gates()}
            for name, tensor in state.items():
                if name.startswith(f"{number}.") and not is_own(name):
                    reads, feeds = LAYERS[name.split(".")[1]]
                    free[block.name][name] = free_share(tensor.shape, ends[reads], ends[feeds])
            given = ends.get("", given)
    return free


def free_share(shape: torch.Size, reads: Tensor, feeds: Tensor) -> Tensor:
    """1 - min(a_i, a_j) of a weight (out, in, …), 1 - a_i of a bias; from the 1 - a of the units it reads and feeds.

    Where maps were flattened a layer has several inputs for each unit it reads, one for each place of the map.
    """
    if len(shape) == 1:
        return feeds
    inputs = reads.repeat_interleave(shape[1] // len(reads))
    return torch.maximum(feeds[:, None], inputs).view(*shape[:2], *[1] * (len(shape) - 2))


def new_capacity(stacks: Stacks, left: Masks, mode: Mode) -> Tensor:
    """Equation 5: how much of what earlier tasks left each member uses, (members,); nothing, if nothing was left."""
    used = [attention(stacks[block][name], mode.sharpness) @ mask for (block, name), mask in _places(left)]
    return torch.stack(used).sum(0) / torch.cat(list(left.values())).sum().clamp(min=1)


def _places(masks: Masks) -> list[tuple[tuple[str, str], Tensor]]:
    return [((key.split("/")[0], key.split("/")[1]), mask) for key, mask in masks.items()]


def limit(stacks: Stacks) -> None:
    for stack in stacks.values():
        for name, tensor in stack.items():
            if ".embedding" in name:
                tensor.clamp_(-LIMIT, LIMIT)


def sharpness(step: int, epoch: int, most: float) -> float:
    """Equation 3, over an epoch's steps, or over as many epochs as have at least `RISE`."""
    steps = epoch * math.ceil(RISE / epoch)
    return 1 / most + (most - 1 / most) * (step % steps) / (steps - 1)


def capacity_used(net: Backbone, states: Sequence[State], used: Masks) -> float:
    """The share of the shared weights that no later task can change."""
    free = free_shares(net, states, {key: 1 - mask for key, mask in used.items()})
    shares = [
        free[block.name][name].expand_as(state[name])
        for block, state in zip(net.blocks[:-1], states, strict=True)
        for name in free[block.name]
    ]
    return 1 - sum(float(share.sum()) for share in shares) / sum(share.numel() for share in shares)
