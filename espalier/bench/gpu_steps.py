"""Training steps of 1, 8, 42 and 102 members: one by one as in any script, one by one fast, and as one trie.

What is counted as operations are the multiply-accumulates, two each, of convolutions and products that training asks
for (`training/cost.py`): forward, the gradients of weights that are trained, and those of inputs where something
before is trained. Norms, augmentation and the optimiser are not counted. One by one, every member computes its frozen
blocks itself; in the trie they are computed and counted once. So the steps per second say what is gained, the
operations per second how busy the device is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count as count_from
from itertools import product

import torch

from espalier.bench import gpu
from espalier.bench.gpu_plain import PlainTraining
from espalier.device import AS_IN_RUNS, AS_TORCH_COMES, cudnn
from espalier.training import Job, Member
from espalier.training.model import TrieModel

EAGER, FAST, TRIE = "one by one, eager, float32", "one by one, bfloat16, captured", "trie, bfloat16, captured"
WAYS = (EAGER, FAST, TRIE)
MEMBERS, BATCHES = (1, 8, 42, 102), (256, 32)
ABOUT = 0.5  # seconds that the steps of one measurement take


@dataclass(frozen=True)
class Line:
    """The figures are None where the memory did not suffice."""

    way: str
    members: int
    batch: int
    model_steps_per_second: float | None
    tflops: float | None  # per second, in 10^12
    peak_memory: int | None  # bytes; one by one: of the member that needs most


@dataclass(frozen=True)
class _Cost:
    """Of one step of one model."""

    seconds: float
    flops: int
    memory: int


def measure(
    device: torch.device,
    network: str = "resnet",
    members: Sequence[int] = MEMBERS,
    batches: Sequence[int] = BATCHES,
    seed: int = 0,
    report: gpu.Report = lambda done, total: None,
    about: float = ABOUT,
) -> list[Line]:
    """One by one, each structure is timed once and counts as often as there are members of it."""
    work = gpu.job(device, network, max(batches), gpu.CLASSES, max(batches), 1, seed)
    # The largest last: should the memory not suffice, nothing else comes after it.
    asked = sorted(product(dict.fromkeys(batches), dict.fromkeys(members)), key=lambda pair: pair[0] * pair[1])
    singles = {member.candidate: member for count in members for member in gpu.members(work, count)}
    total, done = 2 * len(singles) * len(set(batches)) + len(asked), count_from(1)

    def cost(of: Callable[..., _Cost], chosen: Member | list[Member], batch: int) -> _Cost | None:
        found = gpu.fitting(partial(of, work, chosen, batch, about), device)
        report(next(done), total)
        return found

    costs = {
        (way, batch, candidate): cost(of, member, batch)
        for way, of in ((EAGER, _eager), (FAST, _captured))
        for batch in dict.fromkeys(batches)
        for candidate, member in singles.items()
    }
    lines = {(TRIE, b, n): _line(TRIE, n, b, cost(_trie, gpu.members(work, n), b)) for b, n in asked}
    for way, (batch, count) in product((EAGER, FAST), asked):
        held = gpu.structures(gpu.members(work, count))
        whole = _one_by_one([(costs[way, batch, candidate], times) for candidate, times in held.items()])
        lines[way, batch, count] = _line(way, count, batch, whole)
    gpu.release(device)
    return [lines[way, b, n] for b in dict.fromkeys(batches) for n in dict.fromkeys(members) for way in WAYS]


def _eager(work: Job, member: Member, batch: int, about: float) -> _Cost:
    with cudnn(AS_TORCH_COMES):
        training, chosen = PlainTraining(work, member), torch.arange(batch, device=work.device)
        seconds = gpu.seconds_per_call(lambda: training.step(chosen), work.device, about)
    memory = gpu.peak_memory(work.device)
    return _Cost(seconds, batch * TrieModel(work, [member]).flops()[0], memory)


def _captured(work: Job, member: Member, batch: int, about: float) -> _Cost:
    return _trie(work, [member], batch, about)


def _trie(work: Job, members: list[Member], batch: int, about: float) -> _Cost:
    with cudnn(AS_IN_RUNS):
        model, chosen = TrieModel(work, members), torch.arange(batch, device=work.device)
        seconds = gpu.seconds_per_call(lambda: model.step(chosen, 0), work.device, about)
    return _Cost(seconds, batch * model.flops()[0], gpu.peak_memory(work.device))


def _one_by_one(costs: list[tuple[_Cost | None, int]]) -> _Cost | None:
    """One member after another makes a step: what each costs, and how many there are of it."""
    known = [(cost, count) for cost, count in costs if cost is not None]
    if len(known) < len(costs):
        return None
    seconds = sum(count * cost.seconds for cost, count in known)
    return _Cost(seconds, sum(count * cost.flops for cost, count in known), max(cost.memory for cost, _ in known))


def _line(way: str, members: int, batch: int, cost: _Cost | None) -> Line:
    if cost is None:
        return Line(way, members, batch, None, None, None)
    return Line(way, members, batch, members / cost.seconds, cost.flops / cost.seconds / 1e12, cost.memory)
