"""One suite that every learner of the registry must pass."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier import InputError
from espalier.learners import LEARNERS, Learned, Learner, Lesson, learner
from espalier.library import Library
from espalier.nets import backbone
from espalier.runs import run
from espalier.streams import stream
from tests.small_streams import install, settings

install()
FORGETS = {"finetune", "new-head-finetune", "new-leg-finetune"}


def logits(library: Library, names: list[str]) -> dict[str, torch.Tensor]:
    """What the library says now of every named task's test images."""
    network = backbone("tiny", (3, 8, 8), 5)
    found = {}
    for name in names:
        task = stream("small_mini")[int(name[1:]) - 1]
        states = [library.state(module) for module in library.tasks[name].path]
        found[name] = network.forward(states, task.normalise(task.test.x))
    return found


@dataclass
class Watched:
    """A learner that notes, whenever it is given a lesson, what the library says and what it was shown."""

    inner: Learner
    said: list[dict[str, torch.Tensor]] = field(default_factory=list)
    test_images: list[int] = field(default_factory=list)

    def learn(self, lesson: Lesson) -> Learned:
        self.said.append(logits(lesson.library, list(lesson.library.tasks)))
        self.test_images.append(len(lesson.task.test))
        return self.inner.learn(lesson)


@pytest.fixture(scope="module", params=LEARNERS)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Watched, Any, Path]:
    name: str = request.param
    out = tmp_path_factory.mktemp(name)
    watched = Watched(learner(name))
    return name, watched, run(settings(name), out, own_learner=watched), out / settings(name).folder_name


Finished = tuple[str, Watched, dict[str, Any], Path]


def test_it_learns_the_first_task(finished: Finished) -> None:
    _, _, result, _ = finished
    assert result["accuracy"][0][0] > 0.3, "chance is 0.2"
    assert [len(row) for row in result["accuracy"]] == [1, 2, 3, 4]


def test_old_answers_never_change_where_that_is_promised(finished: Finished) -> None:
    name, watched, result, folder = finished
    last = logits(Library.open(folder / "library"), ["t1", "t2", "t3"])
    changed = [not torch.equal(said[t], last[t]) for said in watched.said for t in said]
    if name in FORGETS:
        assert any(changed)
    else:
        assert not any(changed), "bit for bit"
        assert result["metrics"]["forgetting"] == 0


def test_it_is_never_shown_test_images(finished: Finished) -> None:
    _, watched, _, _ = finished
    assert watched.test_images == [0, 0, 0, 0]


def test_the_library_is_sound_and_memory_counts_each_module_once(finished: Finished) -> None:
    name, _, result, folder = finished
    library = Library.open(folder / "library")
    library.verify()
    used = {module for task in library.tasks.values() for module in task.path}
    numbers = sum(t.numel() for module in used for t in library.state(module).values())
    assert result["metrics"]["memory_mb"] == pytest.approx(4 * numbers / 1e6)
    if name == "finetune":
        assert len(used) == 5, "one network"
    if name == "independent":
        assert len(used) == 4 * 5


def test_same_seed_same_result(finished: Finished, tmp_path: Path) -> None:
    name, _, result, _ = finished
    again = run(settings(name), tmp_path)
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in result.items() if k != "seconds"}


def test_all_learners_begin_alike(tmp_path: Path) -> None:
    """The first task's network is the same for all: their first accuracies are equal."""
    first = {run(settings(name), tmp_path)["accuracy"][0][0] for name in ("independent", "mntdp-d")}
    assert len(first) == 1


def test_frozen_learners_share_what_they_say_they_share(tmp_path: Path) -> None:
    for name, own in (("new-head-freeze", "head"), ("new-leg-freeze", "stem")):
        run(settings(name), tmp_path)
        library = Library.open(tmp_path / settings(name).folder_name / "library")
        for task, entry in library.tasks.items():
            trained_here = {module for module in entry.path if module.startswith(task)}
            assert task == "t1" or trained_here == {f"{task}.{own}"}


def test_unknown_learners_are_refused() -> None:
    with pytest.raises(InputError, match="there is no learner 'mntdp'"):
        learner("mntdp")
