"""Drawn flags: the class is the layout; the colours are any, the cloth waves, leans and may be seen from behind."""

import numpy as np
from numpy.typing import NDArray

from espalier.data.drawn.canvas import Array, backdrop, between, box, fill, finish, grid, paint, sign, tint, turned

CLASS_NAMES = (
    "fess",
    "pale",
    "nordic",
    "saltire",
    "canton",
    "diagonal",
    "disc",
    "chevron",
    "quarters",
    "border",
)


def draw(label: int, count: int, size: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    picture = backdrop(rng, tint(rng, count, 0.1, 0.9), size, strength=0.2)
    u, v, slope = _cloth(size, rng, count)
    cloth = fill(box(u, v, 1.0, 1.0) * 0.75)
    paint(picture, tint(rng, count, 0.1, 0.3), cloth)
    for distance, brightness in zip(_layout(CLASS_NAMES[label], u, v, rng), (0.8, 0.5), strict=False):
        colour = tint(rng, count, brightness - 0.1, brightness + 0.1)
        paint(picture, colour, fill(np.maximum(distance, box(u, v, 1.0, 1.0)) * 0.75))
    _badge(picture, tint(rng, count, 0.1, 0.9), u, v, rng)
    picture *= 1 + slope[:, :, ::2, None] * cloth[..., None]
    return finish(rng, picture, noise=0.07)


def _cloth(size: int, rng: np.random.RandomState, count: int) -> tuple[Array, Array, Array]:
    """Coordinates -1..1 on a waving cloth, either side to the front, and how its folds catch the light."""
    x, y = grid(size)
    x, y = x - between(rng, -0.15, 0.15, count), y - between(rng, -0.15, 0.15, count)
    phase = between(rng, 0, 2 * np.pi, count) + between(rng, 2, 5, count) * x
    height = between(rng, 0.05, 0.15, count)
    u, v = turned(x, y + height * np.sin(phase), between(rng, -0.2, 0.2, count))
    wide, high = between(rng, 0.7, 1.0, count), between(rng, 0.6, 0.9, count)
    return u / wide * sign(rng, count), v / high * sign(rng, count), height * 1.5 * np.cos(phase)


def _badge(picture: Array, colour: Array, u: Array, v: Array, rng: np.random.RandomState) -> None:
    """A small device anywhere on half of the flags; it says nothing about the layout."""
    count = len(picture)
    at = np.hypot(u - between(rng, -0.8, 0.8, count), v - between(rng, -0.8, 0.8, count))
    paint(picture, colour, fill(at - 0.22) * rng.randint(0, 2, (count, 1, 1)))


def _layout(name: str, u: Array, v: Array, rng: np.random.RandomState) -> list[Array]:
    """One or two figures on the plain cloth, as distances; the later lies over the earlier."""
    count = len(u)
    third, bar = between(rng, 0.25, 0.42, count), between(rng, 0.13, 0.25, count)
    if name == "fess":
        return [third - v, v + third]
    if name == "pale":
        return [third - u, u + third]
    if name == "nordic":
        return [np.minimum(np.abs(v), np.abs(u + 0.35)) - bar]
    if name == "saltire":
        return [0.7 * np.minimum(np.abs(u - v), np.abs(u + v)) - bar]
    if name == "canton":
        return [np.maximum(u, v) + between(rng, -0.15, 0.15, count)]
    if name == "diagonal":
        return [0.7 * (u + v) + between(rng, -0.2, 0.2, count)]
    if name == "disc":
        return [np.hypot(u, v) - between(rng, 0.4, 0.65, count)]
    if name == "chevron":
        return [v, 0.7 * (u + np.abs(v)) + between(rng, -0.1, 0.25, count)]
    if name == "quarters":
        return [np.maximum(np.minimum(u, v), -np.maximum(u, v))]
    return [box(u, v, 1 - 1.5 * bar, 1 - 1.5 * bar)]
