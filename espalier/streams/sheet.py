"""Contact sheets: what a stream looks like, as one picture. Takes tasks, returns a Pillow image."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from espalier.streams.task import Task

TILE = 48  # screen pixels of one image
GAP = 2
IMAGES_PER_CLASS = 8
NAME_WIDTH = 160
TITLE_HEIGHT = 46
MARGIN = 26
INK, FAINT, PAPER = (30, 30, 30), (120, 120, 120), (255, 255, 255)


def arrange(panels: Sequence[Image.Image], title: str) -> Image.Image:
    """Panels side by side under a title, three in a row for a short stream, more for a long one."""
    columns = min(len(panels), max(3, math.isqrt(len(panels))))
    width = max(p.width for p in panels) + MARGIN
    height = max(p.height for p in panels) + MARGIN
    rows = math.ceil(len(panels) / columns)
    sheet = Image.new("RGB", (columns * width + MARGIN, TITLE_HEIGHT + rows * height + MARGIN), PAPER)
    ImageDraw.Draw(sheet).text((MARGIN, MARGIN), title, INK, ImageFont.load_default(22))
    for i, picture in enumerate(panels):
        sheet.paste(picture, (MARGIN + i % columns * width, TITLE_HEIGHT + MARGIN + i // columns * height))
    return sheet


def panel(number: int, task: Task) -> Image.Image:
    """A row of train images per class, the class's label and name before it."""
    pitch = TILE + GAP
    picture = Image.new("RGB", (NAME_WIDTH + IMAGES_PER_CLASS * pitch, TITLE_HEIGHT + task.n_classes * pitch), PAPER)
    draw = ImageDraw.Draw(picture)
    draw.text((0, 0), f"{number}  {task.spec.title}", INK, ImageFont.load_default(18))
    sizes = f"{len(task.train):,} train · {len(task.val):,} val · {len(task.test):,} test"
    draw.text((0, 23), sizes + ("" if task.complete else " · partial dataset"), FAINT, ImageFont.load_default(13))
    for label, name in enumerate(task.spec.classes):
        top = TITLE_HEIGHT + label * pitch
        draw.text((0, top + TILE // 2 - 8), f"{label}", FAINT, ImageFont.load_default(14))
        draw.text((30, top + TILE // 2 - 8), _fitting(name), INK, ImageFont.load_default(14))
        for column, image in enumerate(task.train.x[task.train.y == label][:IMAGES_PER_CLASS]):
            picture.paste(_tile(image.permute(1, 2, 0).numpy()), (NAME_WIDTH + column * pitch, top))
    return picture


def _tile(image: np.ndarray) -> Image.Image:
    tile = Image.fromarray(image if image.shape[2] == 3 else image[:, :, 0]).convert("RGB")
    return tile.resize((TILE, TILE), Image.Resampling.NEAREST)


def _fitting(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"
