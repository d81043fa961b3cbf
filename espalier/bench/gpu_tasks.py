"""Whole tasks, every member under every setting: as one trie, and one member after another in a plain loop.

What is timed is the training of a task's candidates with the evaluations in it, not the choice of a past path before
it nor the writing of modules after it. Nobody stops early, so both ways make the same iterations. The candidate that
trains nothing is evaluated in the trie's time, and left out of the other.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from espalier.bench import gpu
from espalier.bench.gpu_plain import PlainTraining
from espalier.device import AS_IN_RUNS, AS_TORCH_COMES, cudnn
from espalier.training import Candidate, Job, Member, train

BATCH = 256
ABOUT = 2.0  # seconds that a member is trained one by one, unless it is trained to the end


@dataclass(frozen=True)
class Size:
    train: int
    val: int
    epochs: int


SIZES = (Size(400, 200, 300), Size(4000, 2000, 125))


@dataclass(frozen=True)
class Trie:
    seconds: float
    steps: int
    tflops: float  # per second, in 10^12, evaluations included
    peak_memory: int


@dataclass(frozen=True)
class OneByOne:
    """`epochs` were run of each of `runs` networks, the fewest and the most; seconds are those of all members."""

    seconds: float
    runs: int
    epochs: tuple[int, int]
    extrapolated: bool
    peak_memory: int


@dataclass(frozen=True)
class Line:
    size: Size
    learner: str
    members: int
    trie: Trie
    one_by_one: OneByOne

    @property
    def times_faster(self) -> float:
        return self.one_by_one.seconds / self.trie.seconds


@dataclass(frozen=True)
class _Trained:
    """One network, one by one."""

    seconds_per_epoch: float
    epochs: int
    memory: int


def measure(
    device: torch.device,
    network: str = "resnet",
    sizes: Sequence[Size] = SIZES,
    seed: int = 0,
    report: gpu.Report = lambda done, total: None,
    about: float | None = ABOUT,
    batch: int = BATCH,
) -> list[Line]:
    """`about` seconds for each network one by one; None: all members are trained to the end."""
    lines: list[Line] = []
    report(0, 2 * len(sizes))
    for size in sizes:
        work = gpu.job(device, network, size.train, size.val, batch, size.epochs, seed)
        every = gpu.candidates(work)
        plain = {c: one_by_one(work, c, about) for c in every[1:]}
        for learner, candidates in (("mntdp-d", every), ("independent", every[-1:])):
            trie = as_trie(work, candidates)
            trained = [plain[c] for c in candidates if c in plain]
            lines.append(Line(size, learner, len(trained) * len(gpu.settings(work)), trie, _together(work, trained)))
            report(len(lines), 2 * len(sizes))
    gpu.release(device)
    return lines


def as_trie(work: Job, candidates: Sequence[Candidate]) -> Trie:
    grid = gpu.settings(work)
    with cudnn(AS_IN_RUNS):
        short = replace(work, protocol=replace(work.protocol, max_epochs=1))
        train(short, candidates, grid, _quiet)  # kernels are compiled and loaded
        gpu.release(work.device)
        start = time.perf_counter()
        outcome = train(work, candidates, grid, _quiet)
        gpu.synchronise(work.device)
        seconds = time.perf_counter() - start
    steps = work.protocol.max_epochs * work.steps_per_epoch()  # of every member
    return Trie(seconds, steps, outcome.flops / seconds / 1e12, gpu.peak_memory(work.device))


def one_by_one(work: Job, candidate: Candidate, about: float | None) -> list[_Trained]:
    """A candidate under every setting to the end, or under the first only, for some epochs."""
    chosen = [Member(candidate, setting) for setting in gpu.settings(work)]
    with cudnn(AS_TORCH_COMES):
        PlainTraining(work, chosen[0]).epoch()
        return [_train_plainly(work, member, about) for member in (chosen if about is None else chosen[:1])]


def _train_plainly(work: Job, member: Member, about: float | None) -> _Trained:
    gpu.release(work.device)
    training, epochs = PlainTraining(work, member), 0
    gpu.synchronise(work.device)
    start = time.perf_counter()
    while epochs < work.protocol.max_epochs and (about is None or not epochs or time.perf_counter() - start < about):
        training.epoch()  # it waits for the device
        epochs += 1
    return _Trained((time.perf_counter() - start) / epochs, epochs, gpu.peak_memory(work.device))


def _together(work: Job, trained: list[list[_Trained]]) -> OneByOne:
    """All members, one after another: what was run, and what was not as if it took as long."""
    members, most = len(gpu.settings(work)), work.protocol.max_epochs
    seconds = sum(most * members * sum(r.seconds_per_epoch for r in runs) / len(runs) for runs in trained)
    runs = [run for each in trained for run in each]
    epochs = min(run.epochs for run in runs), max(run.epochs for run in runs)
    all_run = epochs[0] == most and len(runs) == members * len(trained)
    return OneByOne(seconds, len(runs), epochs, not all_run, max(run.memory for run in runs))


def _quiet(*progress: object) -> None:
    pass
