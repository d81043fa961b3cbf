"""Trained candidates once more: asked as one network they say what each says alone."""

from collections.abc import Sequence

import pytest

from espalier.training import Copy, Job, Reuse, Trained, train
from espalier.training.again import as_trained, ask
from espalier.training.cost import forward_flops
from tests.nets_help import RATES, candidate, close, job, quiet

pytestmark = pytest.mark.usefixtures("in_float64")
CODES = ("aaa..", "aaa.B", ".aaaa", ".aaa.", "AAAA.", ".....", "bb...")


@pytest.fixture
def asked() -> Job:
    return job(max_epochs=4)


@pytest.fixture
def results(asked: Job) -> list[Trained]:
    return trained(asked, CODES)


def trained(asked: Job, codes: Sequence[str]) -> list[Trained]:
    return train(asked, [candidate(code, asked.backbone) for code in codes], RATES, quiet).results


def alone(asked: Job, result: Trained) -> float:
    slots = zip(result.member.candidate, result.states, strict=True)
    states = [asked.modules[slot.module] if isinstance(slot, Reuse) else state for slot, state in slots]
    logits = asked.backbone.forward([state for state in states if state], asked.task.normalise(asked.task.val.x))
    return (logits.argmax(1) == asked.task.val.y).double().mean().item()


@pytest.mark.parametrize("room", [1, 2**30])
def test_all_together_say_what_each_says_alone(
    asked: Job, results: list[Trained], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("espalier.training.stacks.IN_CACHE", room)  # so few images at a time, and all at once
    monkeypatch.setattr("espalier.training.again.FEWEST", 4)
    val = asked.task.val
    found = ask(asked, results, val.x, val.y).accuracies
    assert found == pytest.approx([alone(asked, result) for result in results])
    assert found == pytest.approx([result.val_accuracy for result in results])
    assert len(set(found)) > 1


@pytest.mark.parametrize(
    ("name", "size", "codes"),
    [("alexnet-x0.1", 19, ["aaaaa.", "aa....", ".aaa.."]), ("fc-x0.05", 8, ["aa.", "...", ".aa"])],
)
def test_so_do_other_networks(name: str, size: int, codes: list[str]) -> None:
    asked = job(name, size, max_epochs=2)
    results, val = trained(asked, codes), asked.task.val
    assert ask(asked, results, val.x, val.y).accuracies == pytest.approx([alone(asked, r) for r in results])


def test_what_they_share_is_computed_once(asked: Job, results: list[Trained]) -> None:
    val, whole = asked.task.val, forward_flops(asked.backbone)
    two = [result for result in results if result.member.candidate == candidate("aaa..", asked.backbone)]
    assert ask(asked, two[:1], val.x, val.y).flops == len(val) * whole
    macs = asked.backbone.macs()
    assert ask(asked, two, val.x, val.y).flops == len(val) * (whole + 2 * sum(macs[3:]))


def test_they_begin_with_what_they_have_learned(asked: Job, results: list[Trained]) -> None:
    there, members = as_trained(asked, results)
    for member, result in zip(members, results, strict=True):
        assert member.setting == result.member.setting
        for slot, before, state in zip(member.candidate, result.member.candidate, result.states, strict=True):
            if state is None:
                assert slot == before
            else:
                assert isinstance(slot, Copy)
                close(there.modules[slot.module], state)
