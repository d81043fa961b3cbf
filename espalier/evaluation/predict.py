"""What a library says of images: the path of a task, applied. Knows nothing about how it was learned."""

import torch
from torch import Tensor, tensor

from espalier.errors import InputError
from espalier.evaluation.predictor import network_of
from espalier.library import Library
from espalier.streams.transforms import normalise

AT_ONCE = 1024  # images


def predict(library: Library, task: str, images: Tensor) -> Tensor:
    """Logits (n, classes) of uint8 images (n, channels, height, width), by the path that was learned for `task`.

    The classes are `library.tasks[task].info["classes"]`, in the order of the logits. All is computed on the CPU.
    """
    if task not in library.tasks:
        raise InputError(f"the library {library.folder} has no task {task!r}; it has {', '.join(library.tasks)}.")
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        raise InputError(f"images are a tensor of uint8, 0 to 255, not {getattr(images, 'dtype', type(images))}.")
    entry = library.tasks[task]
    shape = entry.info["image"]
    if list(images.shape[1:]) != shape:
        raise InputError(f"task {task!r} takes images of shape {shape}, not {list(images.shape[1:])}; scale them.")
    mean, std = (tensor(entry.info[key]).view(-1, 1, 1) for key in ("mean", "std"))
    network, states = network_of(library, task), library.states(task)
    parts = torch.split(images.cpu(), AT_ONCE)
    return torch.cat([network.forward(states, normalise(part, mean, std)) for part in parts])
