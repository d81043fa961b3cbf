"""Records of finished runs with figures that were chosen, for tests of tables."""

import json
from pathlib import Path
from typing import Any

from espalier.report import ResultTable, published_figures, tables
from espalier.report.records import gather, read_recorded
from espalier.report.table import FIVE, Line

VERSIONS = {"code": "0a1b2c3d4e5f", "espalier": "0.1.0", "torch": "2.11.0"}
HARDWARE = {"machine": "x86_64", "cores": 16, "threads": 16, "gpu": "NVIDIA H200"}


def write_run(
    out: Path,
    learner: str = "mntdp-d",
    seed: int = 0,
    stream: str = "s_minus",
    end: tuple[float, ...] = (0.5, 0.75),
    learned: tuple[float, ...] | None = None,
    backbone: str = "resnet",
    state: str = "complete",
    tuning: dict[str, Any] | None = None,
    rebuilt_from: dict[str, Any] | None = None,
    **metrics: float,
) -> Path:
    """The records of a finished run, without a library."""
    asked = {"stream": stream, "learner": learner, "backbone": backbone, "protocol": "paper", "seed": seed}
    n, first = len(end), learned or end
    matrix = [[*first[: i + 1]] for i in range(n - 1)] + [[*end]]
    figures = {"avg_accuracy": 0.5, "forgetting": 0.0, "lca": 0.1, "memory_mb": 9.2, "tflops": 1746.2, **metrics}
    result = {**asked, "metrics": figures, "accuracy": matrix, "data_complete": state == "complete", "seconds": 12.5}
    folder = out / f"{stream}--{learner}--{backbone}--seed{seed}"
    home = folder / tuning["folder"] if tuning else folder
    home.mkdir(parents=True)
    made: dict[str, Any] = {"data": {"cifar10": {"state": state}}, "versions": VERSIONS, "hardware": HARDWARE}
    made |= {} if rebuilt_from is None else {"rebuilt_from": rebuilt_from}
    (folder / "run.json").write_text(json.dumps(asked))
    (home / "run.json").write_text(json.dumps({**asked, **made}))
    (folder / "result.json").write_text(json.dumps({**result, "tuning": tuning} if tuning else result))
    events = [{"event": "learned", "task": f"t{i + 1}", "dataset": f"set_{i + 1}"} for i in range(n)]
    (home / "records.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


TUNING = {"level": "stream", "field": "strength", "chosen": 100.0, "folder": "tried/strength-100"}


def made(out: Path, **options: Any) -> list[ResultTable]:
    return tables(gather([out], read_recorded)[0], published_figures(), **options)


def line(table: ResultTable, learner: str) -> Line:
    return next(each for each in table.lines if each.learner == learner)


def five(out: Path, learner: str, seed: int, family: str = "") -> None:
    for number, stream in enumerate(FIVE):
        write_run(out, learner, seed, stream + family, end=(0.5, number / 8), avg_accuracy=number / 4)
