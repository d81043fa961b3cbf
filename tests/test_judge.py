"""Who is better than ever, without asking everybody everything; and models asked about some of their members."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from espalier.nets.columns import Columns
from espalier.training import Job, Member, train
from espalier.training.columns import ColumnModel, fresh_column
from espalier.training.graphs import Graphs, Inputs, Work
from espalier.training.judge import Judge
from espalier.training.model import Model, TrieModel
from espalier.training.paths import Paths
from espalier.training.supernet import Supernet
from tests.nets_help import RATES, candidate, job, quiet, random, same_results, task

pytestmark = pytest.mark.usefixtures("in_float64")
CODES = ["aaaa.", "aaa..", ".....", ".aaaa", "aAaB."]
SUPERNET = [replace(rate, path_lr=1e-2) for rate in RATES]


def model_of(made: Job) -> TrieModel:
    return TrieModel(made, [Member(candidate(code, made.backbone), rate) for code in CODES for rate in RATES])


def wider(images: int = 100, **changes: Any) -> Job:
    return replace(job(**changes), task=task(val=images))


@torch.no_grad()
def shares(model: Model, made: Job) -> torch.Tensor:
    """The accuracy of every member, by all that it says."""
    said = model.logits(made.task.normalise(made.task.val.x)).argmax(2)
    return (said == made.task.val.y[:, None]).double().mean(0)


@pytest.mark.parametrize(("batch", "images"), [(1, 100), (7, 100), (7, 43), (64, 100), (100, 100), (1000, 100)])
def test_all_are_told_apart_who_are_better_than_before(batch: int, images: int) -> None:
    made = wider(images, eval_batch=batch)
    model, draw = model_of(made), random(0)
    judge = Judge(made, model)
    better = 0
    for number in range(8):
        wanted = shares(model, made)
        shift = torch.randint(-1, 2, wanted.shape, generator=draw) * 2 / images
        best = (wanted + shift).clamp(0, 1)  # better, as good, and worse by two images
        asked = [n for n in range(len(wanted)) if n != number]
        found = judge.better_than(best, asked)
        expected = torch.where(wanted > best, wanted, -1.0)
        expected[number] = -1.0
        assert found.tolist() == expected.tolist()
        better += int((found >= 0).sum())
        model.step(torch.arange(8), number)
    assert 0 < better < 8 * len(model.members)


class Uncaptured(Graphs):
    """Runs the work as it is, and remembers which."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def run(self, name: str, work: Work, inputs: Inputs) -> None:
        self.seen.append((name, len(inputs["chosen"])))
        work(**inputs)


def test_what_is_asked_of_all_can_be_captured() -> None:
    """All parts have one size, the last one too; members that leave change what there is to be captured."""
    made = wider(25, eval_batch=8)
    model = model_of(made)
    judge, graphs = Judge(made, model), Uncaptured()
    model.graphs = graphs
    for count in (10, 3):
        model.keep(list(range(count)))
        found = judge.better_than(torch.full((count,), -1.0), range(count))
        assert torch.equal(found, shares(model, made))
    assert graphs.seen == [("part", 4)] * 7 * 2


def test_who_was_never_seen_is_asked_everything() -> None:
    made = wider(eval_batch=7)
    model = model_of(made)
    found = Judge(made, model).better_than(torch.full((len(model.members),), -1.0), range(len(model.members)))
    assert torch.equal(found, shares(model, made))


def test_asking_stops_when_nobody_can_be_better() -> None:
    """Of 100 images that were as hard as each other, no more parts are asked than are needed; then the hard ones go
    first."""
    made = wider(eval_batch=20)
    model = model_of(made)
    judge, everybody = Judge(made, model), range(len(model.members))
    judge.better_than(torch.full((len(everybody),), -1.0), everybody)
    whole = judge.flops
    judge.better_than(torch.ones(len(everybody)), everybody)
    assert 0 < judge.flops - whole <= whole / 10  # the trunk is known: it was counted the first time
    best = shares(model, made)  # nobody is better than now; whoever misses as many has missed all of them early
    before = judge.flops
    judge.better_than(best, everybody)
    assert judge.flops - before < 0.9 * whole


def test_members_are_taken_out_by_the_work_they_are() -> None:
    """The three largest of ten are half of the work: once they cannot be better the others are asked alone."""
    made = wider(eval_batch=20)
    model = model_of(made)
    judge, everybody = Judge(made, model), range(len(model.members))
    judge.better_than(torch.full((len(everybody),), -1.0), everybody)  # the trunk is counted here
    largest = sorted(everybody, key=lambda n: judge.work[model.members[n]])[-3:]
    others = [number for number in everybody if number not in largest]
    before = judge.flops
    judge.better_than(torch.tensor([1.0 if n in largest else -1.0 for n in everybody]), everybody)
    first, rest = (it.flops()[1] - it.frozen_flops() for it in (model, model.only(others)))
    assert judge.flops - before == 10 * first + 90 * rest


def test_images_stay_numbers_where_nobody_can_be_better() -> None:
    made = wider(eval_batch=20)
    judge = Judge(made, model_of(made))
    found = judge.better_than(torch.ones(10), range(10))
    assert found.tolist() == [-1.0] * 10
    assert judge.difficulty.isfinite().all()


