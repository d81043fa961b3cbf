"""Seconds and memory to train the same candidates as one trie and one by one, each in a process of its own."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from espalier.learners.space import prefix, suffix, warm
from espalier.nets import backbone
from espalier.streams import stream
from espalier.training import Candidate, Job, describe, protocol, train
from espalier.training.plain import train_one_by_one

SPACES = {"mntdp-d": (suffix,), "mntdp-d-plus": (suffix, prefix, warm)}
EPOCHS = 10


@dataclass(frozen=True)
class Measured:
    seconds: float
    memory: int  # bytes above what the process held before
    accuracies: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    learner: str
    members: int
    trie: Measured
    one_by_one: Measured


def compare(learner: str) -> Comparison:
    """The candidates of a learner on the last task of s_minus_mini, around the path of a network of random weights."""
    results = []
    for way in ("trie", "one by one"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            results.append(pool.submit(_measure, learner, way).result())
    job, candidates = _job(learner)
    trained = sum(set(describe(c)) != {"r"} for c in candidates)
    return Comparison(learner, trained * len(job.protocol.grid), *results)


def _job(learner: str) -> tuple[Job, list[Candidate]]:
    task = stream("s_minus_mini", 0)[5]
    network = backbone("tiny", (3, 16, 16), task.n_classes)
    unlimited = replace(protocol("quick"), max_epochs=EPOCHS, patience=10**9)
    nothing_yet = Job(task, network, {}, unlimited, 0, ("bench", 0))
    modules = {f"old.{block.name}": state for block, state in zip(network.blocks, nothing_yet.fresh(), strict=True)}
    pieces = SPACES[learner]
    candidates = [c for piece in pieces for c in piece(tuple(modules), True, 1 if piece is prefix else len(modules))]
    return replace(nothing_yet, modules=modules, place=("bench", 1)), list(dict.fromkeys(candidates))


def _measure(learner: str, way: str) -> Measured:
    job, candidates = _job(learner)
    train(replace(job, protocol=replace(job.protocol, max_epochs=1)), candidates[-1:], job.protocol.grid[:1], _quiet)
    before, start = _peak(), time.perf_counter()
    if way == "trie":
        results = train(job, candidates, job.protocol.grid, _quiet).results
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
