"""What all drawn families share: the grid, poses, colours, anti-aliased filling, noise. Knows no class and no family.

The picture spans -1..1 both ways, y downward. Shapes are distances (negative inside) on a grid of 2x2 samples per
pixel. All is float64 and all edges are soft, so the last bit of another machine's sine does not change a byte.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SAMPLES = 2


def grid(size: int) -> tuple[Array, Array]:
    """x (1, 1, n) and y (1, n, 1) of the sample points."""
    points = (np.arange(SAMPLES * size) + 0.5) * 2 / (SAMPLES * size) - 1
    return points[None, None, :], points[None, :, None]


def between(rng: np.random.RandomState, low: float, high: float, count: int) -> Array:
    """One number per image, shaped to be used with a grid."""
    return rng.uniform(low, high, (count, 1, 1))


def sign(rng: np.random.RandomState, count: int) -> Array:
    """-1 or 1 per image, shaped to be used with a grid."""
    return rng.choice([-1.0, 1.0], (count, 1, 1))


def turned(x: Array, y: Array, angle: Array) -> tuple[Array, Array]:
    """The coordinates seen from a frame turned by `angle`."""
    c, s = np.cos(angle), np.sin(angle)
    return c * x + s * y, c * y - s * x


def posed(
    size: int, rng: np.random.RandomState, count: int, *, shift: float, scale: Array, turn: float, stretch: float
) -> tuple[Array, Array]:
    """Coordinates of a frame per image: moved, turned, stretched at random, and 1 long at `scale` of the picture."""
    x, y = grid(size)
    x, y = x - between(rng, -shift, shift, count), y - between(rng, -shift, shift, count)
    u, v = turned(x, y, between(rng, -turn, turn, count))
    ratio = np.exp(between(rng, -stretch, stretch, count))
    return u / (scale * ratio), v * ratio / scale


def down(values: Array) -> Array:
    """The mean of the samples of each pixel."""
    top, bottom = values[:, ::2], values[:, 1::2]
    return (top[:, :, ::2] + top[:, :, 1::2] + bottom[:, :, ::2] + bottom[:, :, 1::2]) / 4


def fill(distance: Array) -> Array:
    """How much of each pixel lies inside (distance < 0), 0..1; distances are in picture units."""
    return down(np.clip(0.5 - distance * (distance.shape[1] / 2), 0, 1))


def box(u: Array, v: Array, half_width: Array | float, half_height: Array | float) -> Array:
    return np.maximum(np.abs(u) - half_width, np.abs(v) - half_height)


def strokes(start: Array, end: Array, size: int) -> Array:
    """Distance of each sample to the nearest of n straight lines; `start` and `end` are (count, n, 2)."""
    x, y = grid(size)
    nearest: Array = np.full((len(start), SAMPLES * size, SAMPLES * size), np.inf)
    for (ax, ay), (bx, by) in zip(start.transpose(1, 2, 0), end.transpose(1, 2, 0), strict=True):
        px, py = x - ax[:, None, None], y - ay[:, None, None]
        dx, dy = (bx - ax)[:, None, None], (by - ay)[:, None, None]
        length = dx**2 + dy**2 + 1e-12
        along = px * dx + py * dy
        t = np.clip(along / length, 0, 1)
        np.minimum(nearest, (px**2 + py**2) + t * (t * length - 2 * along), out=nearest)
    return np.sqrt(np.maximum(nearest, 0))


def tint(rng: np.random.RandomState, count: int, dark: float, light: float) -> Array:
    """A colour per image, (count, 3), of any hue; as bright to the eye as a grey between `dark` and `light`.

    Two tints from ranges that lie apart are never too alike.
    """
    colour = rng.uniform(0, 1, (count, 3))
    wanted = rng.uniform(dark, light, (count, 1))
    bright = colour @ np.array([[0.3], [0.55], [0.15]])
    darker, lighter = colour * wanted / bright, 1 - (1 - colour) * (1 - wanted) / (1 - bright)
    chosen: Array = np.where(wanted < bright, darker, lighter)
    return chosen


def smooth(rng: np.random.RandomState, count: int, cells: int, points: int) -> Array:
    """Soft random hills, -1..1, (count, points, points): a `cells` x `cells` lattice of numbers, interpolated."""
    at = np.linspace(0, cells - 1, points)[:, None]
    weights = np.maximum(1 - np.abs(at - np.arange(cells)), 0)
    weights = weights**2 * (3 - 2 * weights)
    lattice = rng.uniform(-1, 1, (count, cells, cells))
    return np.asarray(weights @ lattice @ weights.T)


def backdrop(rng: np.random.RandomState, colour: Array, size: int, strength: float) -> Array:
    """A picture (count, size, size, 3) of one colour per image, uneven by `strength`."""
    hills = smooth(rng, 3 * len(colour), 3, size).reshape(-1, 3, size, size).transpose(0, 2, 3, 1)
    return colour[:, None, None, :] + strength * hills


def paint(picture: Array, colour: Array, coverage: Array) -> None:
    """Lay `colour` (count, 3) over the picture, in place, where and as much as `coverage` says."""
    picture += coverage[..., None] * (colour[:, None, None, :] - picture)


def finish(rng: np.random.RandomState, picture: Array, noise: float) -> NDArray[np.uint8]:
    """Uneven light, grain, and bytes."""
    light = rng.uniform(0.85, 1.1, (len(picture), 1, 1, 1))
    grain = noise * rng.standard_normal(picture.shape)
    return np.rint(np.clip(picture * light + grain, 0, 1) * 255).astype(np.uint8)
