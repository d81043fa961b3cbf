"""One picture file into one array, and the thread pool that decodes many. Knows nothing about classes or packs."""

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from espalier.errors import InputError

Progress = Callable[[int, int], None]
"""Called with (images done, images in all), from the thread that asked."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_DEEP = ("I", "F")  # 16 bits and more per channel; "I;16" and its byte orders are caught by their first letter
_DEEP_RAW = re.compile(r"\b(L|LA|RGB|RGBX|RGBA);16")
_FOREIGN = ("CMYK", "LAB", "HSV")  # cannot become RGB without a colour profile
_OPENING = threading.Lock()

Item = TypeVar("Item")
Result = TypeVar("Result")


def load_picture(path: Path, size: int) -> NDArray[np.uint8]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the picture {path} cannot be opened ({error.strerror}); check the file or remove it."
        ) from None
    return decode_picture(data, size, str(path))


def decode_picture(data: bytes, size: int, name: str) -> NDArray[np.uint8]:
    """The centre of a picture as (size, size, 3) RGB, upright, over white where it is transparent.

    `name` is what errors call it.
    """
    if not data:
        raise InputError(f"the picture {name} is an empty file; replace or remove it.")
    try:
        with open_image(data, FORMATS) as image:
            reason = _unusable(image)
            array = None if reason else _square(image, size)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        reason = "has more pixels than are safe to decode; make it smaller"
    except Exception:  # Pillow's decoders raise whatever they stumble on in a damaged file
        reason = "is damaged, or not an image in a known format; save it again as PNG or JPEG, or remove it"
    if reason:
        raise InputError(f"the picture {name} {reason}.")
    assert array is not None
    return array


def open_image(data: bytes, formats: tuple[str, ...]) -> Image.Image:
    """`Image.open`, with a suspiciously large image an error: what Pillow only warns about is raised too."""
    with _OPENING, warnings.catch_warnings():  # the lock: warning filters belong to the whole process
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(BytesIO(data), formats=formats)


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map` over a few threads (Pillow decodes without the interpreter lock); an error cancels what has not begun."""
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _unusable(image: Image.Image) -> str:
    """Why this picture is refused, and what to do; empty when it is fine."""
    # A camera's MPO is a JPEG with a preview or a depth map behind it: its first frame is the photograph.
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        return "holds several frames or pages; save the one you mean as a PNG"
    # Pillow opens 16-bit colour as 8-bit RGB; only the way it means to decode the pixels tells.
    if image.mode.startswith(_DEEP) or any(_DEEP_RAW.search(str(tile.args)) for tile in getattr(image, "tile", ())):
        return "has more than 8 bits per channel; save it with 8 bits"
    if image.mode in _FOREIGN:
        return f"has {image.mode} colours; save it as RGB"
    return ""


def _square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    upright = ImageOps.exif_transpose(image)
    if upright.has_transparency_data:
        paper = Image.new("RGBA", upright.size, "white")
        upright = Image.alpha_composite(paper, upright.convert("RGBA"))
    rgb = upright.convert("RGB")
    side = min(rgb.size)
    left, top = (rgb.width - side) // 2, (rgb.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.array(rgb.resize((size, size), Image.Resampling.BICUBIC, box=box))
