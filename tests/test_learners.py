"""One suite that every learner of the registry must pass."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import espalier.streams.registry as stream_registry
from espalier import DataFolder, InputError
from espalier.evaluation import predict
from espalier.learners import LEARNERS, Learned, Learner, Lesson, entry
from espalier.learners.options import described
from espalier.library import Library
from espalier.runs import Settings, run
from espalier.streams import Task, TaskSpec, stream
from espalier.streams.task import build_task
from tests.small_streams import install, without_times
from tests.small_streams import settings as small_settings

install()
FULLY_CONNECTED = {name for name, known in LEARNERS.items() if known.backbone == "fc"}


def settings(name: str) -> Settings:
    return small_settings(name, backbone="fc-x0.03" if name in FULLY_CONNECTED else "tiny")


class Forbidden:
    """Something a learner must not look at."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the learner looked at {name} of the test images")

    def __len__(self) -> int:
        raise AssertionError("the learner counted the test images")


def logits(library: Library, names: list[str]) -> dict[str, torch.Tensor]:
    """What the library says now of every named task's test images."""
    return {name: predict(library, name, stream("small_mini")[int(name[1:]) - 1].test.x) for name in names}


@dataclass(repr=False)
class Watched:
    """A learner that is handed tasks whose test images must not be looked at; notes what the library says before each
    lesson; and, if asked, is killed at a task."""

    inner: Learner
    killed_at: str = ""
    now: int = -1
    said: list[dict[str, torch.Tensor]] = field(default_factory=list)
    shown_test_images: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return described(self.inner)

    def learn(self, lesson: Lesson) -> Learned:
        self.said.append(logits(lesson.library, list(lesson.library.tasks)))
        self.shown_test_images.append(len(lesson.task.test))
        self.now = lesson.index
        learned = self.inner.learn(replace(lesson, task=replace(lesson.task, test=Forbidden())))  # type: ignore[arg-type]
        self.now = -1
        if lesson.name == self.killed_at:  # its events are on record, what it learned is not stored
            raise KeyboardInterrupt
        return learned

    def build(self, spec: TaskSpec, data: DataFolder, seed: int, name: str, index: int) -> Task:
        """In place of `build_task`: while a task is learned, no other is there."""
        assert self.now in (-1, index), "the learner asked for another task"
        return build_task(spec, data, seed, name, index)


def asked(name: str) -> Settings:
    """By itself, with its usual values: under another name, where several are tried under its own."""
    return settings(name if entry(name).tuned is None else f"{name}-alone")


Finished = tuple[str, Watched, dict[str, Any], Path]


@pytest.fixture(scope="module", params=LEARNERS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    name: str = request.param
    out = tmp_path_factory.mktemp(name)
    watched = Watched(entry(name).learner)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_registry, "build_task", watched.build)
        result = run(asked(name), out, own_learner=watched)
    return name, watched, result, out / asked(name).folder_name


def test_it_learns_the_first_task(finished: Finished) -> None:
    _, _, result, _ = finished
    assert result["accuracy"][0][0] > 0.3, "chance is 0.2"
    assert [len(row) for row in result["accuracy"]] == [1, 2, 3, 4]


def test_old_answers_never_change_where_that_is_promised(finished: Finished) -> None:
    name, watched, result, folder = finished
    last = logits(Library.open(folder / "library"), ["t1", "t2", "t3"])
    changed = [not torch.equal(said[t], last[t]) for said in watched.said for t in said]
    if entry(name).forgets:
        assert any(changed)
    else:
        assert not any(changed), "bit for bit"
        assert result["metrics"]["forgetting"] == 0


def test_it_is_never_shown_test_images(finished: Finished) -> None:
    _, watched, _, _ = finished
    assert watched.shown_test_images == [0, 0, 0, 0]


def test_the_library_is_sound_and_memory_is_what_the_learner_keeps(finished: Finished) -> None:
    name, _, result, folder = finished
    library = Library.open(folder / "library")
    library.verify()
    used = {module for task in library.tasks.values() for module in task.path}
    numbers = sum(t.numel() for module in used for t in library.state(module).values())
    counted = library.tasks["t4"].info.get("memory", numbers)
    assert result["metrics"]["memory_mb"] == pytest.approx(4 * counted / 1e6)
    assert counted > numbers / 4
    if name == "finetune":
        assert len(used) == 5, "one network"
    if name == "independent":
        assert len(used) == 4 * 5


def test_same_seed_same_result(finished: Finished, tmp_path: Path) -> None:
    name, _, result, _ = finished
    assert without_times(run(asked(name), tmp_path, own_learner=entry(name).learner)) == without_times(result)


def test_it_goes_on_with_the_same_bits_after_it_was_killed(finished: Finished, tmp_path: Path) -> None:
    name, _, result, folder = finished
    with pytest.raises(KeyboardInterrupt):
        run(asked(name), tmp_path, own_learner=Watched(entry(name).learner, killed_at="t3"))
    assert without_times(run(asked(name), tmp_path, own_learner=entry(name).learner)) == without_times(result)
    whole, parts = (Library.open(at / "library") for at in (folder, tmp_path / asked(name).folder_name))
    assert {n: (task.path, without_times(task.info)) for n, task in whole.tasks.items()} == {
        n: (task.path, without_times(task.info)) for n, task in parts.tasks.items()
    }
    assert {n: module.sha256 for n, module in whole.modules.items()} == {
        n: module.sha256 for n, module in parts.modules.items()
    }
    once, again = whole.extras(), parts.extras()
    assert {extra: state.keys() for extra, state in once.items()} == {e: state.keys() for e, state in again.items()}
    assert all(torch.equal(tensor, again[extra][n]) for extra, state in once.items() for n, tensor in state.items())


def test_all_learners_begin_alike(tmp_path: Path) -> None:
    """The first task's network is the same for all: their first accuracies are equal."""
    first = {run(settings(name), tmp_path)["accuracy"][0][0] for name in ("independent", "mntdp-d", "er", "mntdp-s")}
    assert len(first) == 1


def test_frozen_learners_share_what_they_say_they_share(tmp_path: Path) -> None:
    for name, own in (("new-head-freeze", "head"), ("new-leg-freeze", "stem")):
        run(settings(name), tmp_path)
        library = Library.open(tmp_path / settings(name).folder_name / "library")
        for task, known in library.tasks.items():
            trained_here = {module for module in known.path if module.startswith(task)}
            assert task == "t1" or trained_here == {f"{task}.{own}"}


def test_unknown_learners_are_refused() -> None:
    with pytest.raises(InputError, match="there is no learner 'mntdp'"):
        entry("mntdp")


@pytest.mark.parametrize("name", sorted(FULLY_CONNECTED))
def test_learners_of_dense_layers_refuse_convolutions(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name} works with the fully connected backbone only, not 'tiny'"):
        run(small_settings(name), tmp_path)
