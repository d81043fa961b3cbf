"""The prior: which past paths are worth perturbing for a task. Knows nothing about candidates.

`nearest`: the accuracy of a nearest-neighbour classifier in the feature space before a past task's head, fitted on
the new task's train images and scored on its val images (section 4 of the paper). `nearest-recoloured`: the better of
that and the same with the new images recoloured as the past task saw its own; a past task that saw the same things in
other colours is found so, though its first block makes little of the new ones. `random`: for the ablation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from espalier.errors import InputError
from espalier.learners.features import features, macs_of
from espalier.learners.lesson import Lesson, Path
from espalier.seeds import generator
from espalier.streams import transforms
from espalier.streams.task import Split, Task
from espalier.training.cost import FLOPS_PER_MAC

KINDS = ("nearest", "nearest-recoloured", "random")
NEIGHBOURS = 5
MOST_IMAGES = 1000  # of each split, taken evenly from the classes


@dataclass(frozen=True)
class Prior:
    """The `k` most promising past paths (None: all), by `kind`: "nearest", "nearest-recoloured" or "random"."""

    kind: str = "nearest"
    k: int | None = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"there is no prior {self.kind!r}; choose {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
        if self.k is not None and self.k < 1:
            raise InputError(f"a prior of {self.k} paths cannot be; choose 1 or more, or None for all.")

    def choose(self, lesson: Lesson) -> list[Path]:
        """Paths of the chosen tasks, the most promising first; ties go to the latest task."""
        paths = lesson.paths()
        if self.kind == "random":
            order = generator(lesson.seed, lesson.stream, lesson.index, "prior").permutation(len(paths))
            scores = dict(zip(paths, order.tolist(), strict=True))
        else:
            scores = dict(zip(paths, neighbour_accuracies(lesson, lesson.task, list(paths.values())), strict=True))
            if self.kind == "nearest-recoloured":
                recoloured = _recoloured_accuracies(lesson, paths)
                scores = {name: max(score, recoloured[name]) for name, score in scores.items()}
        lesson.record("prior", {"kind": self.kind, "scores": scores})
        latest_first = list(paths)[::-1]
        ranked = sorted(latest_first, key=lambda name: scores[name], reverse=True)  # sorting keeps the order of ties
        return list(dict.fromkeys(paths[name] for name in ranked))[: self.k]

    def flops(self, lesson: Lesson) -> int:
        """What `choose` runs: forward passes through all past paths, in each view of the images."""
        views: list[list[Path]] = []
        if self.kind != "random":
            views.append(list(lesson.paths().values()))
        if self.kind == "nearest-recoloured":
            views += [[lesson.library.tasks[name].path for name in alike] for alike in _alike(lesson).values()]
        images = sum(min(len(split), MOST_IMAGES) for split in (lesson.task.train, lesson.task.val))
        return FLOPS_PER_MAC * images * sum(macs_of(lesson, [path[:-1] for path in view]) for view in views)


def _recoloured_accuracies(lesson: Lesson, paths: Mapping[str, Path]) -> dict[str, float]:
    """As `neighbour_accuracies`, each past task looking at the images in the channels in which it saw anything."""
    scores: dict[str, float] = {}
    for channels, alike in _alike(lesson).items():
        view = recoloured(lesson.task, channels)
        scores |= dict(zip(alike, neighbour_accuracies(lesson, view, [paths[n] for n in alike]), strict=True))
    return scores


def _alike(lesson: Lesson) -> dict[tuple[int, ...], list[str]]:
    """The past tasks by their dead channels."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, entry in lesson.library.tasks.items():
        groups.setdefault(dead_channels(entry.info.get("std", ())), []).append(name)
    return groups


def dead_channels(std: Sequence[float]) -> tuple[int, ...]:
    """The channels that were constant in a past task: their deviation was set to exactly 1 (see `statistics`)."""
    return tuple(channel for channel, deviation in enumerate(std) if deviation == 1)


def recoloured(task: Task, dead: Sequence[int]) -> Task:
    """The task in grey, the same in every channel but the dead ones, which are constant; with its own statistics."""

    def grey(split: Split) -> Split:
        x = transforms.to_channels(transforms.to_channels(split.x, 1), split.x.shape[1]).clone()
        x[:, list(dead)] = 0
        return Split(x, split.y)

    mean, std = transforms.statistics(grey(task.train).x)
    return replace(task, train=grey(task.train), val=grey(task.val), mean=mean, std=std)


@torch.no_grad()
def neighbour_accuracies(lesson: Lesson, task: Task, paths: Sequence[Path]) -> list[float]:
    """One accuracy per path."""
    train, val = (_evenly(split, MOST_IMAGES) for split in (task.train, task.val))
    both = Split(torch.cat([train.x, val.x]), torch.cat([train.y, val.y]))  # so small tasks pass the modules once
    shares = {}
    for trunk, found in features(lesson, task, [path[:-1] for path in paths], both).items():
        predicted = nearest_labels(found[: len(train)], train.y, found[len(train) :], task.n_classes)
        shares[trunk] = (predicted == val.y).double().mean()
    scores = dict(zip(shares, torch.stack(list(shares.values())).tolist(), strict=True))  # a GPU is waited for once
    return [scores[path[:-1]] for path in paths]


def nearest_labels(known: Tensor, labels: Tensor, asked: Tensor, classes: int) -> Tensor:
    """The majority among the nearest neighbours (Euclidean); ties go to the smaller label."""
    distances = torch.cdist(asked, known, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.topk(min(NEIGHBOURS, len(known)), largest=False).indices
    votes = torch.nn.functional.one_hot(labels[nearest], classes).sum(1)
    return votes.argmax(1)


def _evenly(split: Split, most: int) -> Split:
    """At most `most` images: the first ones of each class, as many of each as go round."""
    if len(split) <= most:
        return split
    ranks = torch.empty_like(split.y)
    for label in split.y.unique():  # type: ignore[no-untyped-call]
        mine = (split.y == label).nonzero().flatten()
        ranks[mine] = torch.arange(len(mine), device=split.y.device)
    chosen = ranks.argsort(stable=True)[:most].sort().values
    return Split(split.x[chosen], split.y[chosen])
