"""What the measurements on a GPU share: the task, the members, the clock, the memory. All of it runs on a CPU, too.

The members are MNTDP-D's candidates around one path of random modules. With the ResNet's seven blocks there are seven
that train something, from a new head to all new; times the six settings of the paper's grid they are 42.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from espalier.device import out_of_memory
from espalier.device import release as let_go
from espalier.learners.space import suffix
from espalier.nets import backbone
from espalier.streams.task import Split, Task, TaskSpec
from espalier.streams.transforms import statistics
from espalier.training import Candidate, Job, Member, Setting, protocol
from espalier.training.job import Speed

IMAGE, CLASSES = (3, 32, 32), 10
WARM_UP = 3  # a captured step runs as it is, is captured, and is replayed
FEWEST, MOST = 3, 1000  # steps that are timed
NEVER = 10**9  # patience: every member makes all iterations, whichever way it is trained

Report = Callable[[int, int], None]  # measurements done, of how many
T = TypeVar("T")


def job(device: torch.device, network: str, train: int, val: int, batch: int, epochs: int, seed: int) -> Job:
    """Training on noise, around a path of random modules, as fast as the trainer can on that device."""
    net = backbone(network, IMAGE, CLASSES)
    limits = replace(protocol("paper"), batch=batch, max_epochs=epochs, patience=NEVER)
    past = Job(_noise(train, val, seed).to(device), net, {}, limits, seed, ("bench", 0), speed=Speed.of(device))
    modules = {f"old.{block.name}": state for block, state in zip(net.blocks, past.fresh(), strict=True)}
    return replace(past, modules=modules, place=("bench", 1))


def _noise(train: int, val: int, seed: int) -> Task:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (train + val, *IMAGE), dtype=torch.uint8, generator=draw)
    y = torch.arange(train + val) % CLASSES
    mean, std = statistics(x[:train])
    splits = Split(x[:train], y[:train]), Split(x[train:], y[train:]), Split(x[:0], y[:0])
    return Task(TaskSpec("noise", tuple("0123456789"), None, None), *splits, mean, std, complete=True)


def candidates(work: Job) -> list[Candidate]:
    """MNTDP-D's, as the learner has them: the first trains nothing, the last everything."""
    return suffix(tuple(work.modules), True, len(work.modules))


def settings(work: Job) -> tuple[Setting, ...]:
    return work.protocol.settings(work.backbone.name)


def members(work: Job, count: int) -> list[Member]:
    """As many members, dealt out to the candidates that train something, all new first: so the mix is the same for
    every number, but for the remainder. Where there are more than candidates × settings, settings come again. They lie
    as the trainer would have them: candidate by candidate."""
    trained, grid = candidates(work)[1:], settings(work)
    chosen = []
    for rank, candidate in enumerate(reversed(trained)):
        share = count // len(trained) + (rank < count % len(trained))
        chosen.append([Member(candidate, grid[number % len(grid)]) for number in range(share)])
    return [member for share in reversed(chosen) for member in share]


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Let go of what earlier measurements held, and begin to watch the memory anew."""
    let_go(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """The most bytes that tensors held since `release`; 0 on a CPU, where nobody counts."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def seconds_of(work: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Until the device has done all of it."""
    synchronise(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    synchronise(device)
    return time.perf_counter() - start


def seconds_per_call(work: Callable[[], object], device: torch.device, about: float) -> float:
    """Of work that is repeated for about so many seconds, after a warm-up."""
    seconds_of(work, device, WARM_UP)
    once = seconds_of(work, device, FEWEST) / FEWEST
    times = min(MOST, max(FEWEST, math.ceil(about / once)))
    return seconds_of(work, device, times) / times


def fitting(work: Callable[[], T], device: torch.device) -> T | None:
    """What it gives; None: it needs more memory than there is."""
    release(device)
    try:
        return work()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    release(device)  # here, as the error held on to the frames that held the tensors
    return None


def structures(chosen: Sequence[Member]) -> dict[Candidate, int]:
    """How many members each candidate has: what a step costs does not depend on the setting."""
    counts: dict[Candidate, int] = {}
    for member in chosen:
        counts[member.candidate] = counts.get(member.candidate, 0) + 1
    return counts


@dataclass(frozen=True)
class Limits:
    """What the device can do: a large product of matrices in bfloat16, and a copy within its memory."""

    matmul_tflops: float
    copy_tb_per_second: float  # read and written


def limits(device: torch.device, side: int = 8192, copied: int = 2**30, about: float = 0.3) -> Limits:
    release(device)
    a, b = torch.randn(2, side, side, device=device).to(torch.bfloat16)
    matmul = seconds_per_call(lambda: a @ b, device, about)
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = seconds_per_call(lambda: target.copy_(source), device, about)
    return Limits(2 * side**3 / matmul / 1e12, 2 * copied / copy / 1e12)
