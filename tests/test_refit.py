"""The refit: what was chosen is trained again, on all images of the task."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from espalier.learners.lesson import Learned, Lesson
from espalier.learners.refit import refit, with_val
from espalier.nets import State, backbone
from espalier.training import Member, Outcome, train_for
from espalier.training.again import Answers, ask
from espalier.training.model import TrieModel
from tests.nets_help import candidate, job, lesson, modules, quiet, same_states, task

TINY = backbone("tiny", (3, 8, 8), 3)
OLD = modules(TINY, "a")


@pytest.fixture
def given(tmp_path: Path) -> Lesson:
    made = lesson(tmp_path, TINY, {"t1": [f"a.{block.name}" for block in TINY.blocks]}, OLD)
    return replace(made, protocol=replace(made.protocol, max_epochs=20))


def learned(given: Lesson, code: str) -> tuple[Outcome, Learned]:
    outcome = given.train([candidate(code, TINY)])
    return outcome, given.keep(outcome)


def test_the_chosen_candidate_goes_on_and_sees_the_validation_images(
    given: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the validation images as well as before, which is enough. (Whether it really does depends on rounding,
    and so on the processor.)"""
    outcome, before = learned(given, "aaa..")
    assert before.chosen.best_step > 0
    monkeypatch.setattr("espalier.learners.refit.ask", lambda *given: Answers([before.chosen.val_accuracy], 0))
    seen: list[tuple[str, dict[str, object]]] = []
    after = refit(replace(given, record=lambda event, what: seen.append((event, dict(what)))), outcome, before)
    epochs = -(-before.chosen.best_step // 3)  # 20 train images are 3 batches
    assert seen == [("refit", {"images": 35, "steps": 5 * epochs, "kept": True})]
    best = {f"b.{block.name}": state for block, state in zip(TINY.blocks, before.chosen.states, strict=True) if state}
    there = replace(given.job({**OLD, **best}), task=with_val(given.task))
    direct = train_for(there, Member(candidate("aaaBB", TINY), before.chosen.member.setting), epochs, quiet).results[0]
    same_states(after.chosen.states, direct.states)
    assert after.chosen.val_accuracy == before.chosen.val_accuracy
    assert after.change.tasks["new"].path == before.change.tasks["new"].path
    assert after.flops > before.flops
    assert after.paper_flops > before.paper_flops


def test_what_got_worse_on_the_validation_images_is_not_kept(given: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, before = learned(given, "aaa..")
    monkeypatch.setattr("espalier.learners.refit.ask", lambda *given: Answers([before.chosen.val_accuracy - 0.01], 0))
    after = refit(given, outcome, before)
    assert after.chosen is before.chosen
    assert after.flops > before.flops, "it was trained all the same"


def test_what_it_knew_before_is_measured_as_in_training(given: Lesson) -> None:
    _, before = learned(given, "aaa..")
    val = given.task.val
    assert ask(given.job(OLD), [before.chosen], val.x, val.y).accuracies == [before.chosen.val_accuracy]


def test_what_trained_nothing_stays(given: Lesson) -> None:
    outcome, before = learned(given, "aaaaa")
    assert refit(given, outcome, before) is before


def test_augmented_copies_of_validation_images_are_left_out() -> None:
    plain = task(val=15)
    copied = replace(plain, spec=replace(plain.spec, val_copies=4))
    assert len(with_val(plain).train) == 35
    joined = with_val(copied).train
    assert len(joined) == 23
    assert torch.equal(joined.x[20:], plain.val.x[:3])
    assert torch.equal(joined.y[20:], plain.val.y[:3])


def test_training_for_some_epochs_keeps_the_last_state_whatever_the_validation_images_say() -> None:
    """They are replaced by others: nothing changes. And the state is not that of one epoch less."""
    made = job()
    member = Member(candidate("aaa..", made.backbone), made.protocol.grid[0])
    other = replace(made, task=replace(made.task, val=task(seed=5).val))
    one, two = (train_for(each, member, 3, quiet).results[0] for each in (made, other))
    same_states(one.states, two.states)
    shorter = train_for(made, member, 2, quiet).results[0]
    assert _differ(one.states[-1], shorter.states[-1])
    assert (one.steps, one.best_step, one.samples) == (9, 9, 60)


def test_the_rate_is_whole_in_the_first_half_and_falls_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, rates = job(), []
    step = TrieModel.step

    def watched(model: TrieModel, chosen: torch.Tensor, number: int) -> int:
        adam = model.optimiser
        rates.append({rate for part in adam.parts(adam.lr * adam.factor) for rate in part.flatten().tolist()})
        return step(model, chosen, number)

    monkeypatch.setattr(TrieModel, "step", watched)
    train_for(made, Member(candidate("aaa..", made.backbone), made.protocol.grid[0]), 4, quiet)
    full = made.protocol.grid[0].lr
    assert all(len(each) == 1 for each in rates), "the same in all blocks"
    wanted = [full] * 7 + [full * (1 - i / 6) for i in range(1, 6)]
    assert [each.pop() for each in rates] == pytest.approx(wanted)


def _differ(left: State | None, right: State | None) -> bool:
    assert left is not None
    assert right is not None
    return any(not torch.equal(left[name], right[name]) for name in left)
