"""The trainer: the same results as one member after another, whoever else is trained beside it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from espalier.errors import InputError
from espalier.nets import State, backbone
from espalier.training import (
    Job,
    Member,
    Reuse,
    Setting,
    Trained,
    best,
    describe,
    judge,
    protocol,
    train,
)
from espalier.training.job import Speed
from espalier.training.plain import train_one_by_one
from espalier.training.train import _Run
from espalier.training.trie import Trie
from tests.nets_help import RATES, candidate, candidates, job, quiet, same_results, same_states

pytestmark = pytest.mark.usefixtures("in_float64")
TINY = backbone("tiny", (3, 8, 8), 3)
PATTERNS = [
    "aaaaa",  # trains nothing
    "aaaa.",
    "bbbb.",
    "aaa..",
    ".....",
    ".aaaa",
    "..bbb",
    ".a.a.",
    "a.a.a",
    "aAaB.",
    "A.bBa",
    "AAAAA",
    "abab.",
    "Bbbbb",
    "aab.A",
]
STILL = Setting(0.0, 0.0)  # the weights stay as they are


def trained(job: Job, codes: list[str], grid: tuple[Setting, ...] = RATES) -> list[Trained]:
    return train(job, candidates(codes, TINY), grid, quiet).results


# The reference


@pytest.mark.parametrize("patience", [1, 3, 6, 100])
def test_the_trie_gives_what_the_plain_trainer_gives(patience: int) -> None:
    made = job(patience=patience, max_epochs=4)
    together = trained(made, PATTERNS)
    one_by_one = train_one_by_one(made, candidates(PATTERNS, TINY), RATES)
    assert len(together) == len(one_by_one) == 2 * len(PATTERNS) - 1
    for mine, wanted in zip(together, one_by_one, strict=True):
        same_results(mine, wanted)
    assert len({r.val_accuracy for r in together}) >= 3
    assert len({r.steps for r in together}) >= (2 if patience == 100 else 3)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.text("abAB.", min_size=5, max_size=5), min_size=1, max_size=4, unique=True))
def test_any_slots_in_any_order_give_what_the_plain_trainer_gives(codes: list[str]) -> None:
    made = job(max_epochs=2, patience=4)
    for mine, wanted in zip(trained(made, codes), train_one_by_one(made, candidates(codes, TINY), RATES), strict=True):
        same_results(mine, wanted)


@pytest.mark.parametrize(
    ("name", "size", "codes"),
    [
        ("resnet", 8, ["a......", "aa.....", "a.aaaa.", "aA.bbb."]),  # units whose shared input is added as it is
        ("alexnet", 19, ["aaa...", "a.aaa.", "..aaa."]),
        ("fc", 8, ["a..", ".a.", "A.a"]),
    ],
)
def test_stacks_of_the_papers_backbones_give_what_the_plain_trainer_gives(
    name: str, size: int, codes: list[str]
) -> None:
    made = job(name, size=size, max_epochs=1, batch=10)
    chosen = [candidate(code, made.backbone) for code in codes]
    for mine, wanted in zip(
        train(made, chosen, RATES, quiet).results, train_one_by_one(made, chosen, RATES), strict=True
    ):
        same_results(mine, wanted)


def test_dropout_masks_are_named_by_step_and_block() -> None:
    made = job("alexnet", size=19)

    def mask(step: int, depth: int) -> list[bool]:
        kept = made.modes(made.drawn(step, 3))(depth).kept
        assert kept is not None
        return kept.flatten()[:100].tolist()

    assert mask(2, 1) == mask(2, 1)
    assert len({tuple(mask(step, depth)) for step in range(3) for depth in range(5)}) == 15
    assert made.modes(made.drawn(0, 3))(5).kept is None, "a head drops nothing"
    shares = [float(kept.double().mean()) for kept in made.drawn(0, 200).values()]
    assert shares == pytest.approx([0.8, 0.8, 0.5, 0.5, 0.5], abs=0.02)


def test_a_task_is_trained_the_same_way_twice_and_another_place_is_another_training() -> None:
    made = job(max_epochs=1)
    first, again = trained(made, ["aa..."]), trained(made, ["aa..."])
    same_results(first[0], again[0])
    other = trained(replace(made, place=("made", 2)), ["aa..."])[0]
    assert other.states[2] is not None
    assert first[0].states[2] is not None
    assert not torch.equal(other.states[2]["0.conv1.weight"], first[0].states[2]["0.conv1.weight"])


# Independence


def test_what_a_member_learns_does_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    keep = Trie.keep

    def counted(trie: Trie, numbers: list[int]) -> None:
        packed.append(len(numbers))
        keep(trie, numbers)

    monkeypatch.setattr(Trie, "keep", counted)
    made = job(max_epochs=6, patience=6)
    codes = ["aa...", "aaaa.", ".aaaa", "A.bBa"]
    alone = {code: trained(made, [code], RATES[:1])[0] for code in codes}
    packed.clear()
    others = trained(made, codes, RATES[:1])
    assert packed[-1] == 0
    packed.clear()
    watched: list[int] = []
    grid = (RATES[0], STILL, Setting(1.0, 0.0))
    crowd = ["aaa..", "bbbb.", "....."]
    leaving = train(made, candidates(codes + crowd, TINY), grid, lambda *now: watched.append(now[2])).results
    for number, code in enumerate(codes):
        same_results(others[number], alone[code])
        same_results(leaving[3 * number], alone[code])

    assert len(leaving) == watched[0] == 21
    assert watched == sorted(watched, reverse=True)
    assert len(set(watched)) > 3
    assert len(packed) > 1  # packed more than once, while some stayed
    assert max(packed) > 0
    heads = [r for r in leaving if r.member.setting == STILL and describe(r.member.candidate) == "rrrrf"]
    assert [(r.best_step, r.steps) for r in heads] == [(0, 6), (0, 6)]


def test_a_frozen_module_keeps_every_bit() -> None:
    made = job()
    before = {name: {n: t.clone() for n, t in state.items()} for name, state in made.modules.items()}
    trained(made, PATTERNS)
    for name, state in made.modules.items():
        assert all(torch.equal(t, before[name][n]) for n, t in state.items())
        assert not any(t.requires_grad for t in state.values())


def test_results_share_no_memory_with_each_other_or_with_modules() -> None:
    made = job(max_epochs=1)
    results = trained(made, ["AAAAA", "....."])
    kept: list[State] = [s for r in results for states in (r.states, *r.early) for s in states if s is not None]
    tensors = [t for state in [*kept, *made.modules.values()] for t in state.values()]
    assert not any(t.requires_grad for t in tensors)
    assert all(
        t.untyped_storage().nbytes() == t.numel() * 8 for state in results[0].states if state for t in state.values()
    )
    assert len({t.data_ptr() for t in tensors}) == len(tensors)


# What is given back


def test_a_trained_path_has_the_validation_accuracy_that_is_told() -> None:
    made = job(max_epochs=4)
    for result in trained(made, PATTERNS):
        states = [
            made.modules[slot.module] if isinstance(slot, Reuse) else state
            for slot, state in zip(result.member.candidate, result.states, strict=True)
        ]
        assert [state is None for state in result.states] == [isinstance(s, Reuse) for s in result.member.candidate]
        logits = made.backbone.forward([s for s in states if s is not None], made.task.normalise(made.task.val.x))
        assert (logits.argmax(1) == made.task.val.y).double().mean().item() == result.val_accuracy


def test_training_learns() -> None:
    made = job(max_epochs=15, pad=0, flip=False)
    result = best(trained(made, ["....."]))
    assert result.val_accuracy > 0.6
    assert result.best_step > 0


def test_a_candidate_that_trains_nothing_is_evaluated_once() -> None:
    steps: list[int] = []
    made = job()
    (result,) = train(made, candidates(["aaaaa"], TINY), RATES, lambda *now: steps.append(now[0])).results
    assert steps == []
    assert result.member == Member(candidate("aaaaa", TINY), RATES[0])
    assert (result.best_step, result.steps, result.samples) == (0, 0, 0)
    assert result.states == (None,) * 5
    assert result.early == ((None,) * 5,) * 6
    same_results(result, train_one_by_one(made, candidates(["aaaaa"], TINY), RATES)[0])


def test_results_are_in_the_order_of_candidates_then_settings() -> None:
    codes = ["aaaa.", "bbbbb", "aaa.."]
    results = trained(job(max_epochs=1), codes)
    wanted = [(codes[0], RATES[0]), (codes[0], RATES[1]), (codes[1], RATES[0]), *((codes[2], s) for s in RATES)]
    assert [r.member for r in results] == [Member(candidate(code, TINY), setting) for code, setting in wanted]


def test_operations_are_those_of_the_steps_and_the_evaluations() -> None:
    made = job(max_epochs=1, eval_batch=15)  # 20 images: 3 steps; evaluated at 0, 1, 2, 3 on 15 images
    frozen = train(made, candidates(["aaaaa"], TINY), RATES, quiet).flops
    assert frozen == 15 * 2 * (13824 + 57344 + 19456 + 14336 + 96)
    head = train(made, candidates(["aaaa."], TINY), RATES[:1], quiet).flops
    trunk = 13824 + 57344 + 19456 + 14336  # on validation images once: it does not change
    assert head == 15 * 2 * (trunk + 4 * 96) + 20 * 2 * (trunk + 2 * 96)


def test_what_frozen_modules_make_of_validation_images_is_kept_as_far_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """15 images in float64, with 192 values each; the frozen blocks make of them 512, 256, 64 and 32."""
    made, codes = job(max_epochs=2, patience=100, eval_batch=15), ["aaaa.", "aaa..", "aa...", "a....", "....."]
    plain = train_one_by_one(made, candidates(codes, TINY), RATES)
    computed = []
    for values in (0, 64 + 32, 192 + 512 + 256 + 64 + 32):
        monkeypatch.setattr(judge, "FROZEN_BYTES", 15 * 8 * values)
        outcome = train(made, candidates(codes, TINY), RATES, quiet)
        for mine, wanted in zip(outcome.results, plain, strict=True):
            same_results(mine, wanted)
        computed.append(outcome.flops)
    nothing, small, everything = computed
    evaluations, tail = (nothing - everything) // (15 * 2 * (13824 + 57344 + 19456 + 14336)), 19456 + 14336
    assert nothing - everything == evaluations * 15 * 2 * (13824 + 57344 + 19456 + 14336)
    assert evaluations > 5
    assert nothing - small == evaluations * 15 * 2 * tail


# Early stopping


def scripted(monkeypatch: pytest.MonkeyPatch, script: dict[float, list[float]], made: Job) -> list[Trained]:
    """Members with these learning rates, whose validation accuracies after 0, 1, … steps are given."""

    def accuracy(run: _Run) -> Tensor:
        rows = [script[member.setting.lr] for member in run.model.members]
        return torch.tensor([row[min(run.step, len(row) - 1)] for row in rows])

    monkeypatch.setattr(_Run, "_accuracy", accuracy)
    return trained(made, ["aa..."], tuple(Setting(lr, 0.0) for lr in script))


def told(results: list[Trained]) -> list[tuple[float, int, int]]:
    return [(r.val_accuracy, r.best_step, r.steps) for r in results]


def test_patience_is_counted_in_iterations_from_the_first_best(monkeypatch: pytest.MonkeyPatch) -> None:
    script = {
        0.01: [0.5, 0.4, 0.4, 0.4, 0.9],  # nothing better than iteration 0: it counts
        0.02: [0.2, 0.3, 0.3, 0.3, 0.3],  # equal is not better
        0.03: [0.1, 0.2, 0.1, 0.3, 0.2],
    }
    results = scripted(monkeypatch, script, job(patience=3))
    assert told(results) == [(0.5, 0, 3), (0.3, 1, 4), (0.3, 3, 6)]
    for result in results:  # the best state is that of the first best iteration
        same_states(result.states, result.early[result.best_step])
    # After the stop the learning curve stays where it is.
    same_states(results[0].early[5], results[0].early[3])
    assert [r.samples for r in results] == [20, 28, 40]


def test_the_device_is_asked_only_when_somebody_can_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU stands still while it is asked."""
    asked: list[int] = []
    look = _Run._look

    def looking(run: _Run) -> None:
        asked.append(run.step)
        look(run)

    monkeypatch.setattr(_Run, "_look", looking)
    monkeypatch.setattr(import_module(_Run.__module__), "LOOK_AFTER", float("inf"))
    script = {0.01: [0.1, 0.1, 0.2], 0.02: [0.1, 0.2, 0.2, 0.3]}
    results = scripted(monkeypatch, script, job(patience=5, early=tuple(range(20)), max_epochs=5))
    assert told(results) == [(0.2, 2, 7), (0.3, 3, 8)]
    assert asked == [0, 5, 7, 8]


