"""What a library says of images: the path of a task, applied. Knows nothing about how it was learned."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, tensor

from espalier.data.pictures import load_picture
from espalier.data.scale import planes
from espalier.device import as_in_runs, named
from espalier.errors import InputError
from espalier.evaluation.predictor import network_of
from espalier.library import Library, TaskEntry
from espalier.streams.task import render
from espalier.streams.transforms import normalise

AT_ONCE = 1024  # images


def predict(library: Library, task: str, images: Tensor, device: str = "cpu") -> Tensor:
    """Logits (n, classes) of uint8 images (n, channels, height, width), by the path that was learned for `task`.

    The classes are `library.tasks[task].info["classes"]`, in the order of the logits. These are float32 and on the CPU,
    wherever they were computed; another kind of device rounds otherwise.
    """
    entry = _entry(library, task)
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        given = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images are a torch tensor of uint8, 0 to 255, not {given}.")
    shape = entry.info["image"]
    if list(images.shape[1:]) != shape:
        raise InputError(f"task {task!r} takes images of shape {shape}, not {list(images.shape[1:])}; scale them.")
    there = named(device)
    mean, std = (tensor(entry.info[key], device=there).view(-1, 1, 1) for key in ("mean", "std"))
    network = network_of(library, task)
    states = [{name: each.to(there) for name, each in state.items()} for state in library.states(task)]
    parts = torch.split(images, AT_ONCE)
    with as_in_runs(device):
        return torch.cat([network.forward(states, normalise(part.to(there), mean, std)).cpu() for part in parts])


def pictures(library: Library, task: str, paths: Iterable[Path | str]) -> Tensor:
    """Picture files as `predict` takes them for `task`: upright, cut square, scaled, and changed as the task changes
    the images of its dataset (a background, a permutation)."""
    info = _entry(library, task).info
    channels, size, _ = info["image"]
    loaded = [load_picture(Path(path), size) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not loaded:
        raise InputError("there is no picture; name at least one file.")
    x = torch.from_numpy(planes(np.stack(loaded), size))
    return render(x, channels, info.get("background"), info.get("permutation"))


def _entry(library: Library, task: str) -> TaskEntry:
    if task not in library.tasks:
        raise InputError(f"the library {library.folder} has no task {task!r}; it has {', '.join(library.tasks)}.")
    entry = library.tasks[task]
    missing = [key for key in ("image", "classes", "mean", "std") if key not in entry.info]
    if missing:
        raise InputError(f"the library {library.folder} does not tell the {', '.join(missing)} of task {task!r}.")
    return entry
