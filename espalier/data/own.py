"""A user's own images: a folder of class folders, or a CSV table. Knows nothing about packs or tasks.

Arrays need nothing from here: that is `ImageSet.from_arrays`.
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TextIO

import numpy as np

from espalier.data.embedded import EMBEDDED
from espalier.data.imageset import Dataset, ImageSet
from espalier.data.official import OFFICIAL
from espalier.data.pictures import Progress, in_order, load_picture
from espalier.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jfif")
NOT_READ = (".avif", ".heic", ".heif", ".jxl", ".jp2", ".svg")
MAX_SIZE = 1024
TOLD = 20  # pictures that cannot be used; of more, the number is told
LEAST = 3  # pictures of a class: to train on, to validate, to test

Labelled = list[tuple[Path, str]]


def check_name(name: str) -> None:
    """A dataset's name is also its folder's."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,99}", name):
        raise InputError(
            f"{name!r} cannot name a dataset; use lower-case letters, digits, '-' and '_', "
            f"beginning with a letter or digit, at most 100 of them."
        )


def check_own_name(name: str) -> None:
    """Own images may not take a name that streams use: they would be trained on in the place of the real ones."""
    check_name(name)
    if name in OFFICIAL or name in EMBEDDED:
        raise InputError(f"{name!r} is the name of a dataset that streams use; give your images another with --name.")


def from_folder(folder: Path | str, size: int = 32, progress: Progress | None = None) -> ImageSet:
    """Read `folder/<class>/<picture>`, every picture cut and scaled to `size` x `size`."""
    folder = Path(folder)
    try:
        labelled = list(_class_folders(folder))
    except OSError as error:
        raise InputError(
            f"the folder {error.filename} cannot be read ({error.strerror}); check its name and permissions."
        ) from None
    return _read(labelled, size, progress, str(folder))


def from_csv(table: Path | str, size: int = 32, progress: Progress | None = None) -> ImageSet:
    """Read the pictures a CSV names: header `path,label`, paths relative to the CSV's own folder."""
    table = Path(table)
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            labelled = list(_rows(table, file))
    except OSError as error:
        raise InputError(
            f"the table {table} cannot be read ({error.strerror}); check its name and permissions."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"the table {table} is not UTF-8 text; save it as CSV in UTF-8.") from None
    except csv.Error as error:
        raise InputError(f"the table {table} is not well-formed CSV ({error}); save it again as CSV.") from None
    return _read(labelled, size, progress, str(table))


def as_dataset(images: ImageSet, name: str, seed: int = 0, test: float = 0.2) -> Dataset:
    """Split a user's images into 'train' and 'test', class by class; copies of a picture count as one."""
    check_own_name(name)
    if len(images.class_names) < 2:
        raise InputError(f"{name!r} has one class only; a task needs at least two.")
    if not 0 < test < 1:
        raise InputError(f"the share of test images must lie between 0 and 1, not {test}; 0.2 is usual.")
    chosen: dict[str, list[int]] = {"train": [], "test": []}
    for label, class_name in enumerate(images.class_names):
        different: dict[bytes, int] = {}
        for index in np.flatnonzero(images.labels == label).tolist():
            different.setdefault(images.images[index].tobytes(), index)
        count = len(different)
        if count < LEAST:
            raise InputError(
                f"class {class_name!r} of {name!r} has {count} different images and needs at least {LEAST} (to "
                f"train on, to validate, to test); add images or remove the class."
            )
        # By what they show: kept for tests once, kept for tests in a larger set too, and in one of another name.
        order = sorted(different, key=lambda pixels: sha256(b"%d " % seed + pixels).digest())
        cut = max(1, min(count - 2, round(count * test)))
        for rank, pixels in enumerate(order):
            chosen["test" if rank < cut else "train"].append(different[pixels])
    return Dataset(name, {split: _take(images, sorted(indices)) for split, indices in chosen.items()})


def _take(images: ImageSet, indices: list[int]) -> ImageSet:
    return ImageSet(images.images[indices], images.labels[indices], images.class_names)


