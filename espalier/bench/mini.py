"""The paper's picture on the mini streams: every stream with the learners that it is about, over several seeds."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from espalier.evaluation import transfer
from espalier.runs import Settings
from espalier.runs.many import run_many

STREAMS = ("s_minus_mini", "s_plus_mini", "s_in_mini", "s_out_mini", "s_pl_mini")
LEARNERS = ("independent", "finetune", "mntdp-d", "mntdp-d-plus")


@dataclass(frozen=True)
class Line:
    """Means over the seeds, each with its standard deviation."""

    stream: str
    learner: str
    average: tuple[float, float]
    forgetting: tuple[float, float]
    transfer: tuple[float, float]
    last: tuple[float, float]
    memory_mb: float
    seconds: float


def run_all(seeds: int, out: Path, workers: int | None) -> Iterator[tuple[Settings, dict[str, Any]]]:
    jobs = [(Settings.of(s, learner, seed), None) for seed in range(seeds) for s in STREAMS for learner in LEARNERS]
    return run_many(jobs, out, workers=workers)


def lines(results: dict[Settings, dict[str, Any]]) -> list[Line]:
    """One line per stream and learner. The transfer of each seed is against `independent` with the same seed."""
    found = []
    for stream in STREAMS:
        for learner in LEARNERS:
            runs = {s.seed: r for s, r in results.items() if (s.stream, s.learner) == (stream, learner)}
            alone = {s.seed: r for s, r in results.items() if (s.stream, s.learner) == (stream, "independent")}
            metrics = [r["metrics"] for r in runs.values()]
            found.append(
                Line(
                    stream,
                    learner,
                    _spread([m["avg_accuracy"] for m in metrics]),
                    _spread([m["forgetting"] for m in metrics]),
                    _spread([transfer(r["accuracy"], alone[seed]["accuracy"]) for seed, r in runs.items()]),
                    _spread([m["last_task_accuracy"] for m in metrics]),
                    fmean(m["memory_mb"] for m in metrics),
                    fmean(r["seconds"] for r in runs.values()),
                )
            )
    return found


def _spread(values: list[float]) -> tuple[float, float]:
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
