"""Images that are already arrays: every usual layout becomes the same ImageSet, every mistake one sentence."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from espalier import ImageSet, InputError

N, HEIGHT, WIDTH = 4, 5, 6
LABELS = np.array([2, 0, 1, 2])


def pixels(channels: int = 3) -> NDArray[np.uint8]:
    return np.random.RandomState(channels).randint(0, 256, (N, HEIGHT, WIDTH, channels)).astype(np.uint8)


def same(found: ImageSet, expected: NDArray[np.uint8]) -> bool:
    assert found.images.dtype == np.uint8
    assert found.images.flags.c_contiguous
    assert found.labels.dtype == np.int64
    assert found.labels.tolist() == LABELS.tolist()
    return np.array_equal(found.images, expected)


# Layouts


def test_grey_without_a_channel_axis() -> None:
    assert same(ImageSet.from_arrays(pixels(1)[..., 0], LABELS), pixels(1))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last(channels: int) -> None:
    assert same(ImageSet.from_arrays(pixels(channels), LABELS), pixels(channels))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_first(channels: int) -> None:
    assert same(ImageSet.from_arrays(pixels(channels).transpose(0, 3, 1, 2), LABELS), pixels(channels))


@pytest.mark.parametrize("channels", [1, 3])
def test_torch_tensors(channels: int) -> None:
    x = torch.from_numpy(pixels(channels)).permute(0, 3, 1, 2)
    assert same(ImageSet.from_arrays(x, torch.from_numpy(LABELS)), pixels(channels))
    assert same(ImageSet.from_arrays(x.float() / 255, torch.from_numpy(LABELS)), pixels(channels))


def test_lists_of_arrays() -> None:
    assert same(ImageSet.from_arrays(list(pixels()), LABELS.tolist()), pixels())


def test_where_both_axes_could_be_channels_the_last_is() -> None:
    square = np.arange(2 * 3 * 7 * 3, dtype=np.uint8).reshape(2, 3, 7, 3)
    assert np.array_equal(ImageSet.from_arrays(square, [0, 1]).images, square)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_are_rounded_to_the_nearest_grey_level(kind: type[np.floating[Any]]) -> None:
    """Not cut off: 254.6 of 255 is white, and a byte divided by 255 comes back as itself."""
    assert same(ImageSet.from_arrays((pixels() / 255).astype(kind), LABELS), pixels())
    few = np.array([0, 0.4, 0.6, 127.4, 127.6, 254.4, 254.6, 255], np.float64) / 255
    found = ImageSet.from_arrays(few.astype(np.float64).reshape(1, 2, 4), [0])
    assert found.images.flatten().tolist() == [0, 0, 1, 127, 128, 254, 255, 255]


# Labels and names


def test_labels_in_a_column() -> None:
    assert same(ImageSet.from_arrays(pixels(), LABELS[:, None]), pixels())


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32, np.uint64])
def test_labels_of_any_whole_type(kind: type[np.integer[Any]]) -> None:
    assert same(ImageSet.from_arrays(pixels(), LABELS.astype(kind)), pixels())


def test_classes_without_names_are_called_by_their_numbers() -> None:
    found = ImageSet.from_arrays(pixels(), LABELS)
    assert found.class_names == ("0", "1", "2")
    assert found.counts() == [1, 1, 2]


def test_names_may_be_more_than_the_labels_use() -> None:
    found = ImageSet.from_arrays(pixels(), LABELS, ["cat", "dog", "hen", "owl"])
    assert found.class_names == ("cat", "dog", "hen", "owl")
    assert found.counts() == [1, 1, 2, 0]


def test_the_caller_s_arrays_are_not_written_to() -> None:
    x, y = pixels(), LABELS.copy()
    x.flags.writeable = y.flags.writeable = False
    assert same(ImageSet.from_arrays(x, y), pixels())


# Mistakes


def with_pixel(value: float) -> NDArray[np.float32]:
    x = (pixels() / 255).astype(np.float32)
    x[1, 2, 3, 0] = value
    return x


def refused(images: Any, labels: Any, names: list[str] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        ImageSet.from_arrays(images, labels, names)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_pixels_that_are_no_numbers_are_refused(value: float) -> None:
    assert "NaN or infinite" in refused(with_pixel(value), LABELS)


@pytest.mark.parametrize("value", [1.01, 255.0, -0.01])
def test_floats_outside_0_to_1_are_refused(value: float) -> None:
    assert "between 0 and 1" in refused(with_pixel(value), LABELS)


@pytest.mark.parametrize("kind", ["int32", "int64", "uint16", "int8", "bool", "complex64", "U3", "object"])
def test_images_of_other_types_are_refused(kind: str) -> None:
    assert f"type {np.dtype(kind)}" in refused(pixels().astype(kind), LABELS)


@pytest.mark.parametrize("shape", [(), (4,), (4, 5), (4, 5, 6, 2), (4, 5, 6, 4), (4, 2, 5, 6), (4, 1, 5, 6, 3)])
def test_shapes_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    assert "height, width" in refused(np.zeros(shape, np.uint8), LABELS)


@pytest.mark.parametrize("labels", [[0.0, 1.0, 2.0, 0.0], ["cat", "dog", "cat", "hen"], [None, 1, 2, 0], [True] * 4])
def test_labels_that_are_no_whole_numbers_are_refused(labels: list[Any]) -> None:
    assert "whole numbers" in refused(pixels(), labels)


@pytest.mark.parametrize("labels", [[0, 1, 0], [0, 1, 0, 1, 0], [[0, 1], [1, 0], [0, 1], [1, 0]], 1])
def test_another_number_of_labels_than_images_is_refused(labels: Any) -> None:
    assert "4 images need as many labels" in refused(pixels(), labels, ["a", "b"])


@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_a_negative_label_is_refused(names: list[str] | None) -> None:
    assert "label -1 is out of range" in refused(pixels(), [0, 1, -1, 2], names)


def test_a_label_without_a_name_is_refused() -> None:
    assert "label 2 is out of range: there are 2 classes" in refused(pixels(), LABELS, ["a", "b"])


def test_two_classes_of_one_name_are_refused() -> None:
    assert "same name" in refused(pixels(), LABELS, ["a", "b", "a"])


@pytest.mark.parametrize("label", [4, 10**9, 2**62])
def test_more_classes_than_images_need_names(label: int) -> None:
    """Said at once, not after making a thousand million names."""
    assert f"label {label} means more classes than images" in refused(pixels(), [0, 1, 2, label])


def test_as_many_classes_as_images_need_none() -> None:
    assert ImageSet.from_arrays(pixels(), [3, 1, 0, 2]).class_names == ("0", "1", "2", "3")


def test_images_of_different_sizes_are_refused() -> None:
    assert "same size" in refused([np.zeros((5, 6), np.uint8), np.zeros((5, 7), np.uint8)], [0, 1])


def test_labels_of_different_lengths_are_refused() -> None:
    assert "ragged" in refused(pixels(), [[0], [1, 2], [0], [1]])


@pytest.mark.parametrize("images", [[], np.zeros((0, 5, 6, 3), np.uint8), np.zeros((0, 5, 6), np.float32)])
@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_no_images_at_all_are_refused(images: Any, names: list[str] | None) -> None:
    assert "no images" in refused(images, [], names)


@pytest.mark.parametrize("shape", [(2, 0, 6, 3), (2, 5, 0), (2, 3, 0, 0)])
def test_images_without_pixels_are_refused(shape: tuple[int, ...]) -> None:
    assert "image" in refused(np.zeros(shape, np.uint8), [0, 1])
