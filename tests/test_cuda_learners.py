"""Every learner on a GPU: it learns, keeps its promise, and the same seed gives the same result."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier import DataFolder, Library, TaskSpec, predict, stream
from espalier.learners import LEARNERS, entry
from espalier.runs import rebuild, run
from espalier.streams.registry import STREAMS
from espalier.training.job import SLOW, Speed
from espalier.training.train import fit
from tests.small_streams import install, settings, small_stream, without_times


def larger_stream(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    """On images of 8×8 a few epochs of a ResNet in bfloat16 are a matter of chance; Hopper's kernels take 16×16."""
    return [replace(spec, size=16) for spec in small_stream(name, seed, data)]


install()
STREAMS["larger_mini"] = (larger_stream, "for tests")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
BACKBONES = {"den": "fc-x0.03", "rcl": "fc-x0.03"}
CASES = [(name, BACKBONES.get(name, "tiny")) for name in LEARNERS] + [
    (name, "resnet") for name in ("independent", "finetune", "mntdp-d", "mntdp-d-plus", "mntdp-s", "pnn", "online-ewc")
]


def result_of(learner: str, backbone: str, out: Path) -> dict[str, Any]:
    result = run(settings(learner, stream="larger_mini", backbone=backbone), out, device="cuda")
    return without_times(result)


@pytest.mark.parametrize(("learner", "backbone"), CASES)
def test_it_learns_on_a_gpu_and_the_same_seed_gives_the_same_result(
    learner: str, backbone: str, tmp_path: Path
) -> None:
    result = result_of(learner, backbone, tmp_path / "one")
    assert result["accuracy"][0][0] > 0.4, "chance is 0.2"
    if not entry(learner).forgets:
        assert result["metrics"]["forgetting"] == 0
    assert result_of(learner, backbone, tmp_path / "other") == result


@pytest.mark.parametrize("learner", ["hat", "pnn", "er", "online-ewc", "mntdp-d-plus"])
def test_captured_work_is_the_same_work(learner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in ("PACK_WHEN_LEFT", "PACK_CAPTURED_AFTER"):  # at once, as other stacks are rounded in another way
        monkeypatch.setattr(import_module(fit.__module__), after, 0.0)

    def found(speed: Speed) -> dict[str, Any]:
        monkeypatch.setattr(Speed, "of", staticmethod(lambda device: speed))
        return result_of(learner, "tiny", tmp_path / str(speed.graphs))

    assert found(Speed(graphs=True)) == found(SLOW)


@pytest.mark.parametrize(("learner", "backbone"), [("mntdp-d", "resnet"), ("pnn", "tiny"), ("hat", "tiny")])
def test_a_library_says_on_a_gpu_what_it_says_on_a_processor(learner: str, backbone: str, tmp_path: Path) -> None:
    asked = settings(learner, stream="larger_mini", backbone=backbone)
    run(asked, tmp_path, device="cuda")
    library = Library.open(tmp_path / asked.folder_name / "library")
    for number, name in enumerate(library.tasks):
        images = stream("larger_mini")[number].test.x
        here, there = (predict(library, name, images, device) for device in ("cpu", "cuda"))
        torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("learner", ["independent", "mntdp-d-plus"])
def test_a_run_is_rebuilt_on_a_gpu(learner: str, tmp_path: Path) -> None:
    asked = settings(learner, stream="larger_mini", backbone="tiny")
    run(asked, tmp_path / "first", device="cuda")
    again = rebuild(tmp_path / "first" / asked.folder_name, tmp_path / "again", device="cuda")
    there = [Library.open(tmp_path / out / asked.folder_name / "library") for out in ("first", "again")]
    first, second = ({name: entry.path for name, entry in library.tasks.items()} for library in there)
    assert first == second
    assert again.tasks[0].now > 0.4, "chance is 0.2"
