"""Batched image transforms as tensor code, on any device. Images are uint8 (n, channels, height, width) throughout,
until `normalise` makes them floats. Knows nothing about tasks or datasets.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Below this a channel counts as constant: a fortieth of one grey level.
CONSTANT = 1e-4
# Images handled at once where floats or copies are made: what fits into a processor's cache.
CHUNK = 512


def to_channels(x: Tensor, channels: int) -> Tensor:
    """Grey to RGB by repeating, RGB to grey by the usual luma weights."""
    if x.shape[1] == channels:
        return x
    if x.shape[1] == 1:
        return x.expand(-1, channels, -1, -1).contiguous()
    luma = torch.tensor([0.299, 0.587, 0.114], device=x.device).view(1, 3, 1, 1)
    return (x.float() * luma).sum(1, keepdim=True).round_().to(torch.uint8)


def recolour_background(x: Tensor, colour: tuple[int, int, int]) -> Tensor:
    """Grey images in colour: black becomes `colour`, white stays white. Rainbow-MNIST as the paper uses it.

    For colours whose channels are 0 or 255 the maximum is what the released benchmark computes, ink plus the missing
    light of the background; but white is 255 here, and there the brightest pixel of the split.
    """
    return torch.maximum(x, torch.tensor(colour, dtype=torch.uint8, device=x.device).view(1, 3, 1, 1))


def crop_flip(x: Tensor, top: Tensor, left: Tensor, flip: Tensor, pad: int) -> Tensor:
    """Pad with black, cut the original size out at (top, left) in 0 … 2·pad, mirror where `flip`."""
    n, _, height, width = x.shape
    # Mirroring a crop is cropping the mirrored image at the opposite offset. Of the images and their mirrored ones
    # there is a view of every window, (2n, channels, tops, lefts, height, width); only the chosen ones are copied.
    both = F.pad(torch.cat([x, x.flip(3)]), (pad, pad, pad, pad))
    windows = both.unfold(2, height, 1).unfold(3, width, 1)
    chosen = torch.arange(n, device=x.device) + n * flip
    return windows[chosen, :, top, torch.where(flip, 2 * pad - left, left)]


def augment(x: Tensor, generator: torch.Generator, pad: int = 4, flip: bool = True) -> Tensor:
    """Random crops after padding and random mirroring, another for every image; `generator` lives on x's device."""
    n, device = len(x), x.device
    top, left = torch.randint(0, 2 * pad + 1, (2, n), device=device, generator=generator)
    mirrored = torch.rand(n, device=device, generator=generator) < (0.5 if flip else 0.0)
    return crop_flip(x, top, left, mirrored, pad)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel over all pixels, as fractions of 255: (channels, 1, 1).

    Both come from exact sums, so they are the same on every device. A constant channel gets deviation 1; the
    released benchmark does so only where the deviation is exactly 0, and blows rounding noise up to size 1 elsewhere.
    """
    total, squares = torch.zeros(2, x.shape[1], dtype=torch.float64, device=x.device)
    for part in torch.split(x, CHUNK):
        # Centred and summed row by row, every sum is a whole number that float32 holds exactly.
        centred = part - 128.0
        total += centred.sum(3).double().sum((0, 2))
        squares += centred.square_().sum(3).double().sum((0, 2))
    mean = total / x[:, 0].numel()
    std = (squares / x[:, 0].numel() - mean.square()).clamp(min=0).sqrt() / 255
    std = torch.where(std < CONSTANT, torch.ones_like(std), std)
    return ((mean + 128) / 255).float().view(-1, 1, 1), std.float().view(-1, 1, 1)


def normalise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (x.float() / 255 - mean) / std
