"""HAT: its equations by hand, and that what earlier tasks use stays as it is, bit for bit."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from espalier import InputError
from espalier.evaluation import memory_mb
from espalier.learners import Learned, Lesson
from espalier.learners.hat import (
    LIMIT,
    Hat,
    capacity_used,
    free_shares,
    is_own,
    limit,
    new_capacity,
    random_embeddings,
    sharpness,
    used_units,
)
from espalier.library import Library
from espalier.nets import Backbone, Block, Mode, State, backbone, is_buffer, numbers
from espalier.nets.backbone import BACKBONES
from espalier.nets.gates import attention
from espalier.nets.pieces import ConvPool, Dense, GlobalPool, Residual, Stem
from espalier.runs import run
from espalier.streams.task import Split
from espalier.training import Setting
from tests.nets_help import SHORT, quiet, random, task
from tests.small_streams import install, settings

install()


# The gates


@pytest.mark.parametrize("s", [1 / 400, 0.3, 1.0, 17.0, 100.0, 400.0])
def test_the_gradient_is_compensated_as_in_section_2_5(s: float) -> None:
    """Autograd's gradient of σ(s·e) times the paper's factor, its s·e clamped; on the side where 1 - σ is exact."""
    most, e = 400.0, torch.linspace(-6, 0.02, 400, dtype=torch.float64)
    slopes = torch.randn(400, generator=random(0), dtype=torch.float64)

    def gradient(gates: Tensor, at: Tensor) -> Tensor:
        return torch.autograd.grad((slopes * gates).sum(), at)[0]

    plain, ours, mirrored = (t.clone().requires_grad_() for t in (e, e, -e))
    factor = most / s * (torch.cosh((s * e).clamp(-50, 50)) + 1) / (torch.cosh(e) + 1)
    expected = factor * gradient(torch.sigmoid(s * plain), plain)
    now = torch.tensor([s, most], dtype=torch.float64)
    found = gradient(attention(ours, now), ours)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-200)
    even = gradient(attention(mirrored, now), mirrored)
    torch.testing.assert_close(even, found, rtol=1e-12, atol=0)
    assert torch.equal(attention(ours, now), torch.sigmoid(s * e))


def test_a_learned_gate_is_open_or_shut() -> None:
    assert attention(torch.tensor([-0.01, 0.0, 0.01]), None).tolist() == [0, 0, 1]


def test_the_sharpness_rises_over_an_epoch() -> None:
    rise = [sharpness(step, 16, 400.0) for step in range(32)]
    assert rise[0] == 1 / 400
    assert rise[15] == 400
    assert rise[5] == pytest.approx(1 / 400 + (400 - 1 / 400) / 3)
    assert rise[16:] == rise[:16]


@pytest.mark.parametrize(("epoch", "steps"), [(1, 10), (2, 10), (3, 12), (9, 18), (10, 10)])
def test_the_sharpness_rises_over_several_short_epochs(epoch: int, steps: int) -> None:
    rise = [sharpness(step, epoch, 400.0) for step in range(steps + 1)]
    assert rise[:-1] == sorted(rise[:-1])
    assert (rise[0], rise[-2], rise[-1]) == (1 / 400, 400, 1 / 400)


def test_embeddings_begin_with_half_of_the_gates_open() -> None:
    for seed in range(50):
        drawn = random_embeddings(Block("b", (Residual(3, 3), Dense(3, 200))), random(seed))
        assert {name: len(e) for name, e in drawn.items()} == {
            "0.embedding1": 3,
            "0.embedding": 3,
            "1.embedding": 200,
        }
        assert all((e > 0).float().mean() >= 0.5 for e in drawn.values())
    assert drawn["1.embedding"].std() == pytest.approx(1, abs=0.2)


# The penalty and the limit


def test_the_penalty_of_three_units_by_hand() -> None:
    """Gates ½, ¾, ¼ at sharpness 1; an earlier task uses the second. (½ + ¼) / 2 and, all open, (1 + 1) / 2."""
    e = torch.tensor([[0.0, math.log(3), -math.log(3)], [60.0, 60.0, 60.0]], dtype=torch.float64)
    stacks = {"a": {"0.embedding": e[:, :1]}, "b": {"0.embedding1": e[:, 1:]}}
    left = {"a/0.embedding": torch.ones(1).double(), "b/0.embedding1": torch.tensor([0.0, 1.0]).double()}
    found = new_capacity(stacks, left, Mode(sharpness=torch.tensor([1.0, 400.0])))
    torch.testing.assert_close(found, torch.tensor([0.375, 1.0], dtype=torch.float64))
    nothing = {key: torch.zeros_like(mask) for key, mask in left.items()}
    assert new_capacity(stacks, nothing, Mode(sharpness=torch.tensor([1.0, 400.0]))).tolist() == [0, 0]


def test_embeddings_stay_within_the_limit_and_weights_do_not() -> None:
    stacks = {"a": {"0.embedding": torch.tensor([[-9.0, 5.0, 7.0]]), "0.linear.weight": torch.tensor([[9.0]])}}
    limit(stacks)
    assert stacks["a"]["0.embedding"].tolist() == [[-LIMIT, 5, LIMIT]]
    assert stacks["a"]["0.linear.weight"].item() == 9


# What is free


def trunk(net: Backbone) -> list[State]:
    return [block.init(random(0)) | random_embeddings(block, random(1)) for block in net.blocks[:-1]]


def test_free_weights_of_a_dense_net_by_hand() -> None:
    net = Backbone("made", (1, 1, 2), (Block("a", (Dense(2, 2),)), Block("b", (Dense(2, 3),)), Block("head", ())))
    left = {"a/0.embedding": torch.tensor([0.0, 1.0]), "b/0.embedding": torch.tensor([1.0, 0.0, 0.0])}
    free = free_shares(net, trunk(net), left)
    assert free["a"]["0.linear.weight"].tolist() == [[0, 0], [1, 1]]
    assert free["a"]["0.linear.bias"].tolist() == [0, 1]
    assert free["b"]["0.linear.weight"].tolist() == [[1, 1], [0, 1], [0, 1]]
    assert free["b"]["0.linear.bias"].tolist() == [1, 0, 0]
    used = capacity_used(net, trunk(net), {key: 1 - mask for key, mask in left.items()})
    assert used == pytest.approx((2 + 1 + 2 + 2) / 15)


def test_a_flattened_map_has_an_input_for_each_of_its_places() -> None:
    conv, dense = ConvPool(3, 2, 3, 0.0), Dense(2 * 4, 1)
    net = Backbone("made", (3, 6, 6), (Block("a", (conv,)), Block("b", (dense,)), Block("head", ())))
    free = free_shares(net, trunk(net), {"a/0.embedding": torch.tensor([0.0, 1.0]), "b/0.embedding": torch.zeros(1)})
    assert free["a"]["0.conv.weight"].flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert free["b"]["0.linear.weight"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


def test_free_weights_of_residual_units_by_hand() -> None:
    pieces = (Stem(3, 2), Residual(2, 2), Residual(2, 2, 2), GlobalPool())
    net = Backbone("made", (3, 8, 8), (Block("a", pieces), Block("b", (Dense(2, 1),)), Block("head", ())))
    left = {f"a/{key}": torch.tensor([0.0, 1.0]) for key in ("0.embedding", "1.embedding1", "2.embedding1")}
    left |= {"a/1.embedding": torch.tensor([1.0, 0.0]), "a/2.embedding": torch.tensor([0.0, 0.0])}
    free = {
        name: t.squeeze().tolist()
        for name, t in free_shares(net, trunk(net), left | {"b/0.embedding": torch.zeros(1)})["a"].items()
    }
    assert free["0.conv.weight"] == [[0, 0, 0], [1, 1, 1]]
    assert free["0.norm.weight"] == free["0.norm.bias"] == [0, 1]
    assert free["1.conv1.weight"] == [[0, 1], [1, 1]], "in [0, 1], inner [0, 1]"
    assert free["1.norm1.weight"] == free["1.norm1.bias"] == [0, 1]
    assert free["1.conv2.weight"] == [[1, 1], [0, 1]], "inner [0, 1], out [1, 0]"
    assert free["1.norm2.weight"] == [1, 0]
    assert free["2.conv1.weight"] == [[1, 0], [1, 1]], "in [1, 0], inner [0, 1]"
    assert free["2.conv2.weight"] == [[0, 1], [0, 1]]
    assert free["2.short.weight"] == [[1, 0], [1, 0]], "in [1, 0], out [0, 0]"
    assert free["2.short_norm.bias"] == [0, 0]


@pytest.mark.parametrize("name", BACKBONES)
def test_all_shared_tensors_of_every_backbone_have_their_free_shares(name: str) -> None:
    net = backbone(f"{name}-x0.1", (3, 32, 32), 5)
    states = trunk(net)
    free = free_shares(net, states, used_units(net, []))
    for block, state in zip(net.blocks, states, strict=False):
        assert set(free[block.name]) == {name for name in state if not is_own(name)}
        for key, share in free[block.name].items():
            assert share.expand_as(state[key]).shape == state[key].shape
    assert capacity_used(net, states, {key: 1 - m for key, m in used_units(net, []).items()}) == 1


# Memory


@cache
def trunk_numbers(name: str, image: tuple[int, int, int]) -> tuple[int, int]:
    """Values that all tasks share, and those of each task's own."""
    states = trunk(backbone(name, image, 2))
    shared = sum(numbers({key: t for key, t in state.items() if not is_own(key)}) for state in states)
    return shared, sum(map(numbers, states)) - shared


