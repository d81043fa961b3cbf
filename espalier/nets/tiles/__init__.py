"""3×3 convolutions of 64 channels on Hopper's matrix units, and the gradients of their weights, with what is done to
their results on the way. Knows nothing about autograd.

The kernels are CUDA, compiled when first needed or beforehand, which takes a second or two: Triton does not let a
kernel read the same shared memory once for every tap. Everything is deterministic: who adds up what follows from the
sizes and the number of the GPU's processors. Where there is no such GPU, or the kernels cannot be built, `usable` says
no, and `convolution` does without.
"""

import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["built_meanwhile", "convolve", "masked", "normed", "of_weights", "summed", "usable"]

CHANNELS = 64  # of one member
SIDE = 16  # of a tile; those of images are multiples of it
HOPPER = (9, 0)
START = 1.5  # tiles that a block of threads could do while it begins

OF_WEIGHTS = ""  # the kernel without an ending
ENDINGS = ("SUMMED", "ADDED", "NORMED", "ADDED NORMED", "MASKED")  # of `convolve`, see there
THREADS = {"convolve": 384, "of_weights": 512}
STAGES = {"convolve": 2, "of_weights": 3}  # tiles that are in shared memory at a time
MEMORY = {"convolve": 195648, "of_weights": 225344}  # bytes of it; the kernels check the sum


def usable(x: Tensor, weight: Tensor) -> bool:
    """`weight` is (m, 64, 64, 3, 3), for a padding of 1; x has the channels of m members, or of one for all."""
    height, width = x.shape[2:]
    fits = weight.shape[1:] == (CHANNELS, CHANNELS, 3, 3) and height == width and height % SIDE == 0 and len(x) > 0
    return fits and _kernels(x.device) is not None


def convolve(x: Tensor, weight: Tensor, added: Tensor | None = None) -> Tensor:
    """And what is `added`, if anything is."""
    return _convolve("SUMMED" if added is None else "ADDED", x, weight, other=added)[0]


def summed(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Also the sums of what comes out, and of its squares, for some shares of all places: (shares, 2, columns)."""
    return _convolve("SUMMED", x, weight)


def normed(x: Tensor, weight: Tensor, shift: Tensor, added: Tensor | None) -> Tensor:
    """ReLU(convolution + added + shift); `added` may be of one member, shared by all."""
    return _convolve("NORMED" if added is None else "ADDED NORMED", x, weight, shift=shift, other=added)[0]


def masked(
    given: Tensor, weight: Tensor, beside: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor]:
    """What ReLU(beside·scale + shift) lets back of a gradient that comes through a convolution. Also its sums and those
    of it times the normalised `beside`, as in `summed`; `deviation` is one over the standard deviation."""
    return _convolve("MASKED", given, weight, scale, shift, mean, deviation, beside)


def of_weights(x: Tensor, given: Tensor) -> Tensor:
    """The gradient of the weights, (m, 64, 64, 3, 3), for that of what came out."""
    images, columns, side, _ = given.shape
    members = columns // CHANNELS
    shares = _shares(members, images * (side // SIDE) ** 2, _blocks(x.device))
    slopes = torch.empty(shares, members, CHANNELS, CHANNELS, 3, 3, device=x.device)
    _launch(x.device, OF_WEIGHTS, (shares, members), [x, given, slopes, images, side, columns])
    return slopes.sum(0)


def _convolve(
    ending: str,
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    mean: Tensor | None = None,
    deviation: Tensor | None = None,
    other: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    images, columns, side = len(x), len(weight), x.shape[2]
    members = columns // CHANNELS
    shares = _shares(members, images * (side // SIDE) ** 2, _blocks(x.device))
    y = x.new_empty(images, side, side, columns)
    sums = torch.empty(shares if ending in ("MASKED", "SUMMED") else 0, 2, columns, device=x.device)
    read = [y if tensor is None else tensor for tensor in (scale, shift, mean, deviation, other)]  # y: is not read
    sizes = [columns if other is None else other.shape[1], images, side, columns]
    _launch(x.device, ending, (shares, members), [x, x.shape[1], weight, y, sums, *read, *sizes])
    return y.permute(0, 3, 1, 2), sums


def _launch(device: torch.device, ending: str, blocks: tuple[int, int], arguments: list[Tensor | int]) -> None:
    kernels, name = _kernels(device), _name(ending)
    assert kernels is not None
    kernels[ending]((*blocks, 1), (THREADS[name], 1, 1), arguments, shared_mem=MEMORY[name])


@cache
def _shares(members: int, tiles: int, blocks: int) -> int:
    """Among how many blocks of threads the tiles of a member are shared, so that all end about together when as many
    run at a time."""

    def until_done(shares: int) -> float:
        return -(-members * shares // blocks) * (-(-tiles // shares) + START)

    return min(range(1, min(tiles, blocks) + 1), key=until_done)


@cache
def _blocks(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@contextmanager
def built_meanwhile(device: torch.device) -> Iterator[None]:
    """They are built while something else is done inside; not longer, as nothing can be captured meanwhile."""
    if device.type != "cuda":
        yield
        return
    there = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(_kernels, there)
        yield
    building.result()


@cache
def _kernels(device: torch.device) -> dict[str, Any] | None:
    """By ending; they are built side by side."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER or torch.version.hip:
        return None
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("kernels cannot be built while a graph is captured: run the work once before")
    try:
        with ThreadPoolExecutor(1 + len(ENDINGS)) as pool, _without_a_toolkit():
            endings = (OF_WEIGHTS, *ENDINGS)
            return dict(zip(endings, pool.map(partial(_build, device), endings), strict=True))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError, AttributeError, TypeError, ImportError) as error:
        warnings.warn(f"the kernels for Hopper could not be built, cuDNN's are slower: {error}", stacklevel=1)
        return None


def _build(device: torch.device, ending: str) -> Any:
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # a new thread has nothing to do with the device before it uses it
        kernel = torch.cuda._compile_kernel(source(ending), _name(ending), compute_capability="90a")
        kernel.set_shared_memory_config(MEMORY[_name(ending)])
    return kernel


def _name(ending: str) -> str:
    return "of_weights" if ending == OF_WEIGHTS else "convolve"


def source(ending: str) -> str:
    name, known = _name(ending), dict.fromkeys(each for some in ENDINGS for each in some.split())
    head = [f"#define {each} {int(each in ending.split())}" for each in known]
    head.append(f"constexpr int STAGES = {STAGES[name]}, MEMORY = {MEMORY[name]};")
    folder = Path(__file__).parent
    return "\n".join([*head, *((folder / f"{each}.cu").read_text(encoding="utf-8") for each in ("common", name))])


@contextmanager
def _without_a_toolkit() -> Iterator[None]:
    """PyTorch's compiler asks where CUDA's headers are, and ends where there are none. These kernels include none."""
    from torch.utils import cpp_extension  # not before it is needed: it takes a while

    known = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = known or sys.prefix
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = known