def _class_folders(folder: Path) -> Iterator[tuple[Path, str]]:
    shape = "put every class in a folder of its own, such as cats/1.jpg and dogs/1.jpg"
    classes, files = _listing(folder)
    if strays := _pictures(files):
        raise InputError(f"the picture {strays[0]} lies outside the class folders; {shape}.")
    if not classes:
        raise InputError(f"the folder {folder} holds no class folders; {shape}.")
    for class_folder in classes:
        if re.search("[\ud800-\udfff]", class_folder.name):  # how Python spells bytes that are not UTF-8
            raise InputError(f"the name of the class folder {class_folder.name!r} is not UTF-8 text; rename it.")
        nested, files = _listing(class_folder)
        if unread := _pictures(files, NOT_READ):
            raise InputError(f"{unread[0]} is in a format that is not read; save it as PNG or JPEG, or remove it.")
        if nested:
            raise InputError(
                f"the class folder {class_folder} holds another folder, {nested[0].name!r}; "
                f"move its pictures up or remove it."
            )
        if not (pictures := _pictures(files)):
            raise InputError(
                f"the class folder {class_folder} holds no pictures; add some ({', '.join(SUFFIXES)}) or remove it."
            )
        yield from ((picture, class_folder.name) for picture in pictures)


def _listing(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the files in a folder, sorted by name; what is hidden is passed over."""
    entries = sorted((e for e in folder.iterdir() if not e.name.startswith(".")), key=lambda e: e.name)
    return [e for e in entries if e.is_dir()], [e for e in entries if not e.is_dir()]


def _pictures(files: list[Path], suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    return [file for file in files if file.suffix.lower() in suffixes]


def _rows(table: Path, file: TextIO) -> Iterator[tuple[Path, str]]:
    reader = csv.reader(file, strict=True)
    header = next(reader, None)
    if header is None:
        raise InputError(f"the table {table} is empty; it needs the header 'path,label' and a line per picture.")
    if [field.strip() for field in header] != ["path", "label"]:
        raise InputError(f"the table {table} must begin with the line 'path,label', not {','.join(header)!r}.")
    seen: dict[str, int] = {}
    for row in reader:
        line = reader.line_num
        if not row:
            continue
        if len(row) != 2 or not row[0] or not row[1].strip():
            raise InputError(f"line {line} of {table} must be a path and a label, not {','.join(row)!r}.")
        path, label = os.path.abspath(table.parent / row[0]), row[1].strip()
        if path in seen:
            raise InputError(f"{table} names {row[0]!r} on lines {seen[path]} and {line}; keep one of them.")
        seen[path] = line
        if not os.path.isfile(path):
            raise InputError(f"line {line} of {table} names {row[0]!r}, which is not a file; correct the path.")
        yield Path(path), label


def _read(labelled: Labelled, size: int, progress: Progress | None, source: str) -> ImageSet:
    if not 1 <= size <= MAX_SIZE:
        raise InputError(f"an image size of {size} cannot be used; choose one between 1 and {MAX_SIZE}.")
    counts = Counter(label for _, label in labelled)
    if not counts:
        raise InputError(f"{source} names no pictures; add at least {LEAST} for each of two classes.")
    names = sorted(counts)
    if len(names) == 1:
        raise InputError(f"{source} has only the class {names[0]!r}; a task needs at least two classes.")
    for name in names:
        if counts[name] < LEAST:
            raise InputError(
                f"class {name!r} of {source} needs at least {LEAST} pictures (to train on, to validate, to test) and "
                f"has {counts[name]}; add some or remove the class."
            )
    try:
        images = np.empty((len(labelled), size, size, 3), np.uint8)
    except MemoryError:
        raise InputError(f"the pictures of {source} do not fit into memory; choose a smaller size.") from None

    def load(index: int) -> str:
        """Why this picture cannot be used, if it cannot."""
        try:
            images[index] = load_picture(labelled[index][0], size)
        except InputError as error:
            return str(error)
        return ""

    problems = []
    for done, problem in enumerate(in_order(load, range(len(labelled))), 1):
        problems += [problem] if problem else []
        if progress:
            progress(done, len(labelled))
    if problems:
        raise InputError(_all_told(problems, source))
    ids = {name: i for i, name in enumerate(names)}
    return ImageSet(images, np.array([ids[label] for _, label in labelled], np.int64), tuple(names))


def _all_told(problems: list[str], source: str) -> str:
    """All at once, so that they can be mended at once."""
    if len(problems) == 1:
        return problems[0]
    more = [f"and {len(problems) - TOLD} more."] if len(problems) > TOLD else []
    return "\n  ".join([f"{len(problems)} pictures of {source} cannot be used:", *problems[:TOLD], *more])
