"""How many of the validation images members know, and who need not be asked about all of them. Knows nothing about
steps or stopping.

As many images as fit in one batch are asked at once, which can be captured. More are asked in parts, those first that
were missed most lately. A member that has missed as many as when it was best is not better now, whatever it makes of
the rest: it is not asked further. That changes results by rounding alone; it saves most of an evaluation in which few
get better. The fewer members are asked, and the less of each is not known, the larger are the parts on a GPU: else it
would wait for whoever asks.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain

import torch
from torch import Tensor

from espalier.training.job import Job
from espalier.training.model import Model
from espalier.training.trie import Prefix, Trunk

FROZEN_BYTES = 4 << 30  # at most as much is kept of what frozen modules make of validation images
PART = 0.5  # of a batch: so many images are asked at a time, or more, where there are more than one batch
WORTH = 1e12  # operations for which a GPU is asked at a time, or more
NARROW = 0.5  # members are taken out of their stacks where no more than this share of them is asked further


class Judge:
    """Asks the members of a model as they are at the time; `flops` counts the operations."""

    def __init__(self, job: Job, model: Model) -> None:
        self.job, self.model, self.flops = job, model, 0
        self.difficulty = torch.zeros(len(job.task.val), device=job.device)  # the share that missed it of late
        self._wrong = torch.empty(0, 0, device=job.device)  # where captured work leaves what all members missed

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
        return (len(y) - _missed(self.model, x, y, known).sum(0, dtype=torch.float64)) / len(y)

    def count_all(self) -> None:
        """All members were asked at once: maybe by captured work, which counts nothing."""
        self._count(self.model, len(self.job.task.val))

    def _count(self, model: Model, images: int) -> None:
        self.flops += images * self._per_image(model)

    def _per_image(self, model: Model) -> int:
        """Operations, without those whose results are known."""
        return model.flops()[1] + model.frozen_flops(self._val[2]) - model.frozen_flops()

    def better_than(self, best: Tensor, asked: Sequence[int]) -> Tensor:
        """(members,): the accuracies of those of `asked` that are above their `best`; -1 for all others."""
        images, missed = len(self._val[1]), torch.zeros_like(best)
        spare = images - (best * images).round()  # whoever misses as many is not better
        model, inside, part = self.model, list(range(len(best))), self._part(self.model)
        left = self.difficulty.argsort(descending=True, stable=True)  # the hardest first
        while len(left) and asked:
            if len(asked) <= NARROW * len(inside):
                model, inside = self.model.only(asked), list(asked)
                part = self._part(model)
            chosen, left = left[:part], left[part:]
            whole = model is self.model and len(chosen) == part
            found = self._missed_by_all(chosen) if whole else self._missed(model, chosen)
            wrong = found[:, [inside.index(number) for number in asked]]
            self._count(model, len(chosen))
            missed[asked] += wrong.sum(0)
            self.difficulty[chosen] = (self.difficulty[chosen] + wrong.float().mean(1)) / 2
            going = (missed < spare).tolist()
            asked = [number for number in asked if going[number]]
        accuracies = torch.full_like(best, -1.0)
        accuracies[asked] = (images - missed[asked]) / images
        return accuracies

    def _part(self, model: Model) -> int:
        """How many images are asked at a time, about as many each time."""
        images, part = len(self._val[1]), max(1, int(PART * self.job.protocol.eval_batch))
        if self.job.device.type == "cuda":
            part = max(part, int(WORTH / max(1, self._per_image(model))))
        return math.ceil(images / math.ceil(images / part))

    def _missed(self, model: Model, chosen: Tensor) -> Tensor:
        """(images, members), of these images."""
        x, y, known = self._val
        part = {name: _rows(made, chosen) for name, made in known.items()}
        return _missed(model, _rows(x, chosen), y[chosen], part)

    def _missed_by_all(self, chosen: Tensor) -> Tensor:
        """As `_missed`, captured where that can be; until the next call."""
        graphs, shape = self.model.graphs, (len(chosen), len(self.model.members))
        if graphs is None:
            return self._missed(self.model, chosen)
        if self._wrong.shape != shape:  # members have left, and what was captured with them
            self._wrong = torch.empty(shape, dtype=torch.bool, device=self.job.device)
        graphs.run("part", self._note_missed, {"chosen": chosen})
        return self._wrong

    def _note_missed(self, chosen: Tensor) -> None:
        self._wrong.copy_(self._missed(self.model, chosen))


def _missed(model: Model, x: Tensor, y: Tensor, known: Trunk) -> Tensor:
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
