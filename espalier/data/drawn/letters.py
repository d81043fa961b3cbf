"""Drawn letters: ten capitals made of straight strokes, with unsteady ends, slant, turn, thickness and colours."""

import numpy as np
from numpy.typing import NDArray

from espalier.data.drawn.canvas import backdrop, between, fill, finish, paint, strokes, tint

# Strokes as x0 y0 x1 y1 in a box from 0 0 (top left) to 2 2 (bottom right).
LETTERS = {
    "A": "0 2 1 0  1 0 2 2  .5 1.2 1.5 1.2",
    "E": "0 0 0 2  0 0 1.7 0  0 1 1.4 1  0 2 1.7 2",
    "F": "0 0 0 2  0 0 1.8 0  0 1 1.4 1",
    "H": "0 0 0 2  2 0 2 2  0 1 2 1",
    "K": "0 0 0 2  1.8 0 0 1.1  .6 .8 1.8 2",
    "L": "0 0 0 2  0 2 1.7 2",
    "N": "0 2 0 0  0 0 1.9 2  1.9 2 1.9 0",
    "T": "0 0 2 0  1 0 1 2",
    "X": "0 0 2 2  2 0 0 2",
    "Z": "0 0 2 0  2 0 0 2  0 2 2 2",
}
CLASS_NAMES = tuple(LETTERS)


def draw(label: int, count: int, size: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    picture = backdrop(rng, tint(rng, count, 0.6, 0.9), size, strength=0.2)
    scratch = rng.uniform(-1.2, 1.2, (count, 2, 2, 2))
    paint(picture, tint(rng, count, 0.1, 0.9), fill(strokes(scratch[:, :, 0], scratch[:, :, 1], size) - 0.03))

    ends = np.array(LETTERS[CLASS_NAMES[label]].split(), dtype=np.float64).reshape(-1, 2, 2) - 1
    jittered = ends + rng.uniform(-0.15, 0.15, (count, *ends.shape))
    placed = np.einsum("cseq,cpq->csep", jittered, _frames(rng, count)) + rng.uniform(-0.2, 0.2, (count, 1, 1, 2))
    thickness = between(rng, 0.07, 0.16, count)
    paint(picture, tint(rng, count, 0.1, 0.4), fill(strokes(placed[:, :, 0], placed[:, :, 1], size) - thickness))
    return finish(rng, picture, noise=0.07)


def _frames(rng: np.random.RandomState, count: int) -> NDArray[np.float64]:
    """A matrix (2, 2) per image: width and height, then slant, then turn."""
    turn, slant = rng.uniform(-0.35, 0.35, count), rng.uniform(-0.3, 0.3, count)
    wide, high = rng.uniform(0.4, 0.65, count), rng.uniform(0.5, 0.75, count)
    c, s = np.cos(turn), np.sin(turn)
    rows = [[c * wide, (c * slant - s) * high], [s * wide, (s * slant + c) * high]]
    return np.array(rows).transpose(2, 0, 1)
