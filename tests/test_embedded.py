"""The embedded image sets: the same bytes always, ten classes, neither trivial nor hopeless."""

import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from espalier.data.embedded import DESCRIPTIONS, EMBEDDED, FAMILIES, digits, drawn, embedded
from espalier.data.imageset import Dataset, ImageSet
from espalier.errors import InputError
from espalier.seeds import generator

HASH_ALL = """
import hashlib
from espalier.data.embedded import FAMILIES, digits, drawn
total = hashlib.sha256()
for images in [*digits().splits.values(), *(drawn(name, 5) for name in FAMILIES)]:
    total.update(images.images.tobytes() + images.labels.tobytes())
"""

family = pytest.mark.parametrize("name", list(FAMILIES))


@cache
def whole(name: str) -> Dataset:
    return embedded(name)


def rows(images: ImageSet) -> NDArray[np.uint8]:
    return images.images.reshape(len(images), -1)


def test_names_in_order_each_described_in_one_line() -> None:
    assert list(EMBEDDED) == ["digits", "shapes", "textures", "letters", "glyphs", "flags", "faces"]
    assert list(DESCRIPTIONS) == list(EMBEDDED)
    assert all("\n" not in line and len(line) < 80 for line in DESCRIPTIONS.values())


def test_a_fresh_process_makes_the_same_bytes() -> None:
    here: dict[str, Any] = {}
    exec(HASH_ALL, here)
    command = [sys.executable, "-c", HASH_ALL + "print(total.hexdigest())"]
    fresh = subprocess.run(command, capture_output=True, text=True, check=True)
    assert fresh.stdout.strip() == here["total"].hexdigest()


@family
def test_a_family_has_its_counts_and_shape(name: str) -> None:
    dataset = whole(name)
    assert dataset.name == name
    assert dataset.image_shape == (16, 16, 3)
    assert len(set(dataset.class_names)) == 10
    assert dataset.splits["train"].counts() == [400] * 10
    assert dataset.splits["test"].counts() == [100] * 10


@family
def test_no_image_comes_twice_in_a_family(name: str) -> None:
    splits = whole(name).splits
    everything = [row.tobytes() for split in splits.values() for row in rows(split)]
    assert len(set(everything)) == len(everything) == 5000


@family
def test_images_vary_inside_a_class_and_inside_an_image(name: str) -> None:
    train = whole(name).splits["train"]
    pixels = rows(train).astype(np.float64)
    assert pixels.std(axis=1).min() > 5
    for label in range(10):
        assert pixels[train.labels == label].std(axis=0).min() > 5


@family
def test_seed_and_split_change_the_images_and_the_count_does_not(name: str) -> None:
    few, more = drawn(name, 3), drawn(name, 7)
    other_seed, other_split = drawn(name, 3, seed=1), drawn(name, 3, split="test")
    assert few.counts() == [3] * 10
    for label in range(10):
        assert np.array_equal(few.images[few.labels == label], more.images[more.labels == label][:3])
    for other in (other_seed, other_split):
        assert (rows(few) != rows(other)).any(axis=1).all()


@family
def test_more_than_one_batch_of_a_class(name: str) -> None:
    train = drawn(name, 130)
    assert train.counts() == [130] * 10
    assert np.array_equal(train.images[130:260], whole(name).splits["train"].images[400:530])


@family
@pytest.mark.parametrize("size", [8, 16, 32])
def test_every_class_is_drawn_at_every_size(name: str, size: int) -> None:
    draw, class_names = FAMILIES[name]
    for label in range(len(class_names)):
        images = draw(label, 3, size, generator(0, "sizes", name, label))
        assert images.shape == (3, size, size, 3)
        assert images.dtype == np.uint8
        assert images.reshape(3, -1).std(axis=1).min() > 5


@family
def test_nearest_neighbours_of_forty_images_are_better_than_chance_and_not_enough(name: str) -> None:
    train, test = drawn(name, 4), whole(name).splits["test"]
    a, b = rows(test).astype(np.float64), rows(train).astype(np.float64)
    nearest = ((b**2).sum(axis=1) - 2 * a @ b.T).argmin(axis=1)
    accuracy = float((train.labels[nearest] == test.labels).mean())
    assert 0.12 < accuracy < 0.95


def test_digits_are_those_of_scikit_learn_split_sixty_per_class() -> None:
    dataset = digits()
    train, test = dataset.splits["train"], dataset.splits["test"]
    assert dataset.image_shape == (8, 8, 1)
    assert dataset.class_names == tuple("0123456789")
    assert test.counts() == [60] * 10
    raw = load_digits()
    assert (np.array(train.counts()) + 60).tolist() == np.bincount(raw.target).tolist()
    ours = sorted(
        (*row, label) for split in (train, test) for row, label in zip(rows(split), split.labels, strict=True)
    )
    theirs = np.rint(raw.data * 255 / 16).astype(np.uint8)
    assert ours == sorted((*row, label) for row, label in zip(theirs, raw.target, strict=True))
    assert not {row.tobytes() for row in rows(train)} & {row.tobytes() for row in rows(test)}


@pytest.mark.parametrize("name", ["mnist", "", "Shapes"])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match=r"digits, shapes, textures, letters, glyphs, flags, faces\.$"):
        embedded(name)
    with pytest.raises(InputError, match=r"choose one of shapes, textures, letters, glyphs, flags, faces\.$"):
        drawn(name, 1)


@pytest.mark.parametrize(("per_class", "size"), [(0, 16), (-1, 16), (1, 7)])
def test_what_cannot_be_drawn_is_refused(per_class: int, size: int) -> None:
    with pytest.raises(InputError, match="at least 1 at size 8 or more"):
        drawn("shapes", per_class, size)
