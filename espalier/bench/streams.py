"""Seconds to build a task, batched as Espalier does it and one image at a time with Pillow as loaders usually do."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from espalier.data.imageset import Dataset, Images
from espalier.data.pools import train_images
from espalier.seeds import generator
from espalier.streams import Stream, TaskSpec
from espalier.streams.task import COLOURS, SPLITS, pick_images, pixel_order


@dataclass(frozen=True)
class Timing:
    """Mean seconds per task of one stream, the images of those tasks, and the seconds to read the datasets once."""

    stream: str
    tasks: int
    images: int
    reading: float
    batched: float
    one_by_one: float


@dataclass(frozen=True)
class Walk:
    """A whole stream, one task after another: seconds, and the most memory the process ever held, in bytes."""

    seconds: float
    peak_memory: int


def walk(stream: Stream, progress: Callable[[int, int], None]) -> Walk:
    start = time.perf_counter()
    for done, _ in enumerate(stream, start=1):
        progress(done, len(stream))
    # Linux counts in kilobytes, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return Walk(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def time_stream(stream: Stream, tasks: int) -> Timing:
    """Both pipelines on the same `tasks` tasks, spread evenly over the stream, datasets in memory for both."""
    chosen = sorted({int(i) for i in np.linspace(0, len(stream) - 1, min(tasks, len(stream)))})
    start = time.perf_counter()
    for spec in stream.specs:
        stream.data.pools(spec.dataset, spec.size)
    reading = time.perf_counter() - start
    sources = {dataset: source_images(stream.data.load(dataset)) for dataset in stream.datasets()}
    stream[chosen[0]]  # what torch sets up at its first use is not counted
    images, batched, one_by_one = 0, 0.0, 0.0
    for index in chosen:
        start = time.perf_counter()
        task = stream[index]
        middle = time.perf_counter()
        for _ in one_image_at_a_time(stream, index, sources[stream.specs[index].dataset]):
            pass
        one_by_one += time.perf_counter() - middle
        batched += middle - start
        images += len(task.train) + len(task.val) + len(task.test)
    return Timing(stream.name, len(chosen), images, reading, batched / len(chosen), one_by_one / len(chosen))


def source_images(dataset: Dataset) -> dict[str, Images]:
    train, _ = train_images(dataset)
    return {"train": train, "val": train, "test": dataset.splits["test"].images}


def one_image_at_a_time(stream: Stream, index: int, images: dict[str, Images]) -> Iterator[tuple[Tensor, Tensor]]:
    """The three splits of a task (uint8 images, labels), made the usual way: a Pillow image each, then one stack."""
    spec, place = stream.specs[index], (stream.name, index)
    order = None if spec.permutation is None else pixel_order(spec.permutation, spec.size)
    for split in SPLITS:
        ids, labels = pick_images(spec, stream.data.pools(spec.dataset, spec.size), split, stream.seed, place)
        pictures = [_picture(images[split][i], spec, order) for i in ids]
        if split == "val" and spec.val_copies:
            rng = generator(stream.seed, *place, "copies")
            pictures += [_augmented(p, rng) for _ in range(spec.val_copies) for p in pictures]
            labels = np.tile(labels, spec.val_copies + 1)
        yield torch.stack([_tensor(p) for p in pictures]), torch.from_numpy(labels)


def _picture(array: np.ndarray, spec: TaskSpec, order: np.ndarray | None) -> Image.Image:
    picture = Image.fromarray(array if array.shape[2] == 3 else array[:, :, 0])
    if picture.size != (spec.size, spec.size):
        picture = picture.resize((spec.size, spec.size), Image.Resampling.BILINEAR)
    if spec.background is not None:
        picture = picture.convert("L")
    if spec.channels == 3:
        picture = picture.convert("RGB")
    if spec.background is not None:
        ink = np.asarray(picture).astype(np.int32)
        picture = Image.fromarray((ink + (255 - ink) * np.array(COLOURS[spec.background]) // 255).astype(np.uint8))
    if order is not None:
        picture = Image.fromarray(np.asarray(picture).reshape(-1)[order].reshape(spec.size, spec.size))
    return picture


def _augmented(picture: Image.Image, rng: np.random.RandomState) -> Image.Image:
    pad = picture.width // 8
    left, top = rng.randint(0, 2 * pad + 1, 2)
    picture = ImageOps.expand(picture, pad).crop((left, top, left + picture.width, top + picture.height))
    return ImageOps.mirror(picture) if rng.randint(2) else picture


def _tensor(picture: Image.Image) -> Tensor:
    array = np.array(picture)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).permute(2, 0, 1)
