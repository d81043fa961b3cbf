"""Image arrays as tensors want them: (n, channels, size, size). Knows nothing about what is on the images."""

import numpy as np
import torch
import torch.nn.functional as F

from espalier.data.imageset import Images

CHUNK = 4096  # images scaled at once: as floats they take four times the memory


def planes(images: Images, size: int) -> Images:
    """(n, h, w, c) → (n, c, size, size): bilinear, rounded. (The released benchmark truncates: white becomes 254.)"""
    n, height, width, channels = images.shape
    if (height, width) == (size, size):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    shrinks = size < max(height, width)
    scaled = np.empty((n, channels, size, size), np.uint8)
    for start in range(0, n, CHUNK):
        x = torch.from_numpy(images[start : start + CHUNK]).permute(0, 3, 1, 2).float()
        y = F.interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=shrinks)
        scaled[start : start + CHUNK] = y.round_().clamp_(0, 255).to(torch.uint8).numpy()
    return scaled
