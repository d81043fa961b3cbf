"""Runs: records, results, resuming, and input that must not break a library half-way."""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espalier import DataFolder, Dataset, ImageSet, InputError
from espalier.learners import Learned, Lesson
from espalier.library import Library
from espalier.runs import Settings, run
from espalier.runs.records import Records, read_records
from espalier.streams import TaskSpec
from espalier.streams.registry import STREAMS
from tests.small_streams import install, noise, settings, small

install()


def without_times(result: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in result.items() if k != "seconds"}, sort_keys=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    run(settings("mntdp-d"), out)
    return out / settings("mntdp-d").folder_name


def test_a_run_leaves_what_it_promises(uninterrupted: Path) -> None:
    asked = json.loads((uninterrupted / "run.json").read_text())
    assert asked["learner"] == "mntdp-d"
    assert asked["versions"]["torch"]
    assert asked["data"]["digits"]["state"] == "complete"
    events = read_records(uninterrupted / "records.jsonl")
    kinds = [e["event"] for e in events]
    assert kinds.count("learned") == kinds.count("evaluated") == 4
    assert kinds.count("prior") == 3, "the first task has no past"
    candidates = [e for e in events if e["event"] == "candidate" and e["task"] == "t4"]
    assert {c["slots"] for c in candidates} == {"rrrrr", "rrrrf", "rrrff", "rrfff", "rffff", "fffff"}
    result = json.loads((uninterrupted / "result.json").read_text())
    assert {"avg_accuracy", "forgetting", "lca", "memory_mb", "tflops", "tflops_executed"} <= set(result["metrics"])
    best = max(c["val_accuracy"] for c in candidates)
    assert next(e for e in events if e["event"] == "learned" and e["task"] == "t4")["val_accuracy"] == best


def test_paper_flops_are_those_of_the_winning_setting(uninterrupted: Path) -> None:
    events = read_records(uninterrupted / "records.jsonl")
    learned = next(e for e in events if e["event"] == "learned" and e["task"] == "t2")
    same = [e for e in events if e["event"] == "candidate" and e["task"] == "t2" and e["lr"] == learned["lr"]]
    assert {e["weight_decay"] for e in same if e["steps"]} == {learned["weight_decay"]}
    assert learned["paper_flops"] > 0
    assert learned["flops"] > 0


@pytest.mark.parametrize("learner", ["mntdp-d", "finetune"])
def test_killed_again_and_again_a_run_ends_with_the_same_result(learner: str, tmp_path: Path) -> None:
    """kill -9 at random moments; the same command goes on."""
    expected = run(settings(learner), tmp_path / "whole")
    folder = tmp_path / "killed" / settings(learner).folder_name
    command = [sys.executable, "-m", "tests.small_streams", learner, str(tmp_path / "killed")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    rng = random.Random(0)
    kills = 0
    while kills < 4:
        process = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + 60
        # Wait until something new is on record, then a random moment: so that kills fall into the learning.
        seen = len(read_records(folder / "records.jsonl"))
        while process.poll() is None and time.monotonic() < deadline:
            if len(read_records(folder / "records.jsonl")) > seen:
                break
            time.sleep(0.01)
        time.sleep(rng.random() * 0.3)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        Library.open(folder / "library").verify()
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert kills > 0
    result = json.loads((folder / "result.json").read_text())
    assert without_times(result) == without_times(expected)
    events = read_records(folder / "records.jsonl")
    assert [e["task"] for e in events if e["event"] == "evaluated"] == ["t1", "t2", "t3", "t4"]
    assert sum(e["event"] == "candidate" for e in events) == sum(
        e["event"] == "candidate" for e in read_records(tmp_path / "whole" / folder.name / "records.jsonl")
    )


def test_a_finished_run_is_not_run_again(uninterrupted: Path) -> None:
    class Never:
        def learn(self, lesson: Lesson) -> Learned:
            raise AssertionError

    before = (uninterrupted / "result.json").stat().st_mtime_ns
    result = run(settings("mntdp-d"), uninterrupted.parent, own_learner=Never())
    assert result["learner"] == "mntdp-d"
    assert (uninterrupted / "result.json").stat().st_mtime_ns == before


def test_a_run_begun_with_other_settings_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / settings("independent").folder_name
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"schema": 1, "stream": "another"}))
    with pytest.raises(InputError, match="begun with other settings"):
        run(settings("independent"), tmp_path)


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    class Second:
        def learn(self, lesson: Lesson) -> Learned:
            run(settings("independent"), tmp_path)
            raise AssertionError

    with pytest.raises(InputError, match=str(os.getpid())):
        run(settings("independent"), tmp_path, own_learner=Second())


def test_a_torn_last_record_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"event": "a"}\n{"event": "b"}\n{"eve')
    assert [e["event"] for e in Records(path).events] == ["a", "b"]
    assert path.read_text() == '{"event": "a"}\n{"event": "b"}\n'


def own_run(tmp_path: Path, learner: str, specs: list[TaskSpec], *datasets: Dataset, backbone: str = "tiny") -> Any:
    data = DataFolder(tmp_path / "data")
    for dataset in datasets:
        data.add(dataset)
    STREAMS["own_mini"] = (lambda name, seed, folder: specs, "for this test")
    return run(Settings("own_mini", learner, backbone, "test"), tmp_path / "runs", data)


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


def test_one_image_per_class_and_a_handful_to_validate(tmp_path: Path) -> None:
    scant = noise("scant", classes=5)
    result = own_run(tmp_path, "mntdp-d", [noise_spec(scant, train=1, val=1)] * 2, scant)
    assert len(result["accuracy"]) == 2


def test_a_task_with_another_image_size(tmp_path: Path) -> None:
    one = noise("one")
    specs = [noise_spec(one), noise_spec(one, size=16)]
    assert len(own_run(tmp_path, "mntdp-d", specs, one)["accuracy"]) == 2
    with pytest.raises(InputError, match="cannot take"):
        own_run(tmp_path / "fc", "mntdp-d", specs, one, backbone="fc")
    library = Library.open(next((tmp_path / "fc" / "runs").iterdir()) / "library")
    assert list(library.tasks) == ["t1"]


def test_grey_tasks_after_coloured_ones_are_refused(tmp_path: Path) -> None:
    one = noise("one")
    with pytest.raises(InputError, match="cannot take"):
        own_run(tmp_path, "independent", [noise_spec(one), noise_spec(one, channels=1)], one)


def test_there_must_be_such_a_device(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no device 'cuda:99'"):
        run(settings("independent"), tmp_path, device="cuda:99")


def test_the_usual_backbone_and_protocol() -> None:
    assert Settings.of("s_minus", "mntdp-d") == Settings("s_minus", "mntdp-d", "resnet", "paper", 0)
    assert Settings.of("s_in_mini", "mntdp-d", 2) == Settings("s_in_mini", "mntdp-d", "tiny", "quick", 2)
    assert Settings.of("permuted_mnist", "finetune").backbone == "fc"
    assert replace(Settings.of("s_minus", "mntdp-d"), seed=3).folder_name.endswith("seed3")
