"""Streams of own tasks that grow: a run goes on with what is new, as if it had known it from the beginning."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier import InputError, Settings, TaskSpec, add_stream, predict, run, stream
from espalier.learners import MntdpD
from espalier.learners.ewc import Ewc
from espalier.library import Library
from espalier.runs.records import read_records
from espalier.streams import STREAMS
from tests.small_streams import install, small, without_times

install()
TASKS = [small("letters"), small("digits"), small("textures")]


@pytest.fixture(autouse=True)
def no_stream_is_left() -> Iterator[None]:
    yield
    STREAMS.pop("growing", None)


def learned(tasks: list[TaskSpec], out: Path, learner: str = "mntdp-d") -> dict[str, Any]:
    add_stream("growing", tasks)
    return run(asked(learner), out)


def asked(learner: str = "mntdp-d") -> Settings:
    return Settings("growing", learner, "tiny", "test")


@pytest.mark.parametrize("learner", ["mntdp-d", "er", "online-ewc"])
def test_a_run_that_grew_ends_as_one_that_knew_all_tasks(learner: str, tmp_path: Path) -> None:
    assert len(learned(TASKS[:1], tmp_path / "grown", learner)["accuracy"]) == 1
    assert len(learned(TASKS[:2], tmp_path / "grown", learner)["accuracy"]) == 2
    grown = learned(TASKS, tmp_path / "grown", learner)
    assert without_times(grown) == without_times(learned(TASKS, tmp_path / "whole", learner))
    assert learned(TASKS, tmp_path / "grown", learner) == grown, "it has finished"


def test_old_answers_stay_to_the_last_bit(tmp_path: Path) -> None:
    learned(TASKS[:2], tmp_path)
    images = stream("growing")[0].test.x
    before = predict(Library.open(tmp_path / asked().folder_name / "library"), "t1", images)
    learned(TASKS, tmp_path)
    library = Library.open(tmp_path / asked().folder_name / "library")
    assert list(library.tasks) == ["t1", "t2", "t3"]
    assert torch.equal(predict(library, "t1", images), before)


def test_only_what_is_new_is_learned(tmp_path: Path) -> None:
    learned(TASKS[:2], tmp_path)
    before = (tmp_path / asked().folder_name / "records.jsonl").read_text()
    learned(TASKS, tmp_path)
    after = (tmp_path / asked().folder_name / "records.jsonl").read_text()
    assert after.startswith(before)
    assert {event["task"] for event in read_records(tmp_path / asked().folder_name / "records.jsonl")} == {
        "t1",
        "t2",
        "t3",
    }


@pytest.mark.parametrize("other", [TASKS[1::-1], TASKS[:1], [small("letters", train=9), TASKS[1], TASKS[2]]])
def test_tasks_that_are_known_must_stay(other: list[TaskSpec], tmp_path: Path) -> None:
    first = learned(TASKS[:2], tmp_path)
    with pytest.raises(InputError, match=r"begun with other settings \(tasks in its run\.json\)"):
        learned(other, tmp_path)
    assert learned(TASKS[:2], tmp_path) == first


@pytest.mark.parametrize(("learner", "kind"), [("mntdp-d", MntdpD), ("online-ewc", Ewc)])
def test_a_run_that_is_growing_is_not_shown_as_finished(
    learner: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned(TASKS[:2], tmp_path, learner)

    def never(self: object, lesson: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "learn", never)
        with pytest.raises(KeyboardInterrupt):
            learned(TASKS, tmp_path, learner)
    assert not (tmp_path / asked(learner).folder_name / "result.json").exists()
    assert len(learned(TASKS, tmp_path, learner)["accuracy"]) == 3


@pytest.mark.parametrize("learner", ["mntdp-d", "online-ewc"])
def test_a_mistaken_task_that_was_never_learned_can_be_put_right(learner: str, tmp_path: Path) -> None:
    first = learned(TASKS[:1], tmp_path, learner)
    wrong = small("digits", classes=("1", "eleven"))
    with pytest.raises(InputError, match="no class 'eleven'"):
        learned([TASKS[0], wrong], tmp_path, learner)
    assert (tmp_path / asked(learner).folder_name / "result.json").is_file()
    assert learned(TASKS[:1], tmp_path, learner) == first, "nothing has changed"
    grown = learned(TASKS[:2], tmp_path, learner)
    assert without_times(grown) == without_times(learned(TASKS[:2], tmp_path / "whole", learner))


def test_a_run_whose_library_was_taken_away_is_shown_but_does_not_grow(tmp_path: Path) -> None:
    first = learned(TASKS[:1], tmp_path)
    folder = tmp_path / asked().folder_name
    shutil.rmtree(folder / "library")
    before = (folder / "records.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"lost its library\.json"):
        learned(TASKS[:2], tmp_path)
    assert (folder / "records.jsonl").read_bytes() == before
    assert learned(TASKS[:1], tmp_path) == first


def test_a_folder_of_an_older_version_that_does_not_tell_its_tasks_goes_on(tmp_path: Path) -> None:
    learned(TASKS[:2], tmp_path)
    path = tmp_path / asked().folder_name / "run.json"
    begun = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in begun.items() if key != "tasks"}))
    assert len(learned(TASKS, tmp_path)["accuracy"]) == 3
    assert len(json.loads(path.read_text())["tasks"]) == 3


def test_images_that_do_not_fit_are_refused_before_anything_is_learned(tmp_path: Path) -> None:
    add_stream("growing", [small("letters"), small("digits", channels=1)])
    with pytest.raises(InputError, match=r"task t2 has images of shape \(1, 8, 8\).*one shape"):
        run(asked("independent"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "tasks", "why"),
    [
        ("s_minus", TASKS, "a stream already"),
        ("a/b", TASKS, "cannot name"),
        ("", TASKS, "cannot name"),
        ("..", TASKS, "cannot name"),
        ("growing", [], "no task"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(name: str, tasks: list[TaskSpec], why: str) -> None:
    with pytest.raises(InputError, match=why):
        add_stream(name, tasks)
