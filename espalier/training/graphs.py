"""Work for a GPU, captured once and replayed: no time between its kernels. Knows nothing about training."""

import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
Work = Callable[..., None]  # of its inputs, by name; it leaves what it does in tensors of its own


class Graphs:
    """Captured work by name and shape of its inputs. The first call of each runs as it is, which also lets libraries
    set themselves up; the second captures it; all others replay.

    What was captured holds for the tensors it saw: after any of them is replaced, `forget`.
    """

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Inputs]] = {}
        self._pool: Any = None

    def run(self, name: str, work: Work, inputs: Inputs) -> None:
        key = (name, *((each, tensor.shape) for each, tensor in inputs.items()))
        if key not in self._seen:
            self._seen.add(key)
            work(**inputs)
            return
        if key not in self._graphs:
            self._graphs[key] = self._capture(work, inputs)
        graph, places = self._graphs[key]
        for each, given in inputs.items():
            places[each].copy_(given)
        graph.replay()

    def forget(self) -> None:
        self._seen.clear()
        self._graphs.clear()
        self._pool = None  # it went with its last graph

    def _capture(self, work: Work, inputs: Inputs) -> tuple[torch.cuda.CUDAGraph, Inputs]:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        places = {each: tensor.clone() for each, tensor in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # after an error, which says more
            with torch.cuda.graph(graph, pool=self._pool):
                work(**places)
        return graph, places
