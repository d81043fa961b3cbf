"""The memory of whole runs, with the paper's backbones, tasks and classes: the digits that its tables print.

Nothing is trained (no epochs): these figures depend on the architecture alone.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from espalier import DataFolder, Dataset, ImageSet, TaskSpec
from espalier.learners import entry
from espalier.runs import Settings, run
from espalier.streams.registry import STREAMS
from espalier.training import PROTOCOLS, protocol

TRANSFER = ("independent", "finetune", "new-head-freeze", "new-leg-freeze", "ewc", "online-ewc", "er", "pnn", "hat")
SIX = dict(zip(TRANSFER, (14.6, 2.4, 2.5, 2.5, 31.5, 7.3, 13.5, 51.1, 26.6), strict=True))
FIVE = {"independent": 12.2, "new-head-freeze": 2.4, "ewc": 26.7, "er": 11.7, "hat": 26.5}  # for pnn see its tests
SPLIT = {"independent": 24.4, "new-head-finetune": 2.5, "ewc": 51.0, "er-reservoir": 20.9, "hat": 27.0}
PERMUTED = {"independent": 71.8, "finetune": 7.2, "new-head-freeze": 7.5, "new-leg-freeze": 35.4, "online-ewc": 21.6}
PERMUTED |= {"hat": 7.6}
LONG = {"independent": 243.7}
CASES = [
    *(("six", name, value) for name, value in SIX.items()),
    *(("five", name, value) for name, value in FIVE.items()),
    *(("split", name, value) for name, value in SPLIT.items()),
    *(("permuted", name, value) for name, value in PERMUTED.items()),
    *(("long", name, value) for name, value in LONG.items()),
]
TASKS = {"six": 6, "five": 5, "split": 10, "permuted": 10, "long": 100}


def specs(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    _, kind, per_class = name.split("_")
    classes = tuple("01234" if kind == "long" else "0123456789")
    size, channels = (28, 1) if kind == "permuted" else (32, 3)
    plain = TaskSpec("noise", classes, int(per_class), 1, 1, size=size, channels=channels)
    return [replace(plain, permutation=i) if kind == "permuted" else plain for i in range(TASKS[kind])]


def noise() -> Dataset:
    rng = np.random.RandomState(0)
    labels = np.repeat(np.arange(10), 40)
    images = [rng.randint(0, 255, (len(labels), 32, 32, 3), np.uint8) for _ in range(2)]
    names = tuple("0123456789")
    return Dataset("noise", {s: ImageSet(x, labels, names) for s, x in zip(("train", "test"), images, strict=True)})


@pytest.mark.parametrize(("kind", "name", "megabytes"), CASES, ids=lambda value: str(value))
def test_a_run_keeps_what_the_papers_table_says(
    kind: str, name: str, megabytes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_class = 15 if name.startswith("er") else 1  # as many as experience replay remembers
    stream = f"memory_{kind}_{per_class}"
    monkeypatch.setitem(STREAMS, stream, (specs, "for tests"))
    paper = protocol("paper")
    nothing = replace(paper, name="none", max_epochs=0, grid=paper.grid[:1], fc_grid=paper.fc_grid[:1])
    monkeypatch.setitem(PROTOCOLS, "none", nothing)
    data = DataFolder(tmp_path)
    data.add(noise())
    backbone = "fc" if kind == "permuted" else "alexnet" if name == "hat" else "resnet"
    settings = Settings(stream, f"{name}-alone" if entry(name).tuned else name, backbone, "none")
    result = run(settings, tmp_path, data, own_learner=entry(name).learner)
    assert f"{result['metrics']['memory_mb']:.1f}" == str(megabytes)
