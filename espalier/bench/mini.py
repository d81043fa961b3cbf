"""The paper's picture on the mini streams: every learner on every stream, over several seeds."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from espalier.evaluation import transfer
from espalier.learners import LEARNERS
from espalier.runs import Settings
from espalier.runs.many import run_many

STREAMS = ("s_minus_mini", "s_plus_mini", "s_in_mini", "s_out_mini", "s_pl_mini", "permuted_mini")
FIGURES = {
    "average accuracy": "avg_accuracy",
    "forgetting": "forgetting",
    "transfer": "transfer",
    "last task": "last_task_accuracy",
    "memory MB": "memory_mb",
    "seconds": "seconds",
}

Results = Mapping[Settings, Mapping[str, Any]]
Spread = tuple[float, float]  # mean and standard deviation over the seeds


def jobs(seeds: int, learners: Sequence[str] = ()) -> list[Settings]:
    """Every learner on every stream, those that take long first, and what their transfer is measured against."""
    asked = [Settings.of(s, each, n) for each in learners or LEARNERS for s in STREAMS for n in range(seeds)]
    return sorted(dict.fromkeys([*asked, *map(reference, asked)]), key=_cost, reverse=True)


def reference(settings: Settings) -> Settings:
    """The run of `independent` that a run's transfer is measured against: the same kind of backbone, not wider."""
    usual = Settings.of(settings.stream, "independent", settings.seed)
    if settings.backbone.startswith("fc") and not usual.backbone.startswith("fc"):
        return Settings.of(settings.stream, "independent", settings.seed, settings.backbone)
    return usual


def _cost(settings: Settings) -> int:
    """Roughly: so that no long run is begun last."""
    known = LEARNERS[settings.learner]
    long = ("mntdp-d-plus", "mntdp-d-k-all", "mntdp-s-k-all", "rcl", "hat-wide", "pnn")
    return 2 * (settings.learner in long) + (known.tuned is not None)


def run_all(settings: Sequence[Settings], out: Path, workers: int | None) -> Iterator[tuple[Settings, dict[str, Any]]]:
    return run_many([(each, None) for each in settings], out, workers=workers)


def figures(results: Results) -> dict[str, dict[str, dict[str, Spread]]]:
    """Figure → learner → stream → mean and deviation. The transfer is against `independent` with the same seed."""
    found: dict[str, dict[str, dict[str, Spread]]] = {}
    for title, key in FIGURES.items():
        for learner in LEARNERS:
            for stream in STREAMS:
                usual = Settings.of(stream, learner).backbone
                runs = [s for s in results if (s.stream, s.learner, s.backbone) == (stream, learner, usual)]
                if runs:
                    values = [_value(s, key, results) for s in runs]
                    found.setdefault(title, {}).setdefault(learner, {})[stream] = _spread(values)
    return found


def _value(settings: Settings, key: str, results: Results) -> float:
    result = results[settings]
    if key == "transfer":
        return transfer(result["accuracy"], results[reference(settings)]["accuracy"])
    return float(result[key] if key == "seconds" else result["metrics"][key])


def _spread(values: list[float]) -> Spread:
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
