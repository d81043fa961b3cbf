"""How many of the validation images members know, and who need not be asked about all of them. Knows nothing about
steps or stopping.

As many images as fit in one batch are asked at once. More are asked in parts, those first that were missed most lately.
A member that has missed as many as when it was best is not better now, whatever it makes of the rest: it is not asked
further. That changes results by rounding alone; it saves the more, the fewer images are missed and the fewer members
get better. The less there is to compute, the larger are the parts on a GPU: else it would wait for whoever asks.

What is asked of all members, at once or in parts, can be captured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import torch
from torch import Tensor

from espalier.training.cost import own_macs
from espalier.training.job import Job
from espalier.training.model import Model
from espalier.training.stacks import images_at_once
from espalier.training.trie import Prefix, Trunk

FROZEN_BYTES = 4 << 30  # at most as much is kept of what frozen modules make of validation images
PART = 0.5  # of a batch: so many images are asked at a time, or more, where there are more than one batch
NARROW = 0.65  # members are taken out of their stacks where no more than this share of the work is asked further
# On a GPU they are only if that saves so many operations, which it does in the time that taking them out takes (by
# estimate 4 ms: some hundred copies, and parts that are no longer captured).
NARROW_SAVES = 1.5e12


@dataclass(frozen=True)
class _Group:
    """Members that are asked as one model: their numbers, the work that each is, and all of it."""

    numbers: Tensor
    work: Tensor
    all_work: int


class Judge:
    """Asks the members of a model as they are at the time; `flops` counts the operations."""

    def __init__(self, job: Job, model: Model) -> None:
        self.job, self.model, self.flops = job, model, 0
        self.work = {member: own_macs(job.backbone, member) for member in model.members}  # of an image
        # The share of members that missed an image of late; those count more that are more work.
        self.difficulty = torch.zeros(len(job.task.val), device=job.device)
        self._noted = torch.empty(0, 0, device=job.device)  # where captured work leaves what all members missed

    @property
    def at_once(self) -> bool:
        return len(self.job.task.val) <= self.job.protocol.eval_batch

    @cached_property
    def _val(self) -> tuple[Tensor, Tensor, Trunk]:
        """The validation images, their labels, and what frozen modules make of them, which does not change while
        members train; as far as there is room, what is smallest first."""
        val = self.job.task.val
        x = self.job.task.normalise(val.x)
        parts = torch.split(x, self.job.protocol.eval_batch)
        first = self.model.frozen(parts[0])
        kept = _smallest(first, FROZEN_BYTES // len(parts))
        known: dict[Prefix, list[Tensor]] = {name: [] for name in kept}
        for frozen in chain([first], map(self.model.frozen, parts[1:])):
            for name in kept:
                known[name].append(frozen[name])
        self.flops += len(val) * self.model.frozen_flops()
        return x, val.y, {name: torch.cat(known.pop(name)) for name in kept}

    def accuracies(self) -> Tensor:
        """Of all members, at once."""
        x, y, known = self._val
        return (len(y) - _wrong(self.model, x, y, known).sum(0, dtype=torch.float64)) / len(y)

    def count_all(self) -> None:
        """All members were asked at once: maybe by captured work, which counts nothing."""
        self._count(self.model, len(self.job.task.val))

    def _count(self, model: Model, images: int) -> None:
        again = model.frozen_flops(self._val[2]) - model.frozen_flops()
        self.flops += images * (model.flops()[1] + again)

    def better_than(self, best: Tensor, asked: Sequence[int]) -> Tensor:
        """(members,): the accuracies of those of `asked` that are above their `best`; -1 for all others."""
        images = len(self._val[1])
        spare = images - (best * images).round()  # whoever misses as many is not better
        missed = torch.full_like(best, math.inf)  # as far as those go who are not asked
        missed[list(asked)] = 0
        work = [self.work[member] for member in self.model.members]
        model, part, group = self.model, self._part(self.model), self._group(range(len(work)), work)
        left = self.difficulty.argsort(descending=True, stable=True)  # the hardest first
        while len(left) and asked:
            if self._narrows(sum(work[n] for n in asked), group.all_work, len(left)):
                model, group = self.model.only(asked), self._group(asked, work)
                part = self._part(model)
            chosen, left = left[:part], left[part:]
            wrong = self._missed_by_all(chosen, part) if model is self.model else self._missed(model, chosen)
            self._count(model, len(chosen))
            counts = group.work * (missed[group.numbers] < spare[group.numbers])
            now = wrong.to(counts.dtype) @ (counts / counts.sum().clamp(min=1))  # 0 where nobody can be better
            self.difficulty[chosen] = (self.difficulty[chosen] + now) / 2
            missed[group.numbers] += wrong.sum(0)
            going = (missed < spare).tolist()  # here, once in a part, a GPU is waited for
            asked = [number for number in asked if going[number]]
        return torch.where(missed < spare, (images - missed) / images, -1.0)

    def _group(self, numbers: Sequence[int], work: Sequence[int]) -> _Group:
        own = [work[number] for number in numbers]
        return _Group(torch.tensor(numbers, device=self.job.device), self.difficulty.new_tensor(own), sum(own))

    def _narrows(self, asked: int, inside: int, images: int) -> bool:
        """Whether it pays to take out who is not asked further, given the work of members and the images left."""
        saves = 2 * images * (inside - asked)
        return asked <= NARROW * inside and (self.job.device.type == "cpu" or saves >= NARROW_SAVES)

    def _part(self, model: Model) -> int:
        """How many images are asked at a time, about as many each time."""
        images, part = len(self._val[1]), max(1, int(PART * self.job.protocol.eval_batch))
        if self.job.device.type == "cuda":
            part = max(part, images_at_once(self.job, model.members))
        return math.ceil(images / math.ceil(images / part))

    def _missed(self, model: Model, chosen: Tensor) -> Tensor:
        """(images, members), of these images."""
        x, y, known = self._val
        if len(chosen) == len(y):  # what is known can be large: it is not copied into another order
            return _wrong(model, x, y, known)[chosen]
        part = {name: _rows(made, chosen) for name, made in known.items()}
        return _wrong(model, _rows(x, chosen), y[chosen], part)

    def _missed_by_all(self, chosen: Tensor, part: int) -> Tensor:
        """As `_missed`, captured where that can be, and then until the next call. For the sake of a capture a part
        that is smaller than others is filled up, which nobody counts. What was captured goes with members who leave."""
        graphs, shape = self.model.graphs, (part, len(self.model.members))
        if graphs is None:
            return self._missed(self.model, chosen)
        if self._noted.shape != shape:
            self._noted = torch.empty(shape, dtype=torch.bool, device=self.job.device)
        filled = torch.cat([chosen, chosen[:1].expand(part - len(chosen))])
        graphs.run("part", self._note_missed, {"chosen": filled})
        return self._noted[: len(chosen)]

    def _note_missed(self, chosen: Tensor) -> None:
        self._noted.copy_(self._missed(self.model, chosen))


def _wrong(model: Model, x: Tensor, y: Tensor, known: Trunk) -> Tensor:
    """(images, members)."""
    return model.logits(x, known).argmax(2) != y[:, None]


def _rows(x: Tensor, chosen: Tensor) -> Tensor:
    """Of maps channels-last, as convolutions want them."""
    return x[chosen] if x.dim() != 4 else x.permute(0, 2, 3, 1)[chosen].permute(0, 3, 1, 2)


def _smallest(frozen: Trunk, room: int) -> list[Prefix]:
    """The names of those that have room together, in bytes."""
    names = sorted(frozen, key=lambda name: (frozen[name].nbytes, name))
    taken = accumulate(frozen[name].nbytes for name in names)
    return [name for name, so_far in zip(names, taken, strict=True) if so_far <= room]
