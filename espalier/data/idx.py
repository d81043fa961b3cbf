"""MNIST and Fashion-MNIST from their four idx files. Knows nothing about where the files come from.

An idx file is a magic number, the length of every axis (big-endian, 4 bytes each) and then the bytes.
"""

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.data.archive import assemble, damaged, find, reading
from espalier.data.imageset import Dataset, ImageSet

PREFIXES = {"train": "train", "test": "t10k"}
IMAGES, LABELS = 0x803, 0x801


def read(folder: Path, name: str, class_names: tuple[str, ...], official: Mapping[str, int]) -> Dataset:
    splits = {split: _read_split(folder, name, class_names, split, official[split]) for split in PREFIXES}
    return assemble(name, splits, official)


def _read_split(folder: Path, name: str, class_names: tuple[str, ...], split: str, most: int) -> ImageSet:
    image_file = find(folder, f"{PREFIXES[split]}-images-idx3-ubyte.gz", name)
    label_file = find(folder, f"{PREFIXES[split]}-labels-idx1-ubyte.gz", name)
    images = _read_array(image_file, name, IMAGES, (28, 28), most)
    labels = _read_array(label_file, name, LABELS, (), most)
    if len(images) != len(labels):
        raise damaged(label_file, f"it has {len(labels):,} labels for {len(images):,} images", name)
    if labels.max() >= len(class_names):
        raise damaged(label_file, f"label {labels.max()} is not one of 0 to {len(class_names) - 1}", name)
    return ImageSet(images[..., None], labels.astype(np.int64), class_names)


def _read_array(path: Path, name: str, magic: int, item: tuple[int, ...], most: int) -> NDArray[Any]:
    with reading(path, name), gzip.open(path) as file:
        header = file.read(8 + 4 * len(item))
        if len(header) != 8 + 4 * len(item):
            raise damaged(path, "it ends inside its header", name)
        found, count, *shape = np.frombuffer(header, dtype=">u4").tolist()
        if found != magic:
            raise damaged(path, f"its magic number is {found:#x}, not {magic:#x}", name)
        if tuple(shape) != item:
            raise damaged(path, f"its items have the shape {tuple(shape)}, not {item}", name)
        # Before anything is allocated: a header can claim four billion images.
        if not 0 < count <= most:
            raise damaged(path, f"its header claims {count:,} items, and 1 to {most:,} are possible", name)
        content = file.read(count * int(np.prod(item)))
        if len(content) != count * int(np.prod(item)):
            raise damaged(path, f"it ends before the {count:,} items its header claims", name)
        if file.read(1):  # reading to the end also makes gzip test its checksum
            raise damaged(path, f"it goes on after the {count:,} items its header claims", name)
    return np.frombuffer(content, dtype=np.uint8).reshape(count, *item).copy()
