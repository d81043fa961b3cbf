"""CTrL's streams on embedded images of 16×16, small enough for a laptop and in need of no download.

`shapes` plays CIFAR-10's part, and coloured MNIST's: it takes many images to learn. `digits` are real ones.
"""

from functools import partial

from espalier.data.folder import DataFolder
from espalier.streams import classic, ctrl, long
from espalier.streams.task import TaskSpec

CAST = ctrl.Cast(
    lead="shapes",
    coloured="shapes",
    guest="digits",
    others=("letters", "textures", "flags", "glyphs"),
    large=(60, 30),
    small=(10, 10),
    scant=(5, 3),
    image_size=16,
)
PLAN = long.Plan(
    datasets=("digits", "shapes", "textures", "letters", "glyphs", "flags", "faces"),
    tasks=20,
    thirds=(7, 13),
    large=(60, 30),
    image_size=16,
)

s_minus = partial(ctrl.s_minus, cast=CAST)
s_plus = partial(ctrl.s_plus, cast=CAST)
s_in = partial(ctrl.s_in, cast=CAST)
s_out = partial(ctrl.s_out, cast=CAST)
s_pl = partial(ctrl.s_pl, cast=CAST)
s_long = partial(long.s_long, plan=PLAN)


def permuted(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    """As permuted MNIST, five times the embedded digits."""
    return classic.permuted(name, seed, TaskSpec("digits", tuple("0123456789"), 30, 20, size=16, channels=1), 5)