def test_on_a_gpu_members_are_taken_out_only_where_it_saves_as_much_as_it_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = wider(eval_batch=20)
    judge = Judge(made, model_of(made))
    assert judge._narrows(6, 10, 1)
    assert not judge._narrows(7, 10, 1), "they are more than NARROW"
    monkeypatch.setattr(Job, "device", torch.device("cuda"))
    monkeypatch.setattr("espalier.training.judge.NARROW_SAVES", 2 * 100 * (10 - 6))
    assert judge._narrows(6, 10, 100)
    assert not judge._narrows(6, 10, 99)


def test_images_are_as_hard_as_those_who_missed_them_are_work() -> None:
    """Four of ten members, with more than half of the work, miss the last images, the other six the first ones."""
    made = wider(eval_batch=20)
    model = model_of(made)
    judge, everybody = Judge(made, model), range(len(model.members))
    by_work = sorted(everybody, key=lambda n: judge.work[model.members[n]])
    large = torch.tensor([n in by_work[-4:] for n in everybody])
    seen: list[list[int]] = []

    def missed(chosen: torch.Tensor, part: int) -> torch.Tensor:
        seen.append(sorted(chosen.tolist()))
        return ((chosen >= 90)[:, None] & large) | ((chosen < 10)[:, None] & ~large)

    judge._missed_by_all = missed  # type: ignore[method-assign]
    judge.better_than(torch.full((len(everybody),), -1.0), everybody)
    assert len(seen) == 10
    judge.better_than(torch.ones(len(everybody)), everybody)
    assert seen[10] == list(range(90, 100))


def test_training_is_the_same_whether_all_are_asked_or_not() -> None:
    made = wider(images=40, max_epochs=3, patience=6)
    chosen = [candidate(code, made.backbone) for code in CODES]
    whole, parts = (
        train(replace(made, protocol=replace(made.protocol, eval_batch=size)), chosen, RATES, quiet) for size in (40, 8)
    )
    for mine, other in zip(whole.results, parts.results, strict=True):
        same_results(mine, other)
    assert parts.flops < whole.flops


def columns(made: Job) -> ColumnModel:
    return ColumnModel(made, Columns(made.backbone, {"t1": fresh_column(made, [])}), RATES)


def supernet(made: Job) -> Supernet:
    path = tuple(f"a.{block.name}" for block in made.backbone.blocks)
    return Supernet(made, Paths([path], [path]), SUPERNET, 1.0, "probability")


@pytest.mark.parametrize("kind", ["columns", "supernet"])
def test_other_models_are_asked_in_parts_too(kind: str) -> None:
    made = wider(50, eval_batch=8)
    model = columns(made) if kind == "columns" else supernet(made)
    for step in range(3):
        model.step(model.batches(random(step))[0], step)
    wanted, judge = shares(model, made), Judge(made, model)
    for best in (torch.full((2,), -1.0), wanted, wanted - torch.tensor([0.02, 0])):
        found = judge.better_than(best, range(2))
        assert torch.equal(found, torch.where(wanted > best, wanted, -1.0))
    assert judge.flops > 0


def test_on_a_gpu_parts_are_as_large_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest layers have 512 values where the first block is trained, 2,630 for all ten members."""
    made = wider(100, eval_batch=10)
    monkeypatch.setattr("espalier.training.stacks.ON_GPU", 40 * 512)
    models: dict[str, tuple[Model, int]] = {
        "all": (model_of(made), 7),  # 5 are half a batch, and the least
        "one": (model_of(made).only([5]), 34),  # 40, in three equal parts
        "head": (model_of(made).only([0, 1]), 100),
        "columns": (columns(made).only([0]), 34),
        "supernet": (supernet(made).only([1]), 34),
    }
    monkeypatch.setattr(Job, "device", torch.device("cuda"))
    for name, (model, wanted) in models.items():
        judge = object.__new__(Judge)
        judge.job, judge.model, judge.__dict__["_val"] = made, model, (None, range(100), {})
        assert judge._part(model) == wanted, name


@pytest.mark.parametrize("numbers", [[1], [0, 3, 4], [5, 2], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]])
def test_some_members_say_what_they_say_among_all(numbers: list[int]) -> None:
    made = job()
    model = model_of(made)
    x = made.task.normalise(made.task.val.x)
    for step in range(2):
        with torch.no_grad():
            among_all, alone = model.logits(x), model.only(numbers).logits(x)
            known = model.frozen(x)
            assert torch.equal(model.only(numbers).logits(x, known), alone)
        torch.testing.assert_close(alone, among_all[:, numbers])
        model.step(torch.arange(8), step)
    assert model.only([0]).flops()[1] < model.flops()[1]
    assert len(model.members) == 10, "the model itself stays as it was"


@pytest.mark.parametrize("numbers", [[1], [1, 0], [0]])
def test_so_do_those_of_columns_and_of_a_supernet(numbers: list[int]) -> None:
    made = job()
    x = made.task.normalise(made.task.val.x)
    for model in (columns(made), supernet(made)):
        for step in range(4):
            model.step(model.batches(random(step))[0], step)
        some = model.only(numbers)
        with torch.no_grad():
            among_all, alone = model.logits(x), some.logits(x)
        assert (among_all[:, 0] - among_all[:, 1]).abs().max() > 1e-3, "or nobody could tell them apart"
        torch.testing.assert_close(alone, among_all[:, numbers])
        assert [member.setting for member in some.members] == [model.members[n].setting for n in numbers]
        assert (some.flops()[1] < model.flops()[1]) == (len(numbers) == 1)
        assert len(model.members) == 2, "the model itself stays as it was"
