"""SVHN (cropped digits) from its two MATLAB files. Knows nothing about where the files come from.

`X` has the shape (32, 32, 3, n); `y` counts the digits from 1, and its 10 is the digit 0.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat, whosmat

from espalier.data.archive import assemble, damaged, find, reading
from espalier.data.imageset import Dataset, ImageSet

FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}


def read(folder: Path, name: str, class_names: tuple[str, ...], official: Mapping[str, int]) -> Dataset:
    paths = {split: find(folder, file, name) for split, file in FILES.items()}
    splits = {split: _read_split(path, name, class_names, official[split]) for split, path in paths.items()}
    return assemble(name, splits, official)


def _read_split(path: Path, name: str, class_names: tuple[str, ...], most: int) -> ImageSet:
    x, y = _load(path, name, most)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or not 0 < x.shape[3] <= most:
        raise damaged(path, f"X is {x.dtype} {x.shape}, not uint8 (32, 32, 3, n)", name)
    if y.dtype.kind not in "uif" or y.shape not in ((x.shape[3], 1), (1, x.shape[3])):
        raise damaged(path, f"y is {y.dtype} {y.shape}, not a number for each of {x.shape[3]:,} images", name)
    if not np.isin(y, np.arange(1, 11)).all():
        raise damaged(path, "y holds a label that is not one of 1 to 10", name)
    labels = y.ravel().astype(np.int64) % 10
    return ImageSet(np.ascontiguousarray(x.transpose(3, 0, 1, 2)), labels, class_names)


def _load(path: Path, name: str, most: int) -> tuple[NDArray[Any], NDArray[Any]]:
    with reading(path, name), warnings.catch_warnings():
        warnings.simplefilter("error")  # SciPy warns where the file contradicts itself
        shapes = {variable: shape for variable, shape, _ in whosmat(path, appendmat=False)}
        if not {"X", "y"} <= shapes.keys():
            raise damaged(path, "it lacks the variable X or y", name)
        # The headers are looked at first: they can claim more than memory holds.
        if any(np.prod([float(n) for n in shapes[v]]) > most * 32 * 32 * 3 for v in "Xy"):
            raise damaged(
                path, f"X is {shapes['X']} and y {shapes['y']}, too large for {most:,} images", name
            )
        content = loadmat(path, variable_names=["X", "y"], appendmat=False)
        return np.asarray(content["X"]), np.asarray(content["y"])
