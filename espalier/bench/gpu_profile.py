"""Where the time goes: the kernels of a training step of the trie, and of an evaluation, summed by what they do.

Kernels are told apart by their names, which are those of cuDNN, cuBLAS, PyTorch and Espalier's own. On a CPU the names
are those of PyTorch's operators, and most are `other`.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import DeviceType, ProfilerActivity, profile

from espalier.bench import gpu
from espalier.device import AS_IN_RUNS, cudnn
from espalier.training.model import TrieModel
from espalier.training.train import evaluation

MEMBERS, BATCH = 42, 256
VAL = 200  # validation images, as many as the paper's tasks of 400 images have
CALLS = 3  # that are watched

# The first pattern that is found in a name says what it is: a conversion of cuDNN's is no convolution, and a copy is
# one of PyTorch's element-wise kernels.
KINDS = (
    ("copies", r"nchwToNhwc|nhwcToNchw|convertTensor|Memcpy|Memset"),
    ("norm passes", r"batch_?norm|::bn_|welford"),
    ("optimiser", r"multi_tensor_apply|adam"),
    ("convolutions", r"fprop|dgrad|wgrad|convol|of_weights|conv2d|conv_depthwise|winograd|cudnn"),
    ("products", r"gemm|nvjet|gemv|splitKreduce|cublas|dot_kernel|::b?addb?mm|::b?mm$"),
    ("copies", r"copy|CatArray|FillFunctor|fill_|gather|scatter|index|flip|arange"),
    ("reductions", r"reduce|softmax|nll_loss|::sum$|::mean$"),
    ("elementwise", r"elementwise"),
)
# Espalier's own, by the file they are in, and those that are for something else there.
OWN = {"kernels": "norm passes", "conv_kernels": "convolutions"}
OWN_ELSE = {"adam": "optimiser"} | dict.fromkeys(("renew", "arrange", "disarrange", "place_beside"), "copies")
OTHER = "other"
ORDER = (*dict.fromkeys(name for name, _ in KINDS), OTHER)


@dataclass(frozen=True)
class Kernel:
    name: str
    kind: str
    ms: float  # per call of the work
    calls: float


@dataclass(frozen=True)
class Profile:
    """`work` is a step or an evaluation, `ms` its time without the profiler; kernels, the longest first, are those of
    one call of it."""

    work: str
    members: int
    images: int
    ms: float
    tflops: float  # per second, in 10^12
    kernels: list[Kernel]

    def kinds(self) -> dict[str, float]:
        """Milliseconds of each kind."""
        return {kind: sum(k.ms for k in self.kernels if k.kind == kind) for kind in ORDER}


def measure(
    device: torch.device,
    network: str = "resnet",
    members: int = MEMBERS,
    batch: int = BATCH,
    val: int = VAL,
    seed: int = 0,
    about: float = 0.5,
) -> list[Profile]:
    """Of a step, and of an evaluation."""
    gpu.release(device)
    work = gpu.job(device, network, batch, val, batch, 1, seed)
    chosen = torch.arange(batch, device=device)
    with cudnn(AS_IN_RUNS):
        model = TrieModel(work, gpu.members(work, members))
        flops = model.flops()
        return [
            _profile("step", lambda: model.step(chosen, 0), model, batch, batch * flops[0], about),
            _profile("evaluation", evaluation(work, model), model, val, val * flops[1], about),
        ]


def _profile(name: str, work: Callable[[], object], model: TrieModel, images: int, flops: int, about: float) -> Profile:
    device = model.job.device
    seconds = gpu.seconds_per_call(work, device, about)
    watched = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[watched]) as profiler:
        gpu.seconds_of(work, device, CALLS)
    tflops = flops / seconds / 1e12
    return Profile(name, len(model.members), images, 1e3 * seconds, tflops, _kernels(profiler, device))


def _kernels(profiler: profile, device: torch.device) -> list[Kernel]:
    spent: dict[str, list[float]] = {}
    for event in profiler.events() or ():  # type: ignore[no-untyped-call]
        milliseconds = _milliseconds(event, device)
        if milliseconds:
            spent.setdefault(event.name, []).append(milliseconds)
    own = own_kernels()
    found = [Kernel(name, kind_of(name, own), sum(ms) / CALLS, len(ms) / CALLS) for name, ms in spent.items()]
    return sorted(found, key=lambda kernel: kernel.ms, reverse=True)


def _milliseconds(event: FunctionEvent, device: torch.device) -> float:
    """What the device itself spent in it."""
    if device.type == "cpu":
        return float(event.self_cpu_time_total) / 1e3
    if event.device_type != DeviceType.CUDA or getattr(event, "is_user_annotation", False):
        return 0.0
    return float(event.time_range.elapsed_us()) / 1e3  # type: ignore[no-untyped-call]


def kind_of(name: str, own: Mapping[str, str]) -> str:
    """`own`: what Espalier's kernels are for, by their names."""
    if name in own:
        return own[name]
    return next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), OTHER)


def own_kernels() -> dict[str, str]:
    """None where there is no Triton, which comes with PyTorch for GPUs."""
    found: dict[str, str] = {}
    for file, kind in OWN.items():
        with suppress(ImportError):
            kernels = vars(importlib.import_module(f"espalier.nets.{file}"))
            found |= {name: kind for name, value in kernels.items() if hasattr(value, "fn")}
    return found | {name: OWN_ELSE[name] for name in OWN_ELSE if name in found}
