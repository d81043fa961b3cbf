"""Drawn faces: the class is the expression; head, pose and colours vary, and hats or glasses get in the way."""

import numpy as np
from numpy.typing import NDArray

from espalier.data.drawn.canvas import (
    Array,
    backdrop,
    between,
    box,
    fill,
    finish,
    paint,
    posed,
    sign,
    tint,
)

CLASS_NAMES = (
    "happy",
    "sad",
    "surprised",
    "wink",
    "angry",
    "asleep",
    "laughing",
    "crying",
    "neutral",
    "skeptical",
)
TEAR = np.array([0.25, 0.6, 1.0])


def draw(label: int, count: int, size: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    skin, ink = tint(rng, count, 0.55, 0.9), tint(rng, count, 0.02, 0.15)
    picture = backdrop(rng, tint(rng, count, 0.1, 0.9), size, strength=0.15)
    scale = between(rng, 0.8, 1.0, count)
    u, v = posed(size, rng, count, shift=0.12, scale=scale, turn=0.2, stretch=0.08)
    paint(picture, skin, fill((np.hypot(u, v) - 0.95) * scale))
    _trimmings(picture, tint(rng, count, 0.15, 0.9), u, v, scale, rng)
    u = u * sign(rng, count)  # a wink may be left or right
    marks, tears = _expression(CLASS_NAMES[label], u, v, rng)
    paint(picture, ink, fill(marks * scale))
    if tears is not None:
        paint(picture, np.broadcast_to(TEAR, (count, 3)), fill(tears * scale))
    return finish(rng, picture, noise=0.06)


def _trimmings(picture: Array, colour: Array, u: Array, v: Array, scale: Array, rng: np.random.RandomState) -> None:
    """A hat, a fringe, glasses or nothing, a quarter of the faces each."""
    kind = rng.randint(0, 4, (len(picture), 1, 1))
    hat = np.minimum(box(u, v + 0.62, 1.05, 0.09), box(u, v + 0.9, 0.6, 0.3))
    fringe = np.maximum(np.hypot(u, v) - 1.0, v + 0.62 - 0.3 * u)
    glasses = np.abs(np.hypot(np.abs(u) - 0.38, v + 0.2) - 0.27) - 0.04
    for number, figure in enumerate((hat, fringe, glasses), start=1):
        paint(picture, colour, fill(figure * scale) * (kind == number))


def _arc(u: Array, v: Array, width: float, bend: Array | float, thick: float = 0.09) -> Array:
    """A mouth or eyelid: a bow across the origin, its ends up for bend > 0."""
    slope = 2 * bend * u / width**2
    bow = np.abs(v + bend * ((u / width) ** 2 - 0.5)) / np.sqrt(1 + slope**2)
    return np.maximum(bow - thick, np.abs(u) - width)


def _expression(name: str, u: Array, v: Array, rng: np.random.RandomState) -> tuple[Array, Array | None]:
    """The dark marks of a face as one distance, and tears if there are any."""
    count = len(u)
    mouth = v - between(rng, 0.35, 0.5, count)
    bend = between(rng, 0.25, 0.4, count)
    aside, eye = np.abs(u) - between(rng, 0.33, 0.43, count), v + between(rng, 0.15, 0.27, count)
    dots = np.hypot(aside, eye) - 0.13
    shut = _arc(aside, eye, 0.24, 0.12, 0.07)
    if name == "happy":
        return np.minimum(dots, _arc(u, mouth, 0.5, bend)), None
    if name == "sad":
        return np.minimum(dots, _arc(u, mouth, 0.5, -bend)), None
    if name == "surprised":
        wide = np.hypot(aside, eye) - 0.2
        return np.minimum(wide, np.hypot(u, mouth) - between(rng, 0.22, 0.32, count)), None
    if name == "wink":
        return np.minimum(np.where(u < 0, dots, _arc(aside, eye, 0.24, 0.0)), _arc(u, mouth, 0.5, bend)), None
    if name == "angry":
        brows = box(aside, eye + 0.2 + 0.6 * aside, 0.28, 0.09)
        return np.minimum(np.minimum(dots, brows), _arc(u, mouth, 0.4, -0.15)), None
    if name == "asleep":
        return np.minimum(shut, _arc(u, mouth, 0.2, 0.0)), None
    if name == "laughing":
        grin = np.maximum(np.hypot(u, mouth + 0.15) - 0.5, -mouth - 0.15)
        return np.minimum(_arc(aside, eye, 0.24, -0.2), grin), None
    if name == "crying":
        tears = box(aside, eye - 0.42, 0.1, 0.3)
        return np.minimum(dots, _arc(u, mouth, 0.3, -bend)), tears
    if name == "neutral":
        return np.minimum(dots, _arc(u, mouth, 0.45, 0.0)), None
    brow = np.maximum(box(aside, eye + 0.33, 0.27, 0.07), -u)
    slanted = box(u, mouth + 0.45 * u, 0.45, 0.1)
    return np.minimum(np.minimum(dots, brow), slanted), None
