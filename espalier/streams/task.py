"""What a task is: `TaskSpec`, a few words that say which images; `Task`, the images as tensors.

Knows how to make one from the other, given a data folder; knows nothing about learners.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espalier.data.folder import DataFolder
from espalier.data.imageset import Labels
from espalier.data.pools import Indices, Pools
from espalier.errors import InputError
from espalier.seeds import generator
from espalier.streams import transforms

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
SPLITS = ("train", "val", "test")

Place = tuple[str | int, ...]  # where a task stands: the stream's name and the index in it


@dataclass(frozen=True)
class TaskSpec:
    """Which images a task is made of. A class's label is its position in `classes`."""

    dataset: str
    classes: tuple[str, ...]
    train: int | None  # images per class; None, or more than there are: all of the pool
    val: int | None
    test: int | None = 1000
    size: int = 32
    channels: int = 3
    background: str | None = None  # a key of COLOURS
    permutation: int | None = None  # the seed of a fixed permutation of the pixels
    val_copies: int = 0  # augmented copies added to the val images

    def __post_init__(self) -> None:
        if isinstance(self.classes, str) or len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise InputError(f"a task needs two classes or more, each once, not {self.classes!r}.")
        if any(count is not None and count < 1 for count in (self.train, self.val, self.test)):
            raise InputError("a task needs at least one image per class in train, val and test (None: all there are).")
        if self.size < 4 or self.channels not in (1, 3):
            raise InputError(
                f"images are at least 4 pixels wide with 1 or 3 channels, not {self.size}, {self.channels}."
            )
        if self.val_copies < 0:
            raise InputError(f"val images have 0 augmented copies or more, not {self.val_copies}.")
        if self.background is not None and self.background not in COLOURS:
            raise InputError(f"there is no background {self.background!r}; choose one of {', '.join(COLOURS)}.")

    def told(self) -> dict[str, Any]:
        """All that is not usual about it, as JSON has it; `of` makes it again."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        unusual = {field.name: values[field.name] for field in fields(self) if values[field.name] != field.default}
        return {**unusual, "classes": list(self.classes)}

    @staticmethod
    def of(told: Mapping[str, Any]) -> "TaskSpec":
        return TaskSpec(**{**told, "classes": tuple(told["classes"])})

    @property
    def title(self) -> str:
        suffix = f" on {self.background}" if self.background else ""
        return self.dataset + suffix + (" permuted" if self.permutation is not None else "")


@dataclass(frozen=True, eq=False)
class Split:
    """Images (n, channels, size, size) uint8 and labels (n,) int64, in random order."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Split({len(self)} images of {' × '.join(map(str, self.x.shape[1:]))})"

    def to(self, device: str | torch.device) -> "Split":
        return Split(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class Task:
    """The tensors of one task, and the statistics of its own train images."""

    spec: TaskSpec
    train: Split
    val: Split
    test: Split
    mean: Tensor
    std: Tensor
    complete: bool  # False when the dataset is only partly there
    note: str = ""

    @property
    def n_classes(self) -> int:
        return len(self.spec.classes)

    @property
    def val_originals(self) -> int:
        """How many of the val images, the first ones, are no augmented copies of others."""
        return len(self.val) // (self.spec.val_copies + 1)

    def normalise(self, x: Tensor) -> Tensor:
        return transforms.normalise(x, self.mean, self.std)

    def to(self, device: str | torch.device) -> "Task":
        moved = {name: getattr(self, name).to(device) for name in (*SPLITS, "mean", "std")}
        return replace(self, **moved)


def build_task(spec: TaskSpec, data: DataFolder, seed: int, *place: str | int) -> Task:
    """The tensors of `spec`. `place` (stream, index) names the random choices: another place, other images."""
    pools = data.pools(spec.dataset, spec.size)
    splits = {name: build_split(spec, data, name, seed, *place) for name in SPLITS}
    mean, std = transforms.statistics(splits["train"].x)
    note = "" if pools.complete else f"{spec.dataset} is partial: {pools.note}"
    return Task(spec, mean=mean, std=std, complete=pools.complete, note=note, **splits)


def build_split(spec: TaskSpec, data: DataFolder, name: str, seed: int, *place: str | int) -> Split:
    """One split of a task: the same bytes as in the whole."""
    pools = data.pools(spec.dataset, spec.size)
    ids, labels = pick_images(spec, pools, name, seed, place)
    x = render(torch.from_numpy(pools.images[name][ids]), spec.channels, spec.background, spec.permutation)
    split = Split(x, torch.from_numpy(labels))
    copies = spec.val_copies if name == "val" else 0
    return _with_augmented_copies(split, copies, seed, place) if copies else split


def pick_images(spec: TaskSpec, pools: Pools, split: str, seed: int, place: Place) -> tuple[Indices, Labels]:
    """Which images of the pool a split has, in random order, and their labels.

    The released benchmark leaves every split sorted by label, a trap for whoever takes the first images only.
    """
    rng = generator(seed, *place, split)
    picked = [_pick_class(spec, pools.of_class[split], name, split, rng) for name in spec.classes]
    labels = np.repeat(np.arange(len(picked)), [len(ids) for ids in picked])
    order = rng.permutation(len(labels))
    return np.concatenate(picked)[order], labels[order]


def _pick_class(
    spec: TaskSpec, of_class: Mapping[str, Indices], name: str, split: str, rng: np.random.RandomState
) -> Indices:
    if name not in of_class:
        shown = ", ".join(list(of_class)[:10]) + (", …" if len(of_class) > 10 else "")
        raise InputError(f"dataset {spec.dataset!r} has no class {name!r}; it has {shown}.")
    pool = of_class[name]
    if len(pool) == 0:
        raise InputError(f"class {name!r} of dataset {spec.dataset!r} has no {split} image left; add images to it.")
    wanted = getattr(spec, split)
    count = len(pool) if wanted is None else min(wanted, len(pool))
    if split == "test":  # the same images whenever a class is tested
        return pool[:count]
    return pool[rng.permutation(len(pool))[:count]]


def render(x: Tensor, channels: int, background: str | None, permutation: int | None) -> Tensor:
    """Images of a dataset as a task shows them."""
    if background is None:
        x = transforms.to_channels(x, channels)
    else:
        x = transforms.recolour_background(transforms.to_channels(x, 1), COLOURS[background])
    if permutation is not None:
        order = pixel_order(permutation, x.shape[-1])
        # NumPy's take is four times as fast as torch's indexing here.
        x = torch.from_numpy(np.take(x.flatten(2).numpy(), order, axis=2)).view_as(x)
    return x


def pixel_order(seed: int, size: int) -> Indices:
    return generator(seed, "pixels", size).permutation(size**2)


def _with_augmented_copies(split: Split, copies: int, seed: int, place: Place) -> Split:
    """The images, then `copies` cropped and mirrored versions of them."""
    n, pad = len(split), split.x.shape[-1] // 8
    rng = generator(seed, *place, "val", "copies")  # NumPy's, so that the bytes are the same on every device
    top, left = torch.from_numpy(rng.randint(0, 2 * pad + 1, (2, copies * n)))
    flip = torch.from_numpy(rng.randint(0, 2, copies * n) == 1)
    x = split.x.repeat(copies + 1, 1, 1, 1)
    for start in range(n, len(x), transforms.CHUNK):
        part, drawn = x[start : start + transforms.CHUNK], slice(start - n, start - n + transforms.CHUNK)
        part.copy_(transforms.crop_flip(part, top[drawn], left[drawn], flip[drawn], pad))
    return Split(x, split.y.repeat(copies + 1))
