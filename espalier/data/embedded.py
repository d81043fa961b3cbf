"""The image sets that need no download: scikit-learn's digits and six drawn families. Knows nothing about tasks."""

from collections.abc import Callable
from functools import partial

import numpy as np

from espalier.data.drawn import faces, flags, glyphs, letters, shapes, textures
from espalier.data.imageset import Dataset, Images, ImageSet
from espalier.errors import InputError
from espalier.seeds import generator

Draw = Callable[[int, int, int, np.random.RandomState], Images]

FAMILIES: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "shapes": (shapes.draw, shapes.CLASS_NAMES),
    "textures": (textures.draw, textures.CLASS_NAMES),
    "letters": (letters.draw, letters.CLASS_NAMES),
    "glyphs": (glyphs.draw, glyphs.CLASS_NAMES),
    "flags": (flags.draw, flags.CLASS_NAMES),
    "faces": (faces.draw, faces.CLASS_NAMES),
}
DESCRIPTIONS: dict[str, str] = {
    "digits": "handwritten digits, 8x8 grey, scanned (from scikit-learn)",
    "shapes": "ten filled figures in many poses before clutter, drawn",
    "textures": "ten two-coloured patterns at any angle, drawn",
    "letters": "ten capitals in unsteady strokes, drawn",
    "glyphs": "ten scribbles of an invented alphabet, drawn",
    "flags": "ten flag layouts in any colours on waving cloth, drawn",
    "faces": "ten expressions of emoticons, drawn",
}
TRAIN_PER_CLASS, TEST_PER_CLASS = 400, 100
DIGITS = tuple("0123456789")
DIGITS_TEST_PER_CLASS = 60
BATCH = 50  # images drawn at once: keeps the work in the processor's cache


def digits() -> Dataset:
    """scikit-learn's 1,797 scanned digits; 60 of each class, always the same, are the test split."""
    from sklearn.datasets import load_digits  # takes two seconds, and only this needs it

    raw = load_digits()
    images = np.rint(raw.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = raw.target.astype(np.int64)
    rng = generator(0, "digits")
    order = [rng.permutation(np.flatnonzero(labels == label)) for label in range(10)]
    test = np.sort(np.concatenate([of_class[:DIGITS_TEST_PER_CLASS] for of_class in order]))
    train = np.sort(np.concatenate([of_class[DIGITS_TEST_PER_CLASS:] for of_class in order]))
    splits = {"train": train, "test": test}
    return Dataset("digits", {split: ImageSet(images[at], labels[at], DIGITS) for split, at in splits.items()})


def drawn(name: str, per_class: int, size: int = 16, seed: int = 0, split: str = "train") -> ImageSet:
    """`per_class` images of each class of a drawn family, class after class.

    Asking for more images of a class begins with the same images as asking for fewer. Another seed or another split
    gives other images.
    """
    if name not in FAMILIES:
        raise InputError(f"there is no drawn family {name!r}; choose one of {', '.join(FAMILIES)}.")
    if per_class < 1 or size < 8:
        raise InputError(
            f"{per_class} images per class at size {size} cannot be drawn; ask for at least 1 at size 8 or more."
        )
    draw, class_names = FAMILIES[name]
    batches: list[Images] = []
    for label, class_name in enumerate(class_names):
        rng = generator(seed, name, split, class_name)
        # Always whole batches, cut afterwards: so the first images do not depend on how many are asked for.
        of_class = [draw(label, BATCH, size, rng) for _ in range(0, per_class, BATCH)]
        batches.append(np.concatenate(of_class)[:per_class])
    labels = np.repeat(np.arange(len(class_names), dtype=np.int64), per_class)
    return ImageSet(np.concatenate(batches), labels, class_names)


def _family(name: str) -> Dataset:
    train = drawn(name, TRAIN_PER_CLASS, split="train")
    return Dataset(name, {"train": train, "test": drawn(name, TEST_PER_CLASS, split="test")})


EMBEDDED: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    **{name: partial(_family, name) for name in FAMILIES},
}


def embedded(name: str) -> Dataset:
    """An embedded dataset by name, the same bytes always."""
    if name not in EMBEDDED:
        raise InputError(f"there is no embedded dataset {name!r}; choose one of {', '.join(EMBEDDED)}.")
    return EMBEDDED[name]()


def embedded_classes(name: str) -> tuple[str, ...]:
    """The class names of an embedded dataset, without drawing it."""
    return FAMILIES[name][1] if name in FAMILIES else DIGITS
