"""Small tasks, modules, jobs and lessons for the tests of networks, trainers and learners."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from espalier.learners.lesson import Lesson
from espalier.library import Change, Library, TaskEntry
from espalier.nets import Backbone, State, backbone
from espalier.streams.task import Split, Task, TaskSpec
from espalier.streams.transforms import statistics
from espalier.training import Candidate, Copy, Fresh, Job, Protocol, Reuse, Setting, Slot, Trained

RATES = (Setting(1e-2, 0.0), Setting(3e-3, 1e-3))
SHORT = Protocol(
    "short",
    batch=8,
    max_epochs=3,
    patience=100,
    grid=RATES,
    fc_grid=RATES,
    strengths=(1.0,),
    pad=4,
    early=(1, 2, 3, 4, 5),
    eval_batch=7,
)


@contextmanager
def doubles() -> Iterator[None]:
    """New tensors are float64: fresh modules and learning rates. Tasks made meanwhile give float64 images."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def task(classes: int = 3, size: int = 8, train: int = 20, val: int = 15, channels: int = 3, seed: int = 0) -> Task:
    """Noisy pictures of as many patterns as there are classes."""
    draw = random(seed)
    patterns = torch.rand(classes, channels, size, size, generator=draw, dtype=torch.float32)

    def split(count: int) -> Split:
        y = torch.arange(count) % classes
        noise = torch.rand(count, channels, size, size, generator=draw, dtype=torch.float32)
        x = ((patterns[y] + noise) * 127).to(torch.uint8)
        order = torch.randperm(count, generator=draw)
        return Split(x[order], y[order])

    known, judged, test = (split(count) for count in (train, val, 6))
    mean, std = (t.to(torch.get_default_dtype()) for t in statistics(known.x))
    spec = TaskSpec("made", tuple(map(str, range(classes))), None, None, size=size, channels=channels)
    return Task(spec, known, judged, test, mean, std, complete=True)


def modules(net: Backbone, *names: str) -> dict[str, State]:
    """Modules of whole paths, "a.stem" and so on; their statistics are not those of a new module."""
    made = {}
    for number, name in enumerate(names):
        for block in net.blocks:
            draw = random(1000 + number)
            state = block.init(draw)
            for key, tensor in state.items():
                if key.endswith("running_var"):
                    tensor += torch.rand(tensor.shape, generator=draw)
                elif key.endswith("running_mean") or "norm" in key:
                    tensor += torch.randn(tensor.shape, generator=draw) / 5
            made[f"{name}.{block.name}"] = state
    return made


def path(letters: str, net: Backbone) -> tuple[str, ...]:
    """One letter per block: the module of that path, as `modules` names it."""
    return tuple(f"{letter}.{block.name}" for letter, block in zip(letters, net.blocks, strict=True))


def candidate(code: str, net: Backbone) -> Candidate:
    """One letter per block: a, b re-use a module of that path, A, B copy it, and . is fresh."""
    slots: list[Slot] = []
    for letter, block in zip(code, net.blocks, strict=True):
        module = f"{letter.lower()}.{block.name}"
        slots.append(Fresh() if letter == "." else Reuse(module) if letter.islower() else Copy(module))
    return tuple(slots)


def candidates(codes: Iterable[str], net: Backbone) -> list[Candidate]:
    return [candidate(code, net) for code in codes]


def job(name: str = "tiny", size: int = 8, protocol: Protocol = SHORT, **changes: Any) -> Job:
    net = backbone(name, (3, size, size), 3)
    return Job(task(size=size), net, modules(net, "a", "b"), replace(protocol, **changes), 7, ("made", 1))


def quiet(step: int, most: int, members: int, accuracy: float) -> None:
    """A progress that nobody watches."""


def same_results(left: Trained, right: Trained, within: float = 1e-9) -> None:
    assert left.member == right.member
    assert left.val_accuracy == right.val_accuracy
    assert (left.best_step, left.steps, left.samples) == (right.best_step, right.steps, right.samples)
    same_states(left.states, right.states, within)
    assert len(left.early) == len(right.early) == 6
    for mine, other in zip(left.early, right.early, strict=True):
        same_states(mine, other, within)


def same_states(left: Sequence[State | None], right: Sequence[State | None], within: float = 1e-9) -> None:
    for mine, other in zip(left, right, strict=True):
        if mine is None or other is None:
            assert mine is other
        else:
            close(mine, other, within)


def close(left: Mapping[str, Tensor], right: Mapping[str, Tensor], within: float = 1e-9) -> None:
    assert set(left) == set(right)
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=within, msg=lambda m, n=name: f"{n}: {m}")  # type: ignore[misc]


def lesson(folder: Path, net: Backbone, paths: Mapping[str, Sequence[str]], states: Mapping[str, State]) -> Lesson:
    """A lesson after the tasks of `paths`, of 3 classes; what it records is dropped."""
    library = Library.create(folder / "library", net.name, [block.name for block in net.blocks])
    blocks = {module: block.name for path in paths.values() for module, block in zip(path, net.blocks, strict=True)}
    new = {module: (block, states[module]) for module, block in blocks.items()}
    with library.writer():
        library.commit(Change(new, {name: TaskEntry(name, tuple(path), {}) for name, path in paths.items()}))
    return Lesson("new", 5, task(), library, net, SHORT, 0, "made", quiet, lambda event, what: None)
