"""Members leave a stack, or do not fit into one: the others, and the results, stay what they are."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from espalier.device import release
from espalier.nets import backbone
from espalier.training import Job, Member, Outcome, Setting, fit, train
from espalier.training.cost import own_macs
from espalier.training.job import FAST, SLOW, Speed
from espalier.training.model import TrieModel
from espalier.training.stacks import largest_layer, together
from espalier.training.train import Progress, _Run
from tests.nets_help import RATES, candidate, candidates, job, quiet, same_results, task

pytestmark = pytest.mark.usefixtures("in_float64")
TINY = backbone("tiny", (3, 8, 8), 3)


def test_a_layer_counts_from_the_first_trained_block_on() -> None:
    sizes = {code: largest_layer(TINY, candidate(code, TINY)) for code in (".....", "aaa..", "aaaa.", ".aaaa", "aAaa.")}
    assert sizes == {".....": 8 * 64, "aaa..": 32, "aaaa.": 3, ".aaaa": 8 * 64, "aAaa.": 16 * 16}
    alexnet = backbone("alexnet", (3, 32, 32), 10)  # 29×29 before the pooling is not told by the piece
    assert largest_layer(alexnet, candidate("......", alexnet)) == 64 * 14 * 14


@pytest.mark.parametrize(("room", "wanted"), [(0, [1] * 6), (10240, [4, 1, 1]), (11640, [5, 1]), (21880, [6])])
def test_stacks_have_as_many_members_as_there_is_room_for(
    room: int, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two need 20 × 3, two 20 × 32, two 20 × 512."""
    members = [Member(candidate(code, TINY), rate) for code in ("aaaa.", "aaa..", ".....") for rate in RATES]
    monkeypatch.setattr("espalier.training.stacks.IN_CACHE", room)
    found = together(job(), members, 20)
    assert [len(stack) for stack in found] == wanted
    assert [member for stack in found for member in stack] == members


def test_a_processor_trains_large_members_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    made, chosen = job(max_epochs=2, early=()), candidates(["aaa..", "....."], TINY)
    whole = train(made, chosen, RATES, quiet)
    monkeypatch.setattr("espalier.training.stacks.IN_CACHE", 8 * (32 + 32 + 512))
    parts = train(made, chosen, RATES, lambda *told: seen.append(told[:3]))
    for mine, other in zip(whole.results, parts.results, strict=True):
        same_results(mine, other)
    # Two stacks, one of three members, of six steps each, evaluated at 0, 3 and 6.
    assert [(step, most) for step, most, _ in seen] == [(at, 12) for at in (0, 3, 6, 6, 9, 12)]
    assert [left for _, _, left in seen] == [4, 4, 4, 1, 1, 1]


def test_who_has_stopped_idles_by_what_it_costs() -> None:
    made = job()
    model = TrieModel(made, [Member(candidate(code, TINY), rate) for code in ("aaaa.", ".....") for rate in RATES])
    head, whole = (own_macs(TINY, Member(candidate(code, TINY), RATES[0])) for code in ("aaaa.", "....."))
    run = _Run(made, model, quiet)
    run.remember_early()
    run.stopped = {0: (0, 0)}
    assert run._idle() == head / (2 * head + 2 * whole) < 0.001
    run._leave([0, 1])
    run.stopped = {0: (0, 0)}  # it was number 2
    assert run._idle() == 0.5


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_where_not_all_fit_into_memory_parts_are_trained_one_after_another(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def fitting(job: Job, model: TrieModel, progress: Progress) -> Outcome:
        sizes.append(len(model.members))
        if len(model.members) > room:
            try:
                raise torch.OutOfMemoryError("too many")
            finally:
                raise RuntimeError("the capture failed")
        return fit(job, model, progress)

    made, chosen = job(), candidates(["aaaa.", "aa...", "aaaaa", "....."], TINY)  # the third trains nothing
    whole = train(made, chosen, RATES, quiet)
    monkeypatch.setattr(import_module(_Run.__module__), "fit", fitting)
    parts = train(made, chosen, RATES, quiet)
    for mine, other in zip(whole.results, parts.results, strict=True):
        same_results(mine, other)
    assert sum(size for size in sizes if size <= room) == 6
    assert parts.flops > whole.flops, "what was shared is not, between parts"


def test_one_member_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitting(*given: object) -> Outcome:
        raise torch.OutOfMemoryError("too many")

    monkeypatch.setattr(import_module(_Run.__module__), "fit", fitting)
    with pytest.raises(torch.OutOfMemoryError):
        train(job(), candidates(["....."], TINY), RATES, quiet)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("speed", [FAST, SLOW])
def test_a_gpu_that_is_too_small_for_all_trains_parts(speed: Speed, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    made = job("resnet", size=32, max_epochs=3, batch=64)
    modules = {name: {key: t.cuda() for key, t in state.items()} for name, state in made.modules.items()}
    there = replace(made, task=task(size=32, train=150).to("cuda"), modules=modules, speed=speed)
    chosen = [candidate(code, made.backbone) for code in ("aaaaaa.", "aaa....", "a......", ".......")]
    rates = [Setting(1e-3 * n, 0.0) for n in range(1, 9)]
    sizes: list[int] = []

    def fitting(job: Job, model: TrieModel, progress: Progress) -> Outcome:
        sizes.append(len(model.members))
        return fit(job, model, progress)

    monkeypatch.setattr(import_module(_Run.__module__), "fit", fitting)
    release(there.device)
    torch.cuda.reset_peak_memory_stats()
    whole = train(there, chosen, rates, quiet)
    assert sizes == [32]
    share = 0.8 * torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    release(there.device)
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        parts = train(there, chosen, rates, quiet)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(sizes) > 2, "there was room for all"
    assert [result.member for result in parts.results] == [result.member for result in whole.results]
    assert all(tensor.isfinite().all() for result in parts.results for s in result.states if s for tensor in s.values())
