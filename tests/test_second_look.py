"""The second look: what few validation images cannot tell apart is looked at again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from espalier.learners.lesson import Lesson
from espalier.learners.second_look import second_look, standard_error
from espalier.nets import backbone
from espalier.streams.task import Split
from espalier.training import Trained
from tests.nets_help import candidate, lesson, modules

TINY = backbone("tiny", (3, 8, 8), 3)
OLD = modules(TINY, "a")


@pytest.fixture
def given(tmp_path: Path) -> Lesson:
    return lesson(tmp_path, TINY, {"t1": [f"a.{block.name}" for block in TINY.blocks]}, OLD)


def trained(given: Lesson, codes: list[str], epochs: int) -> list[Trained]:
    longer = replace(given, protocol=replace(given.protocol, max_epochs=epochs))
    return longer.train([candidate(code, TINY) for code in codes], given.protocol.grid[:1]).results


def test_a_lucky_candidate_loses_against_one_that_is_right_from_every_side(given: Lesson) -> None:
    """The untrained one is said to be the best, by less than a standard error of 15 images."""
    (good,), (lucky,) = trained(given, ["aaa.."], 40), trained(given, ["....."], 0)
    assert good.val_accuracy > 0.8
    good, lucky = replace(good, val_accuracy=0.93), replace(lucky, val_accuracy=1.0)
    look = second_look(given, [lucky, good], 1.0)
    assert look.chosen is good
    assert look.flops > 0


def test_without_tolerance_the_best_is_the_best(given: Lesson) -> None:
    (good,), (lucky,) = trained(given, ["aaa.."], 40), trained(given, ["....."], 0)
    good, lucky = replace(good, val_accuracy=0.93), replace(lucky, val_accuracy=1.0)
    look = second_look(given, [lucky, good], 0.0)
    assert look.chosen is lucky
    assert look.flops == 0


def test_what_is_clearly_worse_gets_no_second_look(given: Lesson) -> None:
    (good,), (lucky,) = trained(given, ["aaa.."], 40), trained(given, ["....."], 0)
    good, lucky = replace(good, val_accuracy=0.8), replace(lucky, val_accuracy=1.0)
    assert second_look(given, [lucky, good], 1.0).chosen is lucky


def test_whole_re_use_is_kept_if_it_is_as_good(given: Lesson) -> None:
    whole, new = trained(given, ["aaaaa", "aaa.."], 1)
    tied = [replace(new, val_accuracy=1.0), replace(whole, val_accuracy=0.93)]
    assert second_look(given, tied, 1.0).chosen is tied[1]
    worse = [tied[0], replace(whole, val_accuracy=0.8)]
    assert second_look(given, worse, 1.0).chosen is worse[0]


def test_the_same_images_are_looked_at_again(given: Lesson) -> None:
    results = [replace(result, val_accuracy=1.0) for result in trained(given, ["aaaa.", "aaa..", "aa..."], 3)]
    seen: list[dict[str, Any]] = []
    watched = replace(given, record=lambda event, what: seen.append(dict(what)))
    assert second_look(watched, results, 1.0).chosen is second_look(watched, results, 1.0).chosen
    assert seen[0] == seen[1]
    assert [each["slots"] for each in seen[0]["tied"]] == ["rrrrf", "rrrff", "rrfff"]


def test_copies_of_validation_images_are_not_looked_at(given: Lesson) -> None:
    """They are views themselves: with four copies of each, three images are all there is to look at."""
    results = [replace(result, val_accuracy=1.0) for result in trained(given, ["aaaa.", "aaa.."], 3)]
    task = given.task
    copied = replace(given, task=replace(task, spec=replace(task.spec, val_copies=4)))
    three = Split(task.val.x[:3], task.val.y[:3])
    few, only = (
        second_look(copied, results, 1.0),
        second_look(replace(given, task=replace(task, val=three)), results, 1.0),
    )
    assert few.flops == only.flops == second_look(given, results, 1.0).flops / 5
    assert few.chosen is only.chosen


def test_the_standard_error_of_an_accuracy() -> None:
    assert standard_error(0.5, 10**6) == pytest.approx(0.5e-3, rel=1e-3)
    assert 1 / 30 < standard_error(1.0, 30) < 2 / 30
    assert standard_error(0.0, 30) == pytest.approx(standard_error(1.0, 30))