def paper_memory(name: str, image: tuple[int, int, int], classes: int, tasks: int) -> float:
    shared, own = trunk_numbers(name, image)
    head = numbers(backbone(name, image, classes).blocks[-1].init(random(0)))
    return round(memory_mb(shared + tasks * (own + head)), 1)


def test_memory_is_the_papers() -> None:
    colour, grey = (3, 32, 32), (1, 28, 28)
    assert paper_memory("alexnet", colour, 10, 6) == 26.6
    assert paper_memory("alexnet", colour, 10, 5) == 26.5
    assert paper_memory("alexnet", colour, 10, 10) == 27.0, "split-cifar100"
    assert paper_memory("alexnet", colour, 5, 100) == 31.9
    assert paper_memory("alexnet-x2.5", colour, 10, 6) == 164.0
    assert paper_memory("alexnet-x2.5", colour, 10, 5) == 163.7
    assert paper_memory("fc", grey, 10, 10) == 7.6
    assert paper_memory("fc-x4", grey, 10, 10) == 78.5


# Whole lessons


def lesson(library: Library, net: Backbone, number: int, epochs: int = 8) -> Lesson:
    """To learn task t`number`, of noisy pictures, with a weight decay; to be judged by what it was trained on, so
    that the best state is not the one before the first step."""
    decayed = (Setting(1e-2, 1e-3),)
    protocol = replace(SHORT, max_epochs=epochs, grid=decayed, fc_grid=decayed, pad=0, flip=False)
    given = task(size=net.image[1], train=30, seed=number)
    given = replace(given, val=given.train)
    return Lesson(f"t{number}", number, given, library, net, protocol, 0, "made", quiet, lambda event, what: None)


