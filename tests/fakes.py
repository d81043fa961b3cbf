"""The paper's datasets with their true numbers of images per class, each image 4×4 pixels that say who it is."""

from collections.abc import Sequence

import numpy as np

from espalier.data import DataFolder, Dataset, ImageSet
from espalier.data.official import OFFICIAL

MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
SVHN_TRAIN = (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)
SVHN_TEST = (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595)

COUNTS: dict[str, dict[str, Sequence[int]]] = {
    "mnist": {"train": MNIST_TRAIN, "test": MNIST_TEST},
    "fashion-mnist": {"train": (6000,) * 10, "test": (1000,) * 10},
    "svhn": {"train": SVHN_TRAIN, "test": SVHN_TEST},
    "cifar10": {"train": (5000,) * 10, "test": (1000,) * 10},
    "cifar100": {"train": (500,) * 100, "test": (100,) * 100},
    "dtd": {"train": (40,) * 47, "val": (40,) * 47, "test": (40,) * 47},
}


def fake_paper_folder() -> DataFolder:
    folder = DataFolder("/nonexistent")
    for name in COUNTS:
        folder.add(fake_dataset(name))
    return folder


def fake_dataset(name: str) -> Dataset:
    names = OFFICIAL[name].class_names
    splits = {}
    for number, (split, counts) in enumerate(COUNTS[name].items()):
        labels = np.random.RandomState(number).permutation(np.repeat(np.arange(len(names)), counts))
        splits[split] = ImageSet(_images(number, len(labels)), labels, names)
    return Dataset(name, splits)


def _images(split: int, count: int) -> np.ndarray:
    """No two alike: the pixels are the split's number and the index, byte by byte."""
    words = np.zeros((count, 4), np.uint32)
    words[:, 0], words[:, 1] = split, np.arange(count)
    return words.view(np.uint8).reshape(count, 4, 4, 1)