def test_a_member_that_stopped_learns_nothing_more_until_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    climbing = {0.01 * (1 + i): [0.1 + 0.01 * n for n in range(30)] for i in range(6)}
    stuck = {0.5: [0.5, 0.4, 0.4, 0.6, 0.9]}
    results = scripted(monkeypatch, climbing | stuck, job(patience=2))
    assert told(results)[-1] == (0.5, 0, 2)
    same_states(results[-1].states, results[-1].early[0])
    same_states(results[-1].early[5], results[-1].early[2])
    assert told(results)[0][1:] == (9, 9)


class AsItIs:
    """Stands for captured work: it runs every time."""

    def run(self, name: str, work: Callable[..., None], inputs: Mapping[str, Tensor]) -> None:
        work(**inputs)

    def forget(self) -> None:
        pass


@pytest.mark.parametrize(
    ("epochs", "wanted"),
    [
        (7, [(10, 1), (21, 3)]),  # one of four had stopped: eight steps are two steps' worth, and eleven are left
        (4, [(12, 4)]),  # at step 10 two are left
    ],
)
def test_captured_work_is_packed_when_as_much_was_lost_as_that_costs_and_as_much_may_be_yet(
    epochs: int, wanted: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[tuple[int, int]] = []
    leave = _Run._leave

    def leaving(run: _Run, numbers: list[int]) -> None:
        packed.append((run.step, len(numbers)))
        leave(run, numbers)

    monkeypatch.setattr(_Run, "_leave", leaving)
    monkeypatch.setattr(import_module("espalier.training.model"), "Graphs", AsItIs)
    monkeypatch.setattr(import_module(_Run.__module__), "PACK_CAPTURED_AFTER", 2.0)
    rising = {0.01 * (1 + i): [0.1 + 0.01 * n for n in range(30)] for i in range(3)}
    made = job(patience=2, early=tuple(range(30)), max_epochs=epochs)
    results = scripted(monkeypatch, rising | {0.5: [0.5, 0.4]}, replace(made, speed=Speed(graphs=True)))
    assert [steps for _, _, steps in told(results)] == [3 * epochs, 3 * epochs, 3 * epochs, 2]
    assert packed == wanted


def test_evaluation_is_at_the_early_iterations_and_after_every_epoch() -> None:
    seen: list[tuple[int, int]] = []
    made = job(early=(1, 4), max_epochs=3)
    train(made, candidates(["aaaa."], TINY), RATES, lambda *now: seen.append((now[0], now[1])))
    assert seen == [(step, 9) for step in (0, 1, 3, 4, 6, 9)]


def test_the_protocols_are_those_that_were_agreed_on() -> None:
    paper = [Setting(lr, decay) for lr in (1e-2, 1e-3) for decay in (0.0, 1e-5, 1e-4)]
    found = protocol("paper")
    assert list(found.settings("resnet")) == paper
    assert list(found.settings("fc")) == [Setting(lr, decay) for lr in (1e-4, 1e-3) for decay in (0.0, 1e-5)]
    assert (found.batch, found.max_epochs, found.patience, found.early) == (256, 300, 300, (1, 2, 3, 4, 5, 10))
    with pytest.raises(InputError, match="no protocol 'slow'; the protocols are paper, quick"):
        protocol("slow")
