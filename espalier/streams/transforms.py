"""Batched image transforms as tensor code, on any device. Images are uint8 (n, channels, height, width) throughout,
until `normalise` makes them floats. Knows nothing about tasks or datasets.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Below this a channel counts as constant: a fortieth of one grey level.
CONSTANT = 1e-4


def resize(x: Tensor, size: int) -> Tensor:
    """Bilinear to size × size, rounded. (The released benchmark truncates, which turns white into 254.)"""
    if x.shape[-2:] == (size, size):
        return x
    shrinks = size < min(x.shape[-2:])
    y = F.interpolate(x.float(), (size, size), mode="bilinear", align_corners=False, antialias=shrinks)
    return y.round_().clamp_(0, 255).to(torch.uint8)


def to_channels(x: Tensor, channels: int) -> Tensor:
    """Grey to RGB by repeating, RGB to grey by the usual luma weights."""
    if x.shape[1] == channels:
        return x
    if x.shape[1] == 1:
        return x.expand(-1, channels, -1, -1).contiguous()
    luma = torch.tensor([0.299, 0.587, 0.114], device=x.device).view(1, 3, 1, 1)
    return (x.float() * luma).sum(1, keepdim=True).round_().to(torch.uint8)


def recolour_background(x: Tensor, colour: tuple[int, int, int]) -> Tensor:
    """Black becomes `colour`, white stays white: Rainbow-MNIST as the paper uses it.

    White is 255 here; the released benchmark takes the brightest pixel of the split instead.
    """
    ink = x.to(torch.int32)
    background = torch.tensor(colour, device=x.device, dtype=torch.int32).view(1, 3, 1, 1)
    return (ink + (255 - ink) * background // 255).to(torch.uint8)


def permute_pixels(x: Tensor, order: Tensor) -> Tensor:
    """The same permutation of the pixel positions for every image and channel."""
    return x.flatten(2)[:, :, order.to(x.device)].view_as(x)


def crop_flip(x: Tensor, top: Tensor, left: Tensor, flip: Tensor, pad: int) -> Tensor:
    """Pad with black, cut the original size out at (top, left) in 0 … 2·pad, mirror where `flip`: one gather."""
    n, _, height, width = x.shape
    rows = top[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(n, width)
    columns = left[:, None] + torch.where(flip[:, None], width - 1 - columns, columns)
    # Indices between slices put the gathered axes first: (n, height, width, channels), undone by the permute.
    picked = F.pad(x, (pad, pad, pad, pad))[
        torch.arange(n, device=x.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]
    ]
    return picked.permute(0, 3, 1, 2)


def augment(x: Tensor, generator: torch.Generator, pad: int = 4, flip: bool = True) -> Tensor:
    """Random crops after padding and random mirroring, another for every image; `generator` lives on x's device."""
    n, device = len(x), x.device
    top, left = torch.randint(0, 2 * pad + 1, (2, n), device=device, generator=generator)
    mirrored = torch.rand(n, device=device, generator=generator) < (0.5 if flip else 0.0)
    return crop_flip(x, top, left, mirrored, pad)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel over all pixels of all images, as fractions of 255: (channels, 1, 1).

    Both are exact, from a histogram. A constant channel gets deviation 1; the released benchmark does so only where
    the computed deviation is exactly 0, and blows rounding noise up to size 1 elsewhere.
    """
    levels = torch.arange(256, dtype=torch.float64, device=x.device) / 255
    counts = torch.stack([torch.bincount(x[:, c].flatten().int(), minlength=256) for c in range(x.shape[1])]).double()
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ levels
    std = (share * (levels - mean[:, None]) ** 2).sum(1).sqrt()
    std = torch.where(std < CONSTANT, torch.ones_like(std), std)
    return mean.float().view(-1, 1, 1), std.float().view(-1, 1, 1)


def normalise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (x.float() / 255 - mean) / std
