"""A library small enough to make in every test of it, and how to compare what it holds."""

import torch

from espalier.library import Change, Library, TaskEntry
from espalier.nets import State

BLOCKS = ("stem", "head")


def state(value: float, size: int = 3) -> State:
    return {"weight": torch.full((2, size), value), "seen": torch.tensor(int(value))}


def change(name: str, value: float = 1.0, stem: str | None = None) -> Change:
    """A task with a new head, and a new stem unless one is named."""
    modules = {f"{name}.head": ("head", state(value))}
    if stem is None:
        modules[f"{name}.stem"] = ("stem", state(value, size=5))
    task = TaskEntry(name, (stem or f"{name}.stem", f"{name}.head"), {"classes": ["a", "b"], "mean": [0.1]})
    return Change(modules, {name: task})


def commit(library: Library, *changes: Change) -> None:
    with library.writer():
        for one in changes:
            library.commit(one)


def same(left: State, right: State) -> bool:
    """Equal to the last bit, NaN and the sign of zero included."""
    return list(left) == list(right) and all(
        left[key].dtype == right[key].dtype
        and left[key].shape == right[key].shape
        and left[key].contiguous().numpy().tobytes() == right[key].contiguous().numpy().tobytes()
        for key in left
    )
