"""The Describable Textures Dataset from its archive, at 32×32. Knows nothing about where that comes from.

Splits are the first of the ten official ones: train1, val1, test1. The photographs have many sizes: the short
side is resized to 32 (bicubic), then the centre is cropped.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from espalier.data.archive import assemble, damaged, find, members, reading
from espalier.data.imageset import Dataset, Images, ImageSet
from espalier.data.pictures import open_image

ARCHIVE = "dtd-r1.0.1.tar.gz"
LISTS = {split: f"dtd/labels/{split}1.txt" for split in ("train", "val", "test")}
IMAGES = "dtd/images/"
SIDE = 32
LARGEST = 32 << 20  # bytes; the official photographs stay far below
FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # pictures from the web are not always what their name says


def read(folder: Path, name: str, class_names: tuple[str, ...], official: Mapping[str, int]) -> Dataset:
    path = find(folder, ARCHIVE, name)
    lists: dict[str, bytes] = {}
    images: dict[str, Images] = {}
    # One pass: the lists may come after the images, and all thumbnails together are 17 MB.
    for member, content in members(path, name, _wanted, LARGEST):
        if member.startswith(IMAGES):
            images[member.removeprefix(IMAGES)] = _thumbnail(path, name, member, content)
        else:
            lists[member] = content
    splits = {
        split: _read_split(path, name, class_names, member, lists.get(member), images)
        for split, member in LISTS.items()
    }
    return assemble(name, splits, official)


def _wanted(member: str) -> bool:
    return member in LISTS.values() or (member.startswith(IMAGES) and member.endswith(".jpg"))


def _thumbnail(path: Path, name: str, member: str, content: bytes) -> Images:
    if not content:
        raise damaged(path, f"{member} is empty", name)
    with reading(path, name, member), open_image(content, FORMATS) as image:
        return centre(image)


def centre(image: Image.Image) -> Images:
    """The middle 32×32 of an image whose short side is made 32."""
    rgb = image.convert("RGB")
    scale = SIDE / min(rgb.size)
    width, height = (max(SIDE, round(side * scale)) for side in rgb.size)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    small = rgb.resize((width, height), Image.Resampling.BICUBIC)
    return np.array(small.crop((left, top, left + SIDE, top + SIDE)))


def _read_split(
    path: Path,
    name: str,
    class_names: tuple[str, ...],
    member: str,
    lines: bytes | None,
    images: Mapping[str, Images],
) -> ImageSet:
    if lines is None:
        raise damaged(path, f"{member} is missing from it", name)
    with reading(path, name, member):
        files = lines.decode("ascii").split()
    if not files:
        raise damaged(path, f"{member} lists no images", name)
    labels = np.empty(len(files), np.int64)
    for i, file in enumerate(files):
        if (class_name := file.split("/")[0]) not in class_names:
            raise damaged(path, f"{member} lists {file[:80]!r}, whose class is not one of DTD's", name)
        if file not in images:
            raise damaged(path, f"{IMAGES}{file[:80]} is missing from it", name)
        labels[i] = class_names.index(class_name)
    return ImageSet(np.stack([images[file] for file in files]), labels, class_names)
