"""Training whose work is captured, as on a GPU, by the strict graphs of a processor: the same to the last bit."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier.runs import run
from espalier.training import Job, Setting, train
from espalier.training.job import SLOW, Speed
from espalier.training.train import Outcome, fit
from tests.nets_help import candidate, job, quiet, same_results, task
from tests.small_streams import install, settings, without_times
from tests.strict_graphs import ForbiddenError, StrictGraphs

install()
CAPTURED = Speed(graphs=True)
CODES = {
    "tiny": ["aaaa.", "aaa..", ".....", ".aaaa", "aAaB.", "abab."],
    "resnet": ["aaaaaa.", ".......", "aA....."],
}
SETTINGS = [Setting(1e-2, 0.0), Setting(1e-3, 1e-3), Setting(3e-3, 0.0)]


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[StrictGraphs]:
    """All graphs there are. Members leave as soon as they have stopped: other stacks are rounded in another way."""
    found: list[StrictGraphs] = []

    def new() -> StrictGraphs:
        found.append(StrictGraphs())
        return found[-1]

    for after in ("PACK_WHEN_LEFT", "PACK_CAPTURED_AFTER"):
        monkeypatch.setattr(import_module(fit.__module__), after, 0.0)
    for module in ("model", "columns"):
        monkeypatch.setattr(f"espalier.training.{module}.Graphs", new)
    return found


def captured_and_plain(there: Job, name: str) -> list[Outcome]:
    chosen = [candidate(code, there.backbone) for code in CODES[name]]
    return [train(replace(there, speed=speed), chosen, SETTINGS, quiet) for speed in (CAPTURED, SLOW)]


@pytest.mark.parametrize(
    ("name", "train_images", "val_images", "at_once"),
    [("tiny", 43, 45, 1000), ("tiny", 43, 93, 20), ("tiny", 16, 97, 32), ("resnet", 20, 50, 20)],
)
def test_captured_training_is_the_same(
    name: str, train_images: int, val_images: int, at_once: int, made: list[StrictGraphs]
) -> None:
    there = job(name, eval_batch=at_once, max_epochs=12, patience=12)
    there = replace(there, task=task(train=train_images, val=val_images))
    captured, plain = captured_and_plain(there, name)
    for one, other in zip(captured.results, plain.results, strict=True):
        same_results(one, other, within=0)
    assert captured.flops == plain.flops
    assert {result.steps for result in captured.results} != {captured.steps}, "some stopped early and were taken out"
    asked = {name for graphs in made for name in graphs.ever}
    assert asked == {"step", "evaluation" if at_once >= val_images else "part"}
    assert sum(graphs.replays for graphs in made) > 20


@pytest.mark.parametrize("learner", ["mntdp-d-plus", "pnn", "hat", "online-ewc", "er", "rcl"])
def test_captured_learning_is_the_same(
    learner: str, made: list[StrictGraphs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result_of(speed: Speed) -> dict[str, Any]:
        monkeypatch.setattr(Speed, "of", staticmethod(lambda device: speed))
        asked = settings(learner, backbone="fc-x0.03" if learner == "rcl" else "tiny")
        result = run(asked, tmp_path / str(speed.graphs))
        return without_times(result)

    assert result_of(CAPTURED) == result_of(SLOW)
    assert sum(graphs.replays for graphs in made) > 100


def asks(place: torch.Tensor, x: torch.Tensor) -> None:
    place.fill_(x.sum().item())


def draws(place: torch.Tensor, x: torch.Tensor) -> None:
    place.copy_(x + torch.rand(3))


def picks(place: torch.Tensor, x: torch.Tensor) -> None:
    place[:1].copy_(x[x > 0][:1])


def copies(place: torch.Tensor, x: torch.Tensor) -> None:
    place.copy_(x + torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("work", [asks, draws, picks, copies])
def test_what_a_capture_forbids_is_an_error(work: Callable[..., None]) -> None:
    graphs, place = StrictGraphs(), torch.zeros(3)
    graphs.run("it", lambda x: work(place, x), {"x": torch.ones(3)})
    with pytest.raises(ForbiddenError):
        graphs.run("it", lambda x: work(place, x), {"x": torch.ones(3)})


def test_captured_work_sees_the_tensors_it_saw() -> None:
    """It adds to what was there, not to what took its place, and what it makes for itself is gone behind it."""
    graphs = StrictGraphs()
    there = {"sum": torch.zeros(2)}
    old = there["sum"]

    def add(x: torch.Tensor) -> None:
        there["made"] = x * 2
        there["sum"] += there["made"]

    for _ in range(3):
        graphs.run("add", add, {"x": torch.ones(2)})
    assert old.tolist() == [6, 6]
    assert there["made"].isnan().all()
    there["sum"] = torch.zeros(2)
    graphs.run("add", add, {"x": torch.ones(2)})
    assert (old.tolist(), there["sum"].tolist()) == ([8, 8], [0, 0])
    graphs.forget()
    graphs.run("add", add, {"x": torch.ones(2)})
    assert there["sum"].tolist() == [2, 2]
