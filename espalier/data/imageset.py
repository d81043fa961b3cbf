"""`ImageSet` and `Dataset`: labelled images in memory. Knows nothing about files, tasks or tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.errors import InputError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one size with their labels: `images` (n, height, width, channels), `labels` (n,)."""

    images: Images
    labels: Labels
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] not in (1, 3):
            raise InputError(
                f"images must be uint8 of shape (n, height, width, 1 or 3), not {self.images.dtype} "
                f"{self.images.shape}; ImageSet.from_arrays converts the usual layouts."
            )
        if self.labels.shape != (len(self.images),):
            raise InputError(
                f"{len(self.images)} images need as many labels, not an array of shape {self.labels.shape}."
            )
        if len(set(self.class_names)) != len(self.class_names):
            raise InputError("two classes have the same name; give every class a name of its own.")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.class_names):
            bad = self.labels[(self.labels < 0) | (self.labels >= len(self.class_names))][0]
            raise InputError(f"label {bad} is out of range: there are {len(self.class_names)} classes, counted from 0.")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"ImageSet({len(self)} images of {self.images.shape[1:]}, {len(self.class_names)} classes)"

    def counts(self) -> list[int]:
        """The number of images of each class."""
        return [int(n) for n in np.bincount(self.labels, minlength=len(self.class_names))]

    @staticmethod
    def from_arrays(images: Any, labels: Any, class_names: Sequence[str] | None = None) -> "ImageSet":
        """Images from any array: (n, h, w), (n, h, w, c) or (n, c, h, w), as uint8 or as floats between 0 and 1."""
        try:
            array, ids = np.asarray(images), np.asarray(labels)
        except ValueError:
            raise InputError("the images or labels are ragged; give every image the same size.") from None
        if array.size == 0 or ids.size == 0:
            raise InputError(f"there are no images in an array of shape {array.shape} with {ids.size} labels.")
        if array.ndim == 3:
            array = array[..., None]
        if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
            array = array.transpose(0, 2, 3, 1)
        labels = _whole_numbers(ids[:, 0] if ids.ndim == 2 and ids.shape[1] == 1 else ids)
        if class_names is None:
            highest = int(labels.max())
            if highest >= len(labels):
                raise InputError(f"label {highest} means more classes than images; count classes from 0, or name them.")
            class_names = [str(i) for i in range(highest + 1)]
        return ImageSet(np.ascontiguousarray(_as_uint8(array)), labels, tuple(class_names))


def _whole_numbers(ids: NDArray[Any]) -> Labels:
    if not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"labels must be whole numbers, not {ids.dtype}; pass class_names for the words.")
    return ids.astype(np.int64)


def _as_uint8(array: NDArray[Any]) -> Images:
    if array.dtype == np.uint8:
        return array.astype(np.uint8, copy=False)
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all():
            raise InputError("the images hold NaN or infinite pixels; repair or remove those images.")
        if array.size and (array.min() < 0 or array.max() > 1):
            raise InputError("float images must lie between 0 and 1; divide by 255 or pass uint8.")
        rounded: Images = np.rint(array * 255).astype(np.uint8)
        return rounded
    raise InputError(f"images of type {array.dtype} are not understood; pass uint8, or floats between 0 and 1.")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named dataset: its splits ('train', 'test', sometimes 'val'), and whether it is all there."""

    name: str
    splits: Mapping[str, ImageSet]
    complete: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        if not self.splits:
            raise InputError(f"dataset {self.name!r} has no splits.")
        if len({s.class_names for s in self.splits.values()}) != 1:
            raise InputError(f"the splits of dataset {self.name!r} do not name the same classes.")
        if len({s.images.shape[1:] for s in self.splits.values()}) != 1:
            raise InputError(f"the splits of dataset {self.name!r} hold images of different sizes.")

    @property
    def class_names(self) -> tuple[str, ...]:
        return next(iter(self.splits.values())).class_names

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        _, h, w, c = next(iter(self.splits.values())).images.shape
        return h, w, c
