"""Captured work on a processor, held to what a GPU's graphs allow: for tests, as most machines have no GPU.

A capture records every operation and leaves nothing else behind. A replay does exactly these operations again, on the
very tensors they were given then. What captured work made for itself is overwritten after every replay, as other work
may get that memory. What a capture forbids is an error: asking for a value, drawing, copying from the host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from espalier.training.graphs import Graphs, Inputs, Work

ASKS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero")
COPIES = ("lift_fresh", "lift_fresh_copy")
DRAWS = ("rand", "randn", "randint", "randperm", "bernoulli_", "normal_", "uniform_")
FORBIDDEN = {f"aten::{name}" for name in (*ASKS, *COPIES, *DRAWS)}


class ForbiddenError(Exception):
    """What a capture does not allow."""


@dataclass(frozen=True)
class _Call:
    """One operation; `own` are those of its results that are not its arguments, or views of them."""

    operation: Any
    arguments: Sequence[Any]
    options: Mapping[str, Any]
    own: dict[int, Tensor]

    def repeat(self) -> None:
        for place, now in enumerate(_tensors(self.operation(*self.arguments, **self.options))):
            if place in self.own:
                self.own[place].copy_(now)


class _Recorder(TorchDispatchMode):
    """Runs what is asked for, to see which operations that are, and can undo it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self.replays = 0
        self._made: dict[int, torch.UntypedStorage] = {}
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _check(func._schema.name, args)
        given = {storage._cdata: storage for storage in map(_storage, _tensors((args, kwargs)))}
        for name, storage in given.items():
            if name not in self._made and name not in self._before:
                self._before[name] = (storage, storage.clone())  # type: ignore[no-untyped-call]
        result = func(*args, **kwargs)
        own = {place: t for place, t in enumerate(_tensors(result)) if _storage(t)._cdata not in given}
        self._made |= {_storage(t)._cdata: _storage(t) for t in own.values()}
        self.calls.append(_Call(func, args, kwargs, own))
        return result

    def undo(self) -> None:
        for storage, before in self._before.values():
            storage.copy_(before)
        self.overwrite()

    def replay(self) -> None:
        with torch.no_grad():
            for call in self.calls:
                call.repeat()
        self.overwrite()
        self.replays += 1

    def overwrite(self) -> None:
        """All bits set: floats are not numbers then."""
        for storage in self._made.values():
            torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)


class StrictGraphs(Graphs):
    def __init__(self) -> None:
        super().__init__()
        self.recorders: list[_Recorder] = []  # of all captures there ever were
        self.ever: set[str] = set()  # the names of what was captured

    @property
    def replays(self) -> int:
        return sum(recorder.replays for recorder in self.recorders)

    def run(self, name: str, work: Work, inputs: Inputs) -> None:
        before = len(self.recorders)
        super().run(name, work, inputs)
        if len(self.recorders) > before:
            self.ever.add(name)

    def _capture(self, work: Work, inputs: Inputs) -> tuple[Any, Inputs]:
        recorder, places = _Recorder(), {each: tensor.clone() for each, tensor in inputs.items()}
        with recorder:
            work(**places)
        recorder.undo()
        self.recorders.append(recorder)
        return recorder, places


def _check(name: str, arguments: Sequence[Any]) -> None:
    masks = name in ("aten::index", "aten::index_put_") and any(t.dtype == torch.bool for t in _tensors(arguments[1]))
    if name in FORBIDDEN or masks:
        raise ForbiddenError(f"{name} in a capture")


def _tensors(things: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(things) if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
