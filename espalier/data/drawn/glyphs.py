"""Drawn glyphs: ten scribbles of an alphabet that nobody writes; each image is a hand's own version of one of them."""

import numpy as np
from numpy.typing import NDArray

from espalier.data.drawn.canvas import Array, backdrop, between, fill, finish, paint, strokes, tint

CLASS_NAMES = tuple(f"glyph{i}" for i in range(10))
PIECES = 6


def _programme(label: int) -> Array:
    """The two curved strokes of a class as points (2, PIECES + 1, 2); the same in every run."""
    corners = np.random.RandomState(1000 + label).uniform(-1.25, 1.25, (2, 4, 2))
    t = np.linspace(0, 1, PIECES + 1)[:, None]
    bezier = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    curve: Array = np.einsum("tk,skd->std", bezier, corners)
    low, high = curve.min(axis=(0, 1)), curve.max(axis=(0, 1))
    centred: Array = (curve - (low + high) / 2) / ((high - low) / 2)
    return centred


def draw(label: int, count: int, size: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    picture = backdrop(rng, tint(rng, count, 0.1, 0.4), size, strength=0.2)
    points = _deformed(_programme(label), rng, count)
    start, end = points[:, :, :-1].reshape(count, -1, 2), points[:, :, 1:].reshape(count, -1, 2)
    paint(picture, tint(rng, count, 0.6, 0.9), fill(strokes(start, end, size) - between(rng, 0.05, 0.12, count)))
    return finish(rng, picture, noise=0.07)


def _deformed(points: Array, rng: np.random.RandomState, count: int) -> Array:
    """The points (strokes, n, 2) as `count` hands would put them: a soft warp, then a random affine frame."""
    wave = rng.uniform(-0.25, 0.25, (count, 1, 1, 2))
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1, 2))
    warped = points + wave * np.sin(2.2 * points[..., ::-1] + phase)
    turn = rng.uniform(-0.45, 0.45, count)
    c, s = np.cos(turn), np.sin(turn)
    frame = np.array([[c, -s], [s, c]]).transpose(2, 0, 1) + rng.uniform(-0.2, 0.2, (count, 2, 2))
    scale = rng.uniform(0.5, 0.75, (count, 1, 1, 1))
    framed: Array = np.einsum("csnq,cpq->csnp", warped, frame) * scale
    return framed + rng.uniform(-0.2, 0.2, (count, 1, 1, 2))
