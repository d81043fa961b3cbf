"""The prior: which past paths are worth perturbing for a task. Knows nothing about candidates.

`nearest`: the accuracy of a nearest-neighbour classifier in the feature space before a past task's head, fitted on
the new task's train images and scored on its val images (section 4 of the paper). `random`: for the ablation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.learners.lesson import Lesson, Path, to_device
from espalier.nets import Backbone, State
from espalier.seeds import generator
from espalier.streams.task import Split
from espalier.training.train import eval_batches, forward_path

NEIGHBOURS = 5
MOST_IMAGES = 1000  # of each split, taken evenly from the classes


@dataclass(frozen=True)
class Prior:
    """The `k` most promising past tasks (None: all of them), by `kind`: "nearest" or "random"."""

    kind: str = "nearest"
    k: int | None = 1

    def choose(self, lesson: Lesson) -> list[Path]:
        """Paths of the chosen tasks, the most promising first; ties go to the latest task."""
        paths = lesson.paths()
        if self.kind == "random":
            order = generator(lesson.seed, lesson.stream, lesson.index, "prior").permutation(len(paths))
            scores = dict(zip(paths, order.tolist(), strict=True))
        else:
            scores = dict(zip(paths, neighbour_accuracies(lesson, list(paths.values())), strict=True))
        lesson.record("prior", {"kind": self.kind, "scores": scores})
        latest_first = list(paths)[::-1]
        ranked = sorted(latest_first, key=lambda name: scores[name], reverse=True)  # sorting keeps the order of ties
        return [paths[name] for name in ranked[: self.k]]


def neighbour_accuracies(lesson: Lesson, paths: Sequence[Path]) -> list[float]:
    """One accuracy per path. Paths that share their first blocks share the forward passes through them."""
    train, val = (_evenly(split, MOST_IMAGES) for split in (lesson.task.train, lesson.task.val))
    device = lesson.task.train.x.device
    trunks = list(dict.fromkeys(path[:-1] for path in paths))
    modules = {m: to_device(lesson.library.state(m), device) for trunk in trunks for m in trunk}
    train_features, val_features = (
        _features(lesson, trunks, modules, split, lesson.protocol.eval_batch) for split in (train, val)
    )
    scores = {}
    for trunk in trunks:
        predicted = nearest_labels(train_features[trunk], train.y, val_features[trunk], lesson.task.n_classes)
        scores[trunk] = (predicted == val.y).double().mean().item()
    return [scores[path[:-1]] for path in paths]


def nearest_labels(known: Tensor, labels: Tensor, asked: Tensor, classes: int) -> Tensor:
    """The majority among the nearest neighbours (Euclidean); ties go to the smaller label."""
    distances = torch.cdist(asked, known, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.topk(min(NEIGHBOURS, len(known)), largest=False).indices
    votes = torch.nn.functional.one_hot(labels[nearest], classes).sum(1)
    return votes.argmax(1)


def _features(
    lesson: Lesson, trunks: Sequence[Path], modules: dict[str, State], split: Split, size: int
) -> dict[Path, Tensor]:
    collected: dict[Path, list[Tensor]] = {trunk: [] for trunk in trunks}
    for x, _ in eval_batches(lesson.task, split, size):
        known: dict[Path, Tensor] = {(): x}
        for trunk in trunks:
            collected[trunk].append(_through(lesson.backbone, trunk, modules, known).flatten(1))
    return {trunk: torch.cat(parts) for trunk, parts in collected.items()}


def _through(backbone: Backbone, trunk: Path, modules: dict[str, State], known: dict[Path, Tensor]) -> Tensor:
    """The activations behind a frozen prefix; those of shorter prefixes are looked up in `known`, and added to it."""
    if trunk not in known:
        before = _through(backbone, trunk[:-1], modules, known)
        block = backbone.blocks[len(trunk) - 1]
        one = Backbone(backbone.name, (), (block,))
        known[trunk] = forward_path(one, [modules[trunk[-1]]], before)
    return known[trunk]


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
