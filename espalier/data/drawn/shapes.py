"""Drawn shapes: one filled figure, moved, scaled, turned and stretched, before uneven ground, a line and a blob."""

import numpy as np
from numpy.typing import NDArray

from espalier.data.drawn.canvas import (
    Array,
    backdrop,
    between,
    box,
    fill,
    finish,
    grid,
    paint,
    posed,
    strokes,
    tint,
)

CLASS_NAMES = (
    "circle",
    "square",
    "triangle",
    "star",
    "cross",
    "ring",
    "hourglass",
    "crescent",
    "heart",
    "arrow",
)


def draw(label: int, count: int, size: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    picture = backdrop(rng, tint(rng, count, 0.1, 0.4), size, strength=0.15)
    _clutter(picture, rng)
    scale = between(rng, 0.5, 0.85, count)
    u, v = posed(size, rng, count, shift=0.2, scale=scale, turn=0.8, stretch=0.12)
    paint(picture, tint(rng, count, 0.6, 0.9), fill(_distance(CLASS_NAMES[label], u, v) * scale))
    return finish(rng, picture, noise=0.07)


def _clutter(picture: Array, rng: np.random.RandomState) -> None:
    """A thin line across the picture and a small blob."""
    count, size = picture.shape[:2]
    ends = rng.uniform(-1.2, 1.2, (count, 1, 2, 2))
    line = strokes(ends[:, :, 0], ends[:, :, 1], size) - between(rng, 0.03, 0.08, count)
    paint(picture, tint(rng, count, 0.1, 0.9), fill(line))
    x, y = grid(size)
    away = np.hypot(x - between(rng, -1, 1, count), y - between(rng, -1, 1, count))
    paint(picture, tint(rng, count, 0.1, 0.9), fill(away - between(rng, 0.1, 0.25, count)))


def _distance(name: str, u: Array, v: Array) -> Array:
    """Roughly the distance to the edge of the figure, which is about 2 across; negative inside."""
    if name == "circle":
        return np.hypot(u, v) - 0.85
    if name == "square":
        return box(u, v, 0.75, 0.75)
    if name == "triangle":
        return np.maximum(v - 0.55, 0.866 * np.abs(u) - 0.5 * v - 0.5)
    if name == "star":
        fifth = 2 * np.pi / 5
        angle = np.abs(np.mod(np.arctan2(u, v), fifth) - fifth / 2)  # 0 in a notch, half a fifth at a tip
        radius = np.hypot(u, v)
        return radius * (0.834 * np.cos(angle) - 0.552 * np.sin(angle)) - 0.35
    if name == "cross":
        return np.minimum(box(u, v, 0.95, 0.27), box(u, v, 0.27, 0.95))
    if name == "ring":
        return np.abs(np.hypot(u, v) - 0.7) - 0.2
    if name == "hourglass":
        return np.maximum(np.abs(v) - 0.85, 0.8 * (np.abs(u) - 0.75 * np.abs(v) - 0.08))
    if name == "crescent":
        return np.maximum(np.hypot(u, v) - 0.95, 0.75 - np.hypot(u - 0.45, v))
    if name == "heart":
        lobes = np.hypot(np.abs(u) - 0.45, v + 0.4) - 0.45
        point = np.maximum(0.8 * np.abs(u) + 0.6 * v - 0.57, -0.4 - v)
        return np.minimum(lobes, point)
    shaft = box(u, v - 0.45, 0.2, 0.5)
    head = np.maximum(v + 0.05, 0.75 * np.abs(u) - 0.66 * v - 0.6)
    return np.minimum(shaft, head)
