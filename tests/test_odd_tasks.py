"""Runs on images and tasks that must not break a library half-way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espalier import DataFolder, Dataset, ImageSet, InputError
from espalier.library import Library
from espalier.runs import Settings, run
from espalier.streams import TaskSpec
from espalier.streams.registry import STREAMS
from tests.small_streams import install, noise, small

install()


def own_run(tmp_path: Path, learner: str, specs: list[TaskSpec], *datasets: Dataset, net: str = "tiny") -> Any:
    data = DataFolder(tmp_path / "data")
    for dataset in datasets:
        data.add(dataset)
    STREAMS["own_mini"] = (lambda name, seed, folder: specs, "for this test")
    return run(Settings("own_mini", learner, net, "test"), tmp_path / "runs", data)


def noise_spec(dataset: Dataset, **changes: Any) -> TaskSpec:
    return small(dataset.name, classes=dataset.class_names, **changes)


def test_constant_images_are_learned_as_well_as_can_be(tmp_path: Path) -> None:
    pixels = np.full((40, 8, 8, 3), 7, np.uint8)
    # No two alike, or the pools would take them for one picture.
    pixels[:, 0, 0, 0] = np.arange(40)
    images = ImageSet(pixels, np.arange(40) % 2, ("a", "b"))
    tests = ImageSet(pixels + 100, np.arange(40) % 2, ("a", "b"))
    grey = Dataset("grey", {"train": images, "test": tests})
    result = own_run(tmp_path, "mntdp-d", [noise_spec(grey)] * 2, grey)
    assert 0 <= result["metrics"]["avg_accuracy"] <= 1


@pytest.mark.parametrize("learner", ["mntdp-d-plus", "finetune", "new-head-finetune"])
def test_two_classes_then_two_hundred(learner: str, tmp_path: Path) -> None:
    few, many = noise("few", classes=2), noise("many", classes=200, per_class=6)
    specs = [noise_spec(few), noise_spec(many, train=2, val=1, test=1), noise_spec(few)]
    result = own_run(tmp_path, learner, specs, few, many)
    assert [len(row) for row in result["accuracy"]] == [1, 2, 3]


def test_what_cannot_be_shared_is_said_and_the_library_stays(tmp_path: Path) -> None:
    few, many = noise("few", classes=2), noise("many", classes=3)
    with pytest.raises(InputError, match="shares one head"):
        own_run(tmp_path, "new-leg-freeze", [noise_spec(few), noise_spec(many)], few, many)
    library = Library.open(next((tmp_path / "runs").iterdir()) / "library")
    library.verify()
    assert list(library.tasks) == ["t1"]


def test_a_class_that_is_not_there_is_named_and_the_library_stays(tmp_path: Path) -> None:
    one = noise("one")
    with pytest.raises(InputError, match="has no class 'c9'"):
        own_run(tmp_path, "mntdp-d", [noise_spec(one), small("one", classes=("c0", "c9"))], one)
    library = Library.open(next((tmp_path / "runs").iterdir()) / "library")
    library.verify()
    assert list(library.tasks) == ["t1"]


def test_one_image_per_class_and_a_handful_to_validate(tmp_path: Path) -> None:
    scant = noise("scant", classes=5)
    result = own_run(tmp_path, "mntdp-d", [noise_spec(scant, train=1, val=1)] * 2, scant)
    assert len(result["accuracy"]) == 2


def test_a_task_with_another_image_size(tmp_path: Path) -> None:
    one = noise("one")
    specs = [noise_spec(one), noise_spec(one, size=16)]
    assert len(own_run(tmp_path, "mntdp-d", specs, one)["accuracy"]) == 2
    with pytest.raises(InputError, match="cannot take"):
        own_run(tmp_path / "fc", "mntdp-d", specs, one, net="fc")
    assert not (tmp_path / "fc" / "runs").exists(), "it is told before anything is learned"


def test_grey_tasks_after_coloured_ones_are_refused(tmp_path: Path) -> None:
    one = noise("one")
    with pytest.raises(InputError, match="cannot take"):
        own_run(tmp_path, "independent", [noise_spec(one), noise_spec(one, channels=1)], one)


def test_images_too_small_for_a_backbone_are_said_to_be(tmp_path: Path) -> None:
    one = noise("one")
    with pytest.raises(InputError, match="too small for alexnet"):
        own_run(tmp_path, "independent", [noise_spec(one)], one, net="alexnet")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"classes": ("a",)}, "two classes or more"),
        ({"classes": ("a", "a")}, "two classes or more"),
        ({"classes": "ab"}, "two classes or more"),
        ({"train": 0}, "at least one image per class"),
        ({"val": -1}, "at least one image per class"),
        ({"size": 3}, "at least 4 pixels"),
        ({"channels": 2}, "1 or 3 channels"),
        ({"background": "mauve"}, "no background 'mauve'"),
        ({"val_copies": -1}, "0 augmented copies or more"),
    ],
)
def test_a_task_that_cannot_be_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        replace(TaskSpec("made", ("a", "b"), 5, 3), **changes)
