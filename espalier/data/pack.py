"""Image-packs: a dataset as a folder of lossless WebP sheets, labels and a `pack.json`. Knows nothing about tasks.

A sheet is a grid of tiles, row by row, `columns` tiles wide; image i of it is the tile at row i // columns, column
i % columns. Nothing that `pack.json` claims is believed, or given memory, before the sheets themselves bear it out.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from espalier.data.imageset import Dataset, Images, ImageSet, Labels
from espalier.data.pictures import Progress, in_order, open_image
from espalier.errors import InputError
from espalier.files import digest, new_folder, write_json

FORMAT, VERSION = "image-pack", 1
COLUMNS, ROWS = 32, 32
MAX_SIDE = 16383  # of a WebP
MAX_PIXELS = 2**24  # of a sheet we write: well below what Pillow takes for an attack
MAX_CLASSES = 256  # labels are bytes
CURE = "fetch or write the pack again"

Value = TypeVar("Value")


@dataclass(frozen=True)
class PackInfo:
    """What `pack.json` says of a pack."""

    name: str
    image: tuple[int, int, int]
    class_names: tuple[str, ...]
    counts: Mapping[str, int]
    complete: bool
    note: str


@dataclass(frozen=True)
class _File:
    """A sheet or a label file: how many images it is for, and after how many of its split it begins."""

    path: Path
    count: int
    start: int
    sha256: str


@dataclass(frozen=True)
class _Split:
    count: int
    labels: _File
    sheets: tuple[_File, ...]


@dataclass(frozen=True)
class _Pack:
    info: PackInfo
    columns: int
    splits: Mapping[str, _Split]


def describe_pack(folder: Path) -> PackInfo:
    """What is in a pack, from its `pack.json` alone."""
    return _parse(folder).info


def read_pack(folder: Path, progress: Progress | None = None) -> Dataset:
    """The whole pack in memory. Damage that shows is refused; damage that only checksums show is `verify_pack`'s."""
    pack = _parse(folder)
    labels = {name: _read_labels(split.labels, pack.info) for name, split in pack.splits.items()}
    sheets = [(name, sheet) for name, split in pack.splits.items() for sheet in split.sheets]
    for _ in in_order(lambda item: _open_sheet(item[1], pack).close(), sheets):
        pass
    try:
        images = {name: np.empty((s.count, *pack.info.image), np.uint8) for name, s in pack.splits.items()}
    except MemoryError:
        raise InputError(f"the pack {folder} does not fit into memory; use a machine with more.") from None

    def decode(item: tuple[str, _File]) -> int:
        name, sheet = item
        images[name][sheet.start : sheet.start + sheet.count] = _read_sheet(sheet, pack)
        return sheet.count

    _count(progress, in_order(decode, sheets), sum(pack.info.counts.values()))
    splits = {name: ImageSet(images[name], labels[name], pack.info.class_names) for name in pack.splits}
    return Dataset(pack.info.name, splits, pack.info.complete, pack.info.note)


def verify_pack(folder: Path, progress: Progress | None = None) -> None:
    """Check every checksum, then read the pack. `progress` counts every image twice."""
    pack = _parse(folder)
    total = sum(pack.info.counts.values())

    def check(file: _File) -> int:
        _require_file(file.path)
        if digest(file.path) != file.sha256:
            raise InputError(f"the checksum of {file.path} is not the one in pack.json; {CURE}.")
        return file.count

    for split in pack.splits.values():
        check(split.labels)
    sheets = [sheet for split in pack.splits.values() for sheet in split.sheets]
    _count(progress and (lambda done, _: progress(done, 2 * total)), in_order(check, sheets), total)
    read_pack(folder, progress and (lambda done, _: progress(total + done, 2 * total)))
