"""Streams and a protocol that take a second, for tests of learners and runs; also usable from another process."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from espalier import DataFolder, Dataset, ImageSet, TaskSpec
from espalier.runs import Settings, run
from espalier.streams.registry import STREAMS
from espalier.training import PROTOCOLS, Protocol, Setting

GRID = (Setting(1e-2, 0.0), Setting(3e-3, 1e-4))
PROTOCOL = Protocol(
    "test", batch=16, max_epochs=4, patience=30, grid=GRID, fc_grid=GRID, strengths=(1.0, 100.0), pad=4, flip=False
)
CLASSES = {
    "letters": tuple("AEFHK"),
    "digits": tuple("01234"),
    "textures": ("dots", "bricks", "stripes", "rings", "rays"),
}


def small(dataset: str, **changes: Any) -> TaskSpec:
    settings: dict[str, Any] = {"train": 8, "val": 6, "test": 10, "size": 8} | changes
    return TaskSpec(dataset, settings.pop("classes", CLASSES.get(dataset)), **settings)


def small_stream(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    return [small("letters", train=60), small("digits"), small("textures"), small("letters")]


def unequal_stream(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    """Tasks of 5, 3 and 4 classes."""
    return [
        small("letters", train=20),
        small("digits", classes=CLASSES["digits"][:3]),
        small("textures", classes=CLASSES["textures"][:4]),
    ]


def install() -> None:
    """Make the streams `small_mini` and `unequal_mini` and the protocol `test` known."""
    STREAMS["small_mini"] = (small_stream, "for tests")
    STREAMS["unequal_mini"] = (unequal_stream, "for tests")
    PROTOCOLS["test"] = PROTOCOL


def settings(learner: str, seed: int = 0, stream: str = "small_mini", backbone: str = "tiny") -> Settings:
    return Settings(stream, learner, backbone, "test", seed)


def without_times(result: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same whenever a run is done again."""
    return {key: value for key, value in result.items() if key != "seconds"}


def noise(name: str, classes: int = 3, per_class: int = 20, size: int = 8, channels: int = 3, low: int = 0) -> Dataset:
    """Learnable noise: every class has its own mean brightness."""
    rng = np.random.RandomState(len(name))
    labels = np.repeat(np.arange(classes), per_class)
    level = (labels * (200 // classes))[:, None, None, None]
    names = tuple(f"c{i}" for i in range(classes))

    def split() -> ImageSet:
        pixels = rng.randint(low, 56, (len(labels), size, size, channels)) + level
        return ImageSet(pixels.astype(np.uint8), labels, names)

    return Dataset(name, {"train": split(), "test": split()})


if __name__ == "__main__":  # python -m tests.small_streams LEARNER OUT
    install()
    run(settings(sys.argv[1]), Path(sys.argv[2]))
