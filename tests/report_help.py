"""Run folders of libraries without tensors, for tests of reports."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espalier.report import Finished, read_runs

BLOCKS = ("stem", "body", "head")
EVIL = "<script>alert('x')</script>\"&\x00"
SVG = "{http://www.w3.org/2000/svg}"

PROTOCOL = {"batch": 32, "flip": False, "early": [1, 2], "grid": [{"lr": 0.1}, {"lr": 0.01}]}

Paths = Sequence[Sequence[str]]

SHARING: Paths = (
    ("t1.stem", "t1.body", "t1.head"),
    ("t1.stem", "t2.body", "t2.head"),
    ("t1.stem", "t2.body", "t3.head"),
)


def write_run(
    folder: Path,
    learner: str = "mntdp-d",
    seed: int = 0,
    paths: Paths = SHARING,
    matrix: list[list[float]] | None = None,
    datasets: Sequence[str] | None = None,
    classes: Sequence[str] = ("one", "two"),
    stored: Sequence[str] = (),
    events: Sequence[dict[str, Any]] = (),
    taught: bool = False,
    **result: Any,
) -> Path:
    """A finished run, without the tensors; `stored` names modules that no path uses."""
    matrix = matrix or [[0.5] * (i + 1) for i in range(len(paths))]
    names = sorted({*(module for path in paths for module in path), *stored})
    modules = {n: {"block": n.split(".")[1], "sha256": "0" * 64, "numbers": 1234} for n in names}
    titles = datasets or [f"set {i + 1}" for i in range(len(paths))]
    tasks = {
        f"t{i + 1}": {"path": list(paths[i]), "info": {"dataset": titles[i], "classes": classes}}
        for i in range(len(paths))
    }
    head = {"format": "espalier-library", "version": 1, "backbone": "tiny", "blocks": BLOCKS}
    asked = {
        "schema": 1,
        "stream": "s_minus_mini",
        "learner": learner,
        "backbone": "tiny",
        "protocol": "quick",
        "seed": seed,
    }
    figures = {"avg_accuracy": 0.5, "forgetting": -0.1, "lca": 0.2, "memory_mb": 1.5, "tflops": 0.03}
    outcome = {**asked, "metrics": figures, "accuracy": matrix, "data_complete": True, "seconds": 12.5, **result}
    made = {"data": {"shapes": {"state": "complete", "source": "embedded", "note": "drawn"}}, "hardware": {"cores": 2}}
    for name, value in {
        "library/library.json": {**head, "modules": modules, "tasks": tasks, "extras": {}},
        "run.json": {**asked, **made, "versions": {"torch": "2.13.0"}, "protocol_details": PROTOCOL, "taught": taught},
        "result.json": outcome,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    (folder / "records.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return folder


def one_run(folder: Path, **what: Any) -> Finished:
    (run,) = read_runs(write_run(folder / "run", **what))
    return run


def boxes(svg: str, kind: str) -> list[str]:
    """The modules that are drawn as trained or as re-used, in order."""
    return [
        group.attrib["data-module"]
        for group in ET.fromstring(svg).iter(f"{SVG}g")
        if group.get("class") == f"module {kind}"
    ]


def twenty() -> Paths:
    """Stems of every third task shared in a crossing way, bodies of the first."""
    return [
        (f"t{i % 3 + 1 if i > 2 else i + 1}.stem", "t1.body" if i % 2 == 0 else f"t{i + 1}.body", f"t{i + 1}.head")
        for i in range(20)
    ]
