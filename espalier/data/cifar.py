"""CIFAR-10 and CIFAR-100 from their binary archives. Knows nothing about where the archives come from.

A record is the label (CIFAR-100: the coarse label, then the fine one, which is the label here) and 3,072
bytes of pixels: the red plane, the green, the blue.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from espalier.data.archive import assemble, damaged, find, members
from espalier.data.imageset import Dataset, ImageSet
from espalier.errors import MissingDataError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    archive: str
    pickled: str
    label_bytes: int
    members: Mapping[str, tuple[str, ...]]


LAYOUTS = {
    "cifar10": Layout(
        archive="cifar-10-binary.tar.gz",
        pickled="cifar-10-python.tar.gz",
        label_bytes=1,
        members={
            "train": tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
            "test": ("cifar-10-batches-bin/test_batch.bin",),
        },
    ),
    "cifar100": Layout(
        archive="cifar-100-binary.tar.gz",
        pickled="cifar-100-python.tar.gz",
        label_bytes=2,
        members={"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)},
    ),
}


def read(folder: Path, name: str, class_names: tuple[str, ...], official: Mapping[str, int]) -> Dataset:
    layout = LAYOUTS[name]
    path = _find(folder, name, layout)
    record = layout.label_bytes + PIXELS
    wanted = {member for batches in layout.members.values() for member in batches}
    largest = max(official[split] // len(batches) for split, batches in layout.members.items()) * record
    batches = dict(members(path, name, wanted.__contains__, largest))
    for member in sorted(wanted):
        if member not in batches:
            raise damaged(path, f"{member} is missing from it", name)
        if not batches[member] or len(batches[member]) % record:
            raise damaged(path, f"{member} has {len(batches[member]):,} bytes, not a multiple of {record:,}", name)
    splits = {
        split: _read_split(path, name, class_names, layout.label_bytes, {m: batches.pop(m) for m in names})
        for split, names in layout.members.items()
    }
    return assemble(name, splits, official)


def _find(folder: Path, name: str, layout: Layout) -> Path:
    if (folder / layout.pickled).is_file() and not (folder / layout.archive).is_file():
        raise MissingDataError(
            f"{folder / layout.pickled} is the pickle version, which Espalier never opens; "
            f"put {layout.archive} beside it or run `espalier data fetch {name}`."
        )
    return find(folder, layout.archive, name)


def _read_split(
    path: Path, name: str, class_names: tuple[str, ...], label_bytes: int, batches: dict[str, bytes]
) -> ImageSet:
    """Copy the batches into one array; each is dropped once copied, to keep memory near the array's size."""
    record = label_bytes + PIXELS
    total = sum(map(len, batches.values())) // record
    images, labels = np.empty((total, 32, 32, 3), np.uint8), np.empty(total, np.int64)
    start = 0
    for member in list(batches):
        records = np.frombuffer(batches.pop(member), np.uint8).reshape(-1, record)
        stop = start + len(records)
        labels[start:stop] = records[:, label_bytes - 1]
        images[start:stop] = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        if labels[start:stop].max() >= len(class_names):
            bad = labels[start:stop].max()
            raise damaged(path, f"{member} has the label {bad}, not one of 0 to {len(class_names) - 1}", name)
        start = stop
    return ImageSet(images, labels, class_names)
