"""Learners of one's own: their names, and what is told of mistakes in them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from espalier import InputError
from espalier.learners import Learned, Lesson, MntdpD, Prior
from espalier.learners.options import described
from espalier.runs import run
from espalier.training import Copy, Fresh, Reuse
from tests.small_streams import install, settings

install()


@dataclass(frozen=True)
class Nothing:
    """A learner that is never asked to learn."""

    def learn(self, lesson: Lesson) -> Learned:
        raise AssertionError


@pytest.mark.parametrize("name", ["a/../b c", "../x", "a\\b", "a\nb", "a\0b"])
@pytest.mark.parametrize("field", ["stream", "learner", "backbone", "protocol"])
def test_what_names_a_run_does_not_lead_out_of_its_place(field: str, name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name of a run's folder"):
        _ = replace(settings("mine"), **{field: name}).folder_name  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mntdp-d[nearest,suffix+prefix1]", "finetune[lr=0.001]", "größer", "a b", ".."])
def test_own_learners_may_be_named_after_their_values(name: str) -> None:
    assert settings(name).folder_name == f"small_mini--{name}--tiny--test--seed0"


def test_nothing_is_written_where_a_name_leads_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be the name of a run's folder"):
        run(settings("a/../../b"), tmp_path / "runs", own_learner=Nothing())
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_asked_for_by_names_alone() -> None:
    with pytest.raises(InputError, match=r"'small_mini' is no Settings; give run what Settings\.of"):
        run("small_mini", "mntdp-d")  # type: ignore[arg-type]


def test_a_run_is_known_by_what_is_not_usual_about_its_learner() -> None:
    assert described(MntdpD()) == "MntdpD()"
    assert described(MntdpD(Prior("random"), refit=True)) == "MntdpD(prior=Prior(kind='random'), refit=True)"
    assert described(MntdpD(Prior("random", k=2))) != described(MntdpD(Prior("random")))
    assert described("an own learner") == "'an own learner'"


@pytest.mark.parametrize("own", [Nothing, "mntdp-d", 3])
def test_what_is_no_learner_is_refused(own: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no learner; give an object that has a method learn\(lesson\)"):
        run(settings("mine"), tmp_path, own_learner=own)
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class Wrong:
    """A learner with a mistake in what it does for the second task."""

    mistake: str

    def learn(self, lesson: Lesson) -> Learned:
        fresh = (Fresh(),) * len(lesson.backbone.blocks)
        if not lesson.library.tasks:
            return lesson.keep_best([fresh])
        wrong: dict[str, Any] = {
            "none": [],
            "short": [fresh, fresh[1:]],
            "long": [(*fresh, Fresh())],
            "unknown": [(Reuse("t9.stem"), *fresh[1:])],
            "copied": [(Copy("t9.stem"), *fresh[1:])],
            "list": [list(fresh)],
            "name": [("t1.stem", *fresh[1:])],
            "bare": fresh,
        }
        if self.mistake in wrong:
            return lesson.keep_best(wrong[self.mistake])
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("forgotten", r"Wrong\.learn gave back None; let it return what lesson\.keep_best returns"),
        ("none", "has no candidate for t2; let it give one or more"),
        ("short", "for t2 has 4 slots, but tiny has 5 blocks; let the learner give one slot for each"),
        ("long", "for t2 has 6 slots, but tiny has 5 blocks"),
        ("unknown", r"names the module 't9\.stem', which there is not; .* from lesson\.paths"),
        ("copied", r"names the module 't9\.stem', which there is not"),
        ("list", r"^\[Fresh.* is no candidate; let the learner give tuples of Fresh"),
        ("name", r"^\('t1\.stem'.* is no candidate"),
        ("bare", r"^Fresh\(\) is no candidate"),
    ],
)
def test_a_mistake_in_an_own_learner_is_told(mistake: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run(settings("mine"), tmp_path, own_learner=Wrong(mistake))


def test_a_learner_that_does_not_tell_its_values_is_refused(tmp_path: Path) -> None:
    class Mine:
        def learn(self, lesson: Lesson) -> Learned:
            raise AssertionError

    with pytest.raises(InputError, match="make it a dataclass"):
        run(settings("mine"), tmp_path, own_learner=Mine())
    assert not list(tmp_path.iterdir())
