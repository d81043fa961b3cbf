"""How a user's images are split, and which names they may have."""

import numpy as np
import pytest

from espalier import DataFolder, TaskSpec
from espalier.data.imageset import ImageSet
from espalier.data.own import as_dataset, check_name
from espalier.errors import InputError
from espalier.streams import build_task


def numbered(*counts: int) -> ImageSet:
    """Images that all differ, `counts[i]` of class i."""
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.arange(len(labels) * 3, dtype=np.uint32).view(np.uint8).reshape(-1, 2, 2, 3)
    return ImageSet(images, labels, tuple("abcdefgh"[: len(counts)]))


def contents(images: ImageSet) -> set[bytes]:
    return {image.tobytes() for image in images.images}


def test_the_split_is_stratified_and_loses_nothing() -> None:
    images = numbered(50, 10, 3)
    splits = as_dataset(images, "mine").splits
    assert list(splits) == ["train", "test"]
    assert splits["test"].counts() == [10, 2, 1]
    assert splits["train"].counts() == [40, 8, 2]
    assert not contents(splits["train"]) & contents(splits["test"])
    assert contents(splits["train"]) | contents(splits["test"]) == contents(images)


def test_every_class_keeps_an_image_on_each_side() -> None:
    assert as_dataset(numbered(3, 4), "mine", test=0.01).splits["test"].counts() == [1, 1]
    assert as_dataset(numbered(3, 4), "mine", test=0.99).splits["train"].counts() == [2, 2]


def test_the_split_depends_on_the_seed_and_the_class_alone() -> None:
    def test_of(images: ImageSet, name: str = "mine", seed: int = 0) -> set[bytes]:
        test = as_dataset(images, name, seed).splits["test"]
        return {image.tobytes() for image in test.images[test.labels == 0]}

    images = numbered(50, 10)
    assert test_of(images) == test_of(images)
    assert test_of(images) == test_of(numbered(50, 20, 5))
    assert test_of(images) != test_of(images, seed=1)
    assert test_of(images) == test_of(images, name="other")


@pytest.mark.parametrize("seed", range(5))
def test_copies_of_a_picture_count_as_one(seed: int) -> None:
    images = numbered(6, 6)
    copies = ImageSet(images.images.repeat(3, axis=0), images.labels.repeat(3), images.class_names)
    splits = as_dataset(copies, "mine", seed).splits
    assert not contents(splits["train"]) & contents(splits["test"])
    assert len(splits["train"]) + len(splits["test"]) == 12


@pytest.mark.parametrize("seed", range(5))
def test_three_different_pictures_are_enough_however_often_they_are_there(seed: int) -> None:
    images = numbered(3, 3)
    often = [0, 1, 2, 2, 2, 3, 3, 3, 4, 5]
    data = DataFolder()
    data.add(as_dataset(ImageSet(images.images[often], images.labels[often], images.class_names), "mine", seed))
    task = build_task(TaskSpec("mine", ("a", "b"), train=None, val=None, size=4), data, seed)
    assert [len(task.train), len(task.val), len(task.test)] == [2, 2, 2]


def test_what_cannot_be_split_is_refused() -> None:
    images = numbered(3, 3)
    same = ImageSet(images.images[[0, 1, 2, 3, 3, 3]], images.labels, images.class_names)
    with pytest.raises(InputError, match=r"class 'b' of 'mine' has 1 different images"):
        as_dataset(same, "mine")
    with pytest.raises(InputError, match=r"class 'b' of 'mine' has 0 different images"):
        as_dataset(ImageSet(images.images[:3], images.labels[:3], images.class_names), "mine")
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(InputError, match="must lie between 0 and 1"):
            as_dataset(images, "mine", test=share)
    with pytest.raises(InputError, match="cannot name a dataset"):
        as_dataset(images, "My Images")


def test_names() -> None:
    for name in ("a", "my-cats_2", "0"):
        check_name(name)
    for name in ("", "A", "ü", "a b", "../a", "a/b", ".a", "-a", "a\n", "a" * 101):
        with pytest.raises(InputError, match="cannot name a dataset; use lower-case letters"):
            check_name(name)


def test_names_of_the_streams_datasets_are_refused() -> None:
    for name in ("mnist", "shapes"):
        with pytest.raises(InputError, match="the name of a dataset that streams use"):
            as_dataset(numbered(3, 3), name)


def test_a_single_class_is_no_dataset() -> None:
    with pytest.raises(InputError, match="one class only"):
        as_dataset(numbered(9), "mine")


def test_hardly_a_picture_that_was_trained_on_is_tested_on_in_a_larger_set() -> None:
    trained = contents(as_dataset(numbered(60, 120), "mine").splits["train"])
    tested = contents(as_dataset(numbered(60, 200), "larger").splits["test"])
    assert len(tested) == 12 + 40
    assert len(tested & trained) <= 3
