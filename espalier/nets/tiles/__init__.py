"""3×3 convolutions of 64 channels on Hopper's matrix units, and the gradients of their weights, with what is done to
their results on the way. Knows nothing about autograd.

The kernels are CUDA, compiled when first needed, which takes two seconds: Triton does not let a kernel read the same
shared memory once for every tap. Everything is deterministic: who adds up what follows from the sizes alone. Where
there is no such GPU, or the kernels cannot be built, `usable` says no, and `convolution` does without.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["convolve", "masked", "normed", "of_weights", "summed", "usable"]

CHANNELS = 64  # of one member
SIDE = 16  # of a tile; those of images are multiples of it
HOPPER = (9, 0)
START = 1.5  # tiles that a block of threads could do while it begins

# In bytes, as in common.cu: 1024 for the alignment and 64 for barriers; weights, two inputs, two halves that go out;
# three times an input and a gradient.
INPUT, GIVEN = 41984, 32768
CONVOLVE_MEMORY = 1024 + 64 + 73728 + 2 * INPUT + 2 * 18432
WEIGHTS_MEMORY = 1024 + 64 + 3 * (INPUT + GIVEN)
CONVOLVE_THREADS, WEIGHTS_THREADS = 384, 512
ENDINGS = ("SUMMED", "ADDED", "NORMED", "ADDED NORMED", "MASKED")  # of `convolve`, see there


def usable(x: Tensor, weight: Tensor) -> bool:
    """`weight` is (m·64, 64, 3, 3) or (m, 64, 64, 3, 3), for a padding of 1; x has the channels of m members, or of one
    for all."""
    height, width = x.shape[2:]
    one = weight if weight.dim() == 4 else weight[0]
    fits = one.shape[1:] == (CHANNELS, 3, 3) and (one is weight or len(one) == CHANNELS)
    return fits and height == width and height % SIDE == 0 and len(x) > 0 and _kernels(x.device) is not None


def convolve(x: Tensor, weight: Tensor, added: Tensor | None = None) -> Tensor:
    """And what is `added`, if anything is."""
    return _convolve("SUMMED" if added is None else "ADDED", x, weight, other=added)[0]


def summed(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Also the sums of what comes out, and of its squares, for some shares of all places: (shares, 2, columns)."""
    return _convolve("SUMMED", x, weight)


def normed(x: Tensor, weight: Tensor, shift: Tensor, added: Tensor | None) -> Tensor:
    """ReLU(convolution + added + shift); `added` may be of one member, shared by all."""
    return _convolve("NORMED" if added is None else "ADDED NORMED", x, weight, (shift,) * 4, added)[0]


def masked(given: Tensor, weight: Tensor, beside: Tensor, stats: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """What ReLU(beside·scale + shift) lets back of a gradient that comes through a convolution; `stats` are that scale
    and shift, and mean and inverse deviation of `beside`. Also its sums and those of it times the normalised `beside`,
    as in `summed`."""
    return _convolve("MASKED", given, weight, stats, beside)


def of_weights(x: Tensor, given: Tensor) -> Tensor:
    """The gradient of the weights, (m, 64, 64, 3, 3), for that of what came out."""
    images, columns, side, _ = given.shape
    members, kernel = columns // CHANNELS, _built(x.device)["OF_WEIGHTS"]
    shares = _shares(members, images * (side // SIDE) ** 2, _blocks(x.device))
    slopes = torch.empty(shares, members, CHANNELS, CHANNELS, 3, 3, device=x.device)
    arguments = [x, x.shape[1], given, slopes, images, side, columns]
    kernel((shares, members, 1), (WEIGHTS_THREADS, 1, 1), arguments, shared_mem=WEIGHTS_MEMORY)
    return slopes.sum(0)


def _convolve(
    ending: str, x: Tensor, weight: Tensor, stats: tuple[Tensor, ...] | None = None, other: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    images, columns, side = len(x), len(weight), x.shape[2]
    members = columns // CHANNELS
    shares = _shares(members, images * (side // SIDE) ** 2, _blocks(x.device))
    y = x.new_empty(images, side, side, columns)
    sums = torch.empty(shares if ending in ("MASKED", "SUMMED") else 0, 2, columns, device=x.device)
    arguments = [x, x.shape[1], weight, y, sums, *(stats or (y,) * 4)]  # y stands for what is not read
    arguments += [y, columns] if other is None else [other, other.shape[1]]
    arguments += [images, side, columns]
    _built(x.device)[ending]((shares, members, 1), (CONVOLVE_THREADS, 1, 1), arguments, shared_mem=CONVOLVE_MEMORY)
    return y.permute(0, 3, 1, 2), sums


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


def _built(device: torch.device) -> dict[str, Any]:
    kernels = _kernels(device)
    assert kernels is not None
    return kernels


@cache
def _kernels(device: torch.device) -> dict[str, Any] | None:
    """By ending, and OF_WEIGHTS. They are built side by side."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER or torch.version.hip:
        return None
    folder = Path(__file__).parent
    common = (folder / "common.cu").read_text()
    convolve, weights = (common + (folder / f"{name}.cu").read_text() for name in ("convolve", "of_weights"))
    sources = {ending: ("convolve", _ended(ending) + _stages(2) + convolve) for ending in ENDINGS}
    sources["OF_WEIGHTS"] = ("of_weights", _stages(3) + weights)
    try:
        with ThreadPoolExecutor(len(sources)) as pool:
            made = pool.map(lambda source: _build(device, *source), sources.values())
            return dict(zip(sources, made, strict=True))
    except (RuntimeError, OSError, AttributeError, TypeError, ImportError) as error:
        warnings.warn(f"the kernels for Hopper could not be built, cuDNN's are slower: {error}", stacklevel=1)
        return None


def _build(device: torch.device, name: str, source: str) -> Any:
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # a new thread has nothing to do with the device before it uses it
        kernel = torch.cuda._compile_kernel(source, name, compute_capability="90a")
        kernel.set_shared_memory_config(CONVOLVE_MEMORY if name == "convolve" else WEIGHTS_MEMORY)
    return kernel


def _ended(ending: str) -> str:
    names = dict.fromkeys(name for each in ENDINGS for name in each.split())
    return "".join(f"#define {name} {int(name in ending.split())}\n" for name in names)


def _stages(count: int) -> str:
    """How many tiles there are in shared memory, in turn."""
    return f"constexpr int STAGES = {count};\n"
