"""Drawn textures: a two-coloured pattern over the whole picture; spacing, turn, phase and colours vary."""

import numpy as np
from numpy.typing import NDArray

from espalier.data.drawn.canvas import Array, backdrop, between, down, finish, paint, posed, smooth, tint

CLASS_NAMES = ("stripes", "checks", "dots", "rings", "rays", "bricks", "zigzag", "cells", "marble", "weave")


def draw(label: int, count: int, size: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    picture = backdrop(rng, tint(rng, count, 0.1, 0.4), size, strength=0.15)
    # One unit of the frame is one repeat of the pattern; the shift moves the pattern by up to a repeat or so.
    repeat = between(rng, 0.5, 0.75, count)
    u, v = posed(size, rng, count, shift=0.5, scale=repeat, turn=np.pi, stretch=0.15)
    height = _height(CLASS_NAMES[label], u, v, rng)
    samples = repeat * size  # in one repeat: an edge is one sample wide
    paint(picture, tint(rng, count, 0.6, 0.9), down(np.clip(0.5 + height * samples, 0, 1)))
    return finish(rng, picture, noise=0.08)


def _saw(t: Array) -> Array:
    """A triangle wave of period 1 between -0.25 and 0.25, its peak at whole numbers."""
    return np.abs(np.mod(t, 1.0) - 0.5) - 0.25


def _height(name: str, u: Array, v: Array, rng: np.random.RandomState) -> Array:
    """A landscape in units of a repeat, above 0 where the second colour goes."""
    count = len(u)
    if name == "stripes":
        return _saw(u) + 0 * v
    if name == "checks":
        return 4 * _saw(0.7 * u) * _saw(0.7 * v)
    if name == "dots":
        return 0.33 - np.hypot(np.mod(u, 1.0) - 0.5, np.mod(v, 1.0) - 0.5)
    if name == "rings":
        return _saw(np.hypot(u, v) + between(rng, 0, 1, count))
    if name == "rays":
        spokes = rng.randint(5, 9, (count, 1, 1))
        return np.hypot(u, v) * _saw(np.arctan2(u, v) * spokes / (2 * np.pi)) * 8 / spokes
    if name == "bricks":
        row = np.floor(v + 0.5)  # a wall's rows change where its level joints are
        joint = np.minimum(2 * _saw((u + row) / 2) + 0.5, _saw(v) + 0.25)
        return joint - 0.12
    if name == "zigzag":
        return _saw(u + 1.6 * _saw(v * 0.6))
    if name == "cells":
        return _walls(u, v, rng)
    if name == "marble":
        points = u.shape[1]
        return 0.3 * (smooth(rng, count, 6, points) + 0.6 * smooth(rng, count, 10, points))
    flat, tall = _saw(1.5 * u), _saw(1.5 * v)
    over = np.clip(40 * _saw(0.375 * u) * _saw(0.375 * v), -1, 1)
    return 0.25 * (flat * (1 + over) + tall * (1 - over))


def _walls(u: Array, v: Array, rng: np.random.RandomState) -> Array:
    """The walls between cells: above 0 where two of twelve random points are about equally near."""
    nearest: Array = np.full(u.shape, np.inf)
    second = nearest.copy()
    for at in rng.uniform(-1.8, 1.8, (12, 2, len(u), 1, 1)):
        away = np.hypot(u - at[0], v - at[1])
        second = np.minimum(second, np.maximum(nearest, away))
        nearest = np.minimum(nearest, away)
    return 0.2 - (second - nearest)
