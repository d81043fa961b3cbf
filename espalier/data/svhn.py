"""SVHN (cropped digits) from its two MATLAB files. Knows nothing about where the files come from.

`X` has the shape (32, 32, 3, n); `y` counts the digits from 1, and its 10 is the digit 0.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from espalier.data.archive import assemble, damaged, find, reading
from espalier.data.imageset import Dataset, ImageSet
from espalier.data.mat import read_mat

FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}


def read(folder: Path, name: str, class_names: tuple[str, ...], official: Mapping[str, int]) -> Dataset:
    paths = {split: find(folder, file, name) for split, file in FILES.items()}
    splits = {split: _read_split(path, name, class_names, official[split]) for split, path in paths.items()}
    return assemble(name, splits, official)


def _read_split(path: Path, name: str, class_names: tuple[str, ...], most: int) -> ImageSet:
    with reading(path, name):
        variables = read_mat(path, largest=most * 32 * 32 * 3)
    if not {"X", "y"} <= variables.keys():
        raise damaged(path, "it lacks the numbers X or y", name)
    x, y = variables.pop("X"), variables.pop("y")
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or not x.shape[3]:
        raise damaged(path, f"X is {x.dtype} {x.shape}, not uint8 (32, 32, 3, n)", name)
    if y.shape not in ((x.shape[3], 1), (1, x.shape[3])):
        raise damaged(path, f"y has the shape {y.shape} for {x.shape[3]:,} images", name)
    if not np.isin(y, np.arange(1, 11)).all():
        raise damaged(path, "y holds a label that is not one of 1 to 10", name)
    labels = y.ravel().astype(np.int64) % 10
    return ImageSet(np.ascontiguousarray(x.transpose(3, 0, 1, 2)), labels, class_names)