def teach(library: Library, net: Backbone, number: int, learner: Hat, epochs: int = 8) -> Learned:
    learned = learner.learn(lesson(library, net, number, epochs))
    assert learned.chosen.best_step > 0
    with library.writer():
        library.commit(learned.change)
    return learned


def new_library(folder: Path, net: Backbone) -> Library:
    return Library.create(folder / "library", net.name, [block.name for block in net.blocks])


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


@pytest.mark.parametrize(("name", "size", "epochs"), [("tiny", 8, 8), ("fc-x0.05", 8, 8), ("alexnet-x0.1", 27, 25)])
def test_what_earlier_tasks_use_stays_to_the_bit(name: str, size: int, epochs: int, tmp_path: Path) -> None:
    net = backbone(name, (3, size, size), 3)
    library = new_library(tmp_path, net)
    x = torch.randn(30, 3, size, size, generator=random(0))
    said: dict[str, Tensor] = {}
    for number in (1, 2, 3):
        path = list(library.tasks.values())[-1].path if library.tasks else ()
        before = [library.state(module) for module in path[:-1]]
        used = used_units(net, library.extras().values())
        teach(library, net, number, Hat(rates=(5e-3,)), epochs)
        said[f"t{number}"] = net.forward(library.states(f"t{number}"), x)
        assert all(torch.equal(bits(net.forward(library.states(t), x)), bits(said[t])) for t in said), "old answers"
        if before:
            now = [library.state(module) for module in library.tasks["t1"].path[:-1]]
            held(net, before, now, free_shares(net, before, {key: 1 - mask for key, mask in used.items()}))
    assert len({logits.sum().item() for logits in said.values()}) == 3
    assert {entry.path[:-1] for entry in library.tasks.values()} == {tuple(f"t3.{b.name}" for b in net.blocks[:-1])}
    assert [entry.path[-1] for entry in library.tasks.values()] == ["t1.head", "t2.head", "t3.head"]


