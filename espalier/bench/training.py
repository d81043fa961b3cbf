"""Seconds and memory to train the same candidates as a trie, as one stack whatever its size, and one by one, each in a
process of its own."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from espalier.learners.space import prefix, suffix, warm
from espalier.nets import backbone
from espalier.streams import stream
from espalier.training import Candidate, Job, Member, describe, fit, protocol, train
from espalier.training.model import TrieModel
from espalier.training.plain import train_one_by_one
from espalier.training.stacks import together

SPACES = {"mntdp-d": (suffix,), "mntdp-d-plus": (suffix, prefix, warm)}
EPOCHS = 10
TRIE, ONE_STACK, ONE_BY_ONE = "trie", "one stack", "one by one"


@dataclass(frozen=True)
class Case:
    learner: str
    backbone: str = "tiny"
    batch: int = 32


CASES = (Case("mntdp-d"), Case("mntdp-d-plus"), Case("mntdp-d-plus", "tiny-x8", 100))


@dataclass(frozen=True)
class Measured:
    seconds: float
    memory: int  # bytes above what the process held before
    accuracies: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """`ways` is without `ONE_STACK` where the trie is one anyway."""

    members: int
    stacks: int
    ways: dict[str, Measured]

    def same_accuracies(self) -> int:
        """How many candidates have the same one in the trie and one by one."""
        pairs = zip(self.ways[TRIE].accuracies, self.ways[ONE_BY_ONE].accuracies, strict=True)
        return sum(mine == other for mine, other in pairs)


def compare(case: Case) -> Comparison:
    """The candidates of a learner on the last task of s_minus_mini, around the path of a network of random weights."""
    job, candidates = _job(case)
    members = _members(job, candidates)
    count = len(together(job, members, case.batch))
    measured: dict[str, Measured] = {}
    for way in (TRIE, *([ONE_STACK] if count > 1 else []), ONE_BY_ONE):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            measured[way] = pool.submit(_measure, case, way).result()
    return Comparison(len(members), count, measured)


def _members(job: Job, candidates: list[Candidate]) -> list[Member]:
    return [Member(c, setting) for c in candidates if set(describe(c)) != {"r"} for setting in job.protocol.grid]


def _job(case: Case) -> tuple[Job, list[Candidate]]:
    task = stream("s_minus_mini", 0)[5]
    network = backbone(case.backbone, (3, 16, 16), task.n_classes)
    unlimited = replace(protocol("quick"), max_epochs=EPOCHS, patience=10**9, batch=case.batch)
    nothing_yet = Job(task, network, {}, unlimited, 0, ("bench", 0))
    modules = {f"old.{block.name}": state for block, state in zip(network.blocks, nothing_yet.fresh(), strict=True)}
    pieces = SPACES[case.learner]
    candidates = [c for piece in pieces for c in piece(tuple(modules), True, 1 if piece is prefix else len(modules))]
    return replace(nothing_yet, modules=modules, place=("bench", 1)), list(dict.fromkeys(candidates))


def _measure(case: Case, way: str) -> Measured:
    job, candidates = _job(case)
    train(replace(job, protocol=replace(job.protocol, max_epochs=1)), candidates[-1:], job.protocol.grid[:1], _quiet)
    before, start = _peak(), time.perf_counter()
    if way == TRIE:
        results = train(job, candidates, job.protocol.grid, _quiet).results
    elif way == ONE_STACK:
        results = fit(job, TrieModel(job, _members(job, candidates)), _quiet).results
    else:
        results = train_one_by_one(job, candidates, job.protocol.grid)
    seconds = time.perf_counter() - start
    return Measured(seconds, _peak() - before, tuple(r.val_accuracy for r in results))


def _peak() -> int:
    """The most memory this process ever held. (`getrusage` would count what its parent held before it.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def _quiet(*progress: object) -> None:
    pass
