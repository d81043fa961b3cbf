"""Which images of a dataset may be trained on, validated on and tested on: cut once, for every stream and seed.

Knows nothing about streams or tasks. As in CTrL, validation images are taken from the official train split (and an
official val split is merged into it first). Unlike CTrL's, the pools are disjoint in *content*: CIFAR-100 has ten
pictures in both official splits, and one more that is a test picture of CIFAR-10. A picture that is tested on is
not validated on, and one that is validated or tested on is not trained on.
"""

import hashlib
import math
from collections.abc import Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.data.imageset import Dataset, Images, Labels
from espalier.data.scale import planes
from espalier.errors import InputError
from espalier.seeds import generator

Indices = NDArray[np.int64]

# CTrL's split seed: the pools do not depend on the seed of a stream.
POOL_SEED = 17
# Validation images per class; where a dataset (or what is there of it) is small, a third of each class.
VAL_PER_CLASS = {"cifar100": 50}
DEFAULT_VAL_PER_CLASS = 500
# Fingerprints of train pictures that another dataset of the same streams tests on. Found by comparing all of
# CIFAR-100 with CIFAR-10's test split and half of its train split.
TESTED_ELSEWHERE = {"cifar100": {bytes.fromhex("1f60db7284d45fdb9cb54dfb0da1ec94")}}


@dataclass(frozen=True, eq=False)
class Pools:
    """For each split, all its images (n, channels, size, size) and, for each class, the indices that may be used."""

    images: dict[str, Images]
    of_class: dict[str, dict[str, Indices]]
    complete: bool
    note: str


def cut_pools(dataset: Dataset, size: int) -> Pools:
    """The pools of a dataset, its images scaled to `size` once for all tasks."""
    if "test" not in dataset.splits or "train" not in dataset.splits:
        raise InputError(
            f"dataset {dataset.name!r} needs a train and a test split; it has {', '.join(dataset.splits)}."
        )
    images, labels = train_images(dataset)
    test = dataset.splits["test"]

    train_ids, val_ids, test_ids = {}, {}, {}
    for label, name in enumerate(dataset.class_names):
        train_ids[name], val_ids[name] = _split_class(dataset.name, name, np.flatnonzero(labels == label))
        order = generator(POOL_SEED, "test", dataset.name, name)
        test_ids[name] = order.permutation(np.flatnonzero(test.labels == label))

    tested = _contents(test.images, test_ids) | TESTED_ELSEWHERE.get(dataset.name, set())
    val_ids = {name: _without(images, ids, tested) for name, ids in val_ids.items()}
    held_out = tested | _contents(images, val_ids)
    train_ids = {name: _without(images, ids, held_out) for name, ids in train_ids.items()}
    train_planes = planes(images, size)
    return Pools(
        images={"train": train_planes, "val": train_planes, "test": planes(test.images, size)},
        of_class={"train": train_ids, "val": val_ids, "test": test_ids},
        complete=dataset.complete,
        note=dataset.note,
    )


def train_images(dataset: Dataset) -> tuple[Images, Labels]:
    """The images of the train split and, where there is one, of the val split: what the two pools are cut from."""
    sources = [dataset.splits[name] for name in ("train", "val") if name in dataset.splits]
    if len(sources) == 1:
        return sources[0].images, sources[0].labels
    return np.concatenate([s.images for s in sources]), np.concatenate([s.labels for s in sources])


def _split_class(dataset: str, name: str, ids: Indices) -> tuple[Indices, Indices]:
    wanted = VAL_PER_CLASS.get(dataset, DEFAULT_VAL_PER_CLASS)
    count = min(wanted, math.ceil(len(ids) / 3))
    shuffled = generator(POOL_SEED, "val", dataset, name).permutation(ids)
    return shuffled[count:], shuffled[:count]


def _contents(images: Images, of_class: dict[str, Indices]) -> set[bytes]:
    return {_fingerprint(images[i]) for ids in of_class.values() for i in ids}


def _without(images: Images, ids: Indices, contents: Set[bytes]) -> Indices:
    keep = [_fingerprint(images[i]) not in contents for i in ids]
    return np.asarray(ids[np.array(keep, dtype=bool)])


def _fingerprint(image: Images) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()