def held(net: Backbone, before: list[State], now: list[State], free: dict[str, dict[str, Tensor]]) -> None:
    """All values in use are what they were, and of the free ones almost all have changed."""
    kept = changed = total = 0
    for block, old, new in zip(net.blocks, before, now, strict=False):
        for key, share in free[block.name].items():
            same, share = bits(old[key]) == bits(new[key]), share.expand_as(old[key])
            assert bool(same[share == 0].all())
            kept += int((share == 0).sum())
            changed, total = changed + int((~same[share == 1]).sum()), total + int((share == 1).sum())
    assert kept > 0
    assert changed > 0.9 * total > 0


def test_tasks_have_their_own_statistics(tmp_path: Path) -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    library = new_library(tmp_path, net)
    first = teach(library, net, 1, Hat(rates=(1e-2,)))
    second = teach(library, net, 2, Hat(rates=(1e-2,)))
    for learned, name in ((first, "t1"), (second, "t2")):
        for trained, stored in zip(learned.chosen.states, library.states(name), strict=True):
            assert trained is not None
            own = [key for key in trained if is_own(key)]
            assert all(torch.equal(bits(trained[key]), bits(stored[key])) for key in own)
    one, two = (library.extras()[f"own.t{number}"] for number in (1, 2))
    assert {key.split(".")[-1] for key in one} == {"embedding", "embedding1", "running_mean", "running_var"}
    assert all(not torch.equal(one[key], two[key]) for key in one)
    assert not any(is_buffer(key) for module in library.modules for key in library.state(module))


def test_the_penalty_keeps_units_for_later(tmp_path: Path) -> None:
    net = backbone("fc-x0.05", (3, 8, 8), 3)
    used = []
    for capacity in (0.0, 0.75, 100.0):
        library = new_library(tmp_path / str(capacity), net)
        teach(library, net, 1, Hat((5e-2,), capacity))
        used.append(library.tasks["t1"].info["capacity_used"])
    assert used[0] > used[2]
    assert used[0] >= used[1] >= used[2]


def test_a_member_that_overflowed_is_not_chosen(tmp_path: Path) -> None:
    """Logits that are no numbers mean class 0; where all images are of that class, that is the best there is."""
    net = backbone("fc-x0.05", (3, 8, 8), 3)
    first = lesson(new_library(tmp_path, net), net, 1)
    one_class = replace(first.task, val=Split(first.task.val.x, torch.zeros_like(first.task.val.y)))
    given = replace(first, task=one_class)
    assert Hat((1e38, 1e-3)).learn(given).chosen.member.setting.lr == 1e-3
    with pytest.raises(InputError, match="give it smaller ones"):
        Hat((1e38,)).learn(given)


# Whole runs


LEARNER = Hat((1e-2, 1e-3))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Library]:
    out = tmp_path_factory.mktemp("hat")
    result = run(settings("small-hat"), out, own_learner=LEARNER)
    return result, Library.open(out / settings("small-hat").folder_name / "library")


def test_it_learns_and_forgets_nothing(finished: tuple[dict[str, Any], Library]) -> None:
    result, library = finished
    assert result["accuracy"][0][0] > 0.3, "chance is 0.2"
    assert result["metrics"]["forgetting"] == 0
    assert all(row == result["accuracy"][-1][: len(row)] for row in result["accuracy"])
    held = [entry.info["capacity_used"] for entry in library.tasks.values()]
    assert held == sorted(held)
    assert 0 < held[0] < held[-1] <= 1


def test_memory_counts_all_that_is_kept(finished: tuple[dict[str, Any], Library]) -> None:
    result, library = finished
    used = {module for entry in library.tasks.values() for module in entry.path}
    assert len(used) == 4 + 4, "shared blocks and heads"
    kept = sum(map(numbers, [*map(library.state, used), *library.extras().values()]))
    assert result["metrics"]["memory_mb"] == pytest.approx(memory_mb(kept))
