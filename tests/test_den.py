"""DEN: its arithmetic against small nets worked out by hand, and the learner on small streams."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from espalier.evaluation import predict
from espalier.learners import Learned, Lesson
from espalier.learners.den import Den, Work
from espalier.learners.den_parts import (
    B,
    Net,
    W,
    added,
    between,
    connected,
    corner,
    drift,
    drifted,
    group_soft,
    grown,
    open_to,
    padded,
    soft,
    split,
    widths,
    without_useless,
)
from espalier.library import Library, own_tensors
from espalier.nets import State, backbone, with_widths
from espalier.runs import run
from espalier.streams import stream
from tests.nets_help import lesson, random, task
from tests.small_streams import install, settings

install()
FC = "fc-x0.02"  # 20 units in each of the two hidden layers


def numbers(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def layer(weight: Tensor, bias: Tensor | None = None) -> State:
    return {W: weight, B: torch.zeros(len(weight), dtype=weight.dtype) if bias is None else bias}


def random_net(*sizes: int, seed: int = 0) -> Net:
    draw = random(seed)
    return [
        {key: torch.randn(shape, generator=draw, dtype=torch.float64) for key, shape in ((W, (m, n)), (B, (m,)))}
        for n, m in pairwise(sizes)
    ]


def outputs(net: Net, x: Tensor, known: list[int] | None = None) -> Tensor:
    """What a net says, by matrix products; with `known`, of the first units of each hidden layer alone."""
    for depth, each in enumerate(net[:-1]):
        x = torch.relu(x @ each[W].T + each[B])
        if known is not None:
            x = x * open_to(known[depth], x.shape[1])
    return x @ net[-1][W].T + net[-1][B]


IMAGES = torch.randn(7, 4, generator=random(99), dtype=torch.float64)


def test_soft_threshold_by_hand() -> None:
    found = soft(numbers(0.5, -0.5, 0.1, -0.1, 0.0, 0.2), 0.2)
    torch.testing.assert_close(found, numbers(0.3, -0.3, 0.0, 0.0, 0.0, 0.0))
    assert (found == 0).sum() == 4, "exactly"


def test_soft_threshold_is_the_proximal_operator() -> None:
    """Its result minimises ½(v - w)² + t·|v|."""
    w, grid = 0.37, torch.linspace(-1, 1, 20001, dtype=torch.float64)
    for t in (0.1, 0.3, 0.5):
        least = grid[(0.5 * (grid - w) ** 2 + t * grid.abs()).argmin()]
        assert soft(numbers(w), t).item() == pytest.approx(least.item(), abs=1e-4)


def test_group_soft_threshold_by_hand() -> None:
    """(3, 4) has length 5 and loses 1 of it; (0.6, 0.8) has just length 1 and goes, as (0, 0) stays."""
    found = group_soft(numbers([3.0, 4.0], [0.6, 0.8], [0.0, 0.0]), 1.0)
    torch.testing.assert_close(found, numbers([2.4, 3.2], [0.0, 0.0], [0.0, 0.0]))
    assert (found[1:] == 0).all()
    assert torch.equal(group_soft(numbers([0.0, 0.0], [3.0, 4.0]), 0.0), numbers([0.0, 0.0], [3.0, 4.0]))


def test_units_are_selected_from_the_outputs_back() -> None:
    """A net of 3 inputs, 3 and 3 hidden units and 2 outputs. The outputs read c0 and c2; c0 reads b1 alone, c2 reads
    nothing; c1, which no output reads, reads b0 and b2."""
    first = layer(torch.ones(3, 3, dtype=torch.float64))
    second = layer(numbers([0, 0.5, 0], [1, 0, 1], [0, 0, 0]))
    head = layer(numbers([1, 0, 0], [0, 0, -2]))
    net = [first, second, head]
    below, above = connected(net)
    assert below.tolist() == [False, True, False]
    assert above.tolist() == [True, False, True]
    free = between(net, [below, above])
    assert torch.equal(free[0][W], numbers([0, 0, 0], [1, 1, 1], [0, 0, 0]))
    assert torch.equal(free[0][B], numbers(0, 1, 0))
    assert torch.equal(free[1][W], numbers([0, 1, 0], [0, 0, 0], [0, 1, 0]))
    assert torch.equal(free[1][B], numbers(1, 0, 1))
    assert torch.equal(free[2][W], numbers([1, 0, 1], [1, 0, 1]))
    assert torch.equal(free[2][B], numbers(1, 1))


def test_growth_changes_nothing_that_the_net_computes() -> None:
    net = random_net(4, 3, 3, 2)
    wide = grown(net, 2, random(1))
    assert widths(wide) == [5, 5]
    assert all((unit != 0).any() for unit in wide[0][W][3:]), "new units read the layer before"
    torch.testing.assert_close(outputs(wide, IMAGES), outputs(net, IMAGES))


def test_old_tasks_do_not_see_new_units_whatever_those_learn() -> None:
    net = random_net(4, 3, 3, 2)
    wide = grown(net, 2, random(1))
    mask = added(wide, [3, 3])
    for each, new in zip(wide[:-1], mask, strict=False):  # train all that may be trained: anything can come of it
        for name in (W, B):
            each[name] = each[name] + new[name] * torch.randn(each[name].shape, generator=random(5))
    old_head = padded(net[-1], 5)
    as_before = outputs([*wide[:-1], old_head], IMAGES, known=[3, 3])
    torch.testing.assert_close(as_before, outputs(net, IMAGES))
    ungated = outputs([*wide[:-1], old_head], IMAGES)
    assert not torch.allclose(ungated, outputs(net, IMAGES)), "it is the gates that keep old tasks as they were"


def test_what_an_expansion_trains_by_hand() -> None:
    """From 1 unit to 2 in each layer: the old unit's own weights and biases stay."""
    first, second, head = added(grown(random_net(4, 1, 1, 2), 1, random(0)), [1, 1])
    assert torch.equal(first[W], numbers([0, 0, 0, 0], [1, 1, 1, 1]))
    assert torch.equal(first[B], numbers(0, 1))
    assert torch.equal(second[W], numbers([0, 1], [1, 1]))
    assert torch.equal(second[B], numbers(0, 1))
    assert head[W].all(), "the head is the task's own"
    assert head[B].all()


def test_useless_new_units_go_and_nobody_misses_them() -> None:
    """Of 3 new units in each layer: above, the first reads nothing and the second is read by no output; below, the
    first is then read by nobody. Old units stay, even useless ones."""
    net = random_net(4, 5, 5, 2)
    net[1][W][2], net[1][B][2] = 0.0, 0.0
    net[2][W][:, 3] = 0.0
    net[1][W][:, 2] = 0.0
    net[1][W][3, 2] = 1.0  # the one reader is a unit that goes
    net[1][W][:, 0] = 0.0  # old, and useless
    small = without_useless(net, [2, 2])
    assert widths(small) == [4, 3]
    assert torch.equal(small[0][W], net[0][W][[0, 1, 3, 4]])
    assert torch.equal(small[2][W], net[2][W][:, [0, 1, 4]])
    torch.testing.assert_close(outputs(small, IMAGES), outputs(net, IMAGES))


def test_a_new_unit_with_a_bias_alone_is_of_use() -> None:
    net = random_net(4, 3, 2)
    net[0][W][2], net[0][B][2] = 0.0, 1.0
    assert widths(without_useless(net, [2])) == [3]


def test_drift_by_hand() -> None:
    before = layer(numbers([0, 0], [1, 1], [2, 2]))
    now = layer(numbers([3, 4, 9], [1, 1, 9], [2, 2.5, 9], [7, 7, 7]))  # one new input, one new unit
    assert drift(now, before).tolist() == [5.0, 0.0, 0.5]
    head = layer(torch.ones(2, 4, dtype=torch.float64))
    assert drifted([now, head], [before], 0.4, most=9) == [[0, 2]]
    assert drifted([now, head], [before], 0.5, most=9) == [[0]], "more than the threshold, not as much"
    assert drifted([now, head], [before], 0.4, most=1) == [[0]], "the farthest first"


def test_a_split_brings_back_what_old_tasks_computed() -> None:
    """All old units have drifted and are split: the old copies with their stamps are the old net again, bit for bit,
    and the new task, which reads the drifted copies, computes what it did."""
    before = random_net(4, 3, 3, 2)
    drifting = random_net(4, 5, 4, 2, seed=1)  # two and one new units besides
    net = split(drifting, before[:-1], [[0, 1, 2], [0, 1, 2]])
    assert widths(net) == [5 + 3, 4 + 3]
    for each, old in zip(net[:-1], before, strict=False):
        assert torch.equal(corner(each[W], old[W]), old[W])
        assert torch.equal(corner(each[B], old[B]), old[B])
    old_task = outputs([*net[:-1], padded(before[-1], 7)], IMAGES, known=[3, 3])
    torch.testing.assert_close(old_task, outputs(before, IMAGES))
    torch.testing.assert_close(outputs(net, IMAGES), outputs(drifting, IMAGES))


def test_who_reads_which_copy_after_a_split() -> None:
    """One of two units below is split (1), and one of two above (0). The drifted copy above reads the drifted one below
    in place of the old; the old one above has its old weights; the other above goes on with the old copy."""
    before = [layer(numbers([1, 1], [2, 2])), layer(numbers([1, 2], [3, 4]))]
    now = [layer(numbers([1, 1], [5, 5])), layer(numbers([6, 7], [3.1, 4.1])), layer(numbers([8, 9]))]
    first, second, head = split(now, before, [[1], [0]])
    assert torch.equal(first[W], numbers([1, 1], [2, 2], [5, 5]))
    assert torch.equal(second[W], numbers([1, 2, 0], [3.1, 4.1, 0], [6, 0, 7]))
    assert torch.equal(head[W], numbers([0, 9, 8]))


def test_a_widened_backbone_knows_its_sizes() -> None:
    plain = backbone(FC, (3, 8, 8), 5)
    wide = with_widths(plain, [23, 21])
    assert wide.macs() == [192 * 23, 23 * 21, 21 * 5]
    assert with_widths(plain, [20, 20]) == plain


def first_lesson(folder: Path) -> Lesson:
    """Ten classes: not learned to the end in so few steps."""
    return replace(lesson(folder, backbone(FC, (3, 8, 8), 10), {}, {}), task=task(10, train=200, val=60))


def after(done: Lesson, learned: Learned) -> Lesson:
    """The next lesson, of other pictures."""
    with done.library.writer():
        done.library.commit(learned.change)
    return replace(done, name="next", index=done.index + 1, task=task(10, train=200, val=60, seed=1))


def test_the_first_task_is_trained_to_exact_zeros(tmp_path: Path) -> None:
    sparse = Den(l1=5e-3).learn(first_lesson(tmp_path / "sparse")).change.modules
    plain = Den(l1=0.0).learn(first_lesson(tmp_path / "plain")).change.modules
    assert set(sparse) == set(plain) == {"new.dense1", "new.dense2", "new.head"}
    for module in sparse:
        assert 0.02 < (sparse[module][1][W] == 0).float().mean() < 0.98
        assert (plain[module][1][W] != 0).all()


def test_an_expansion_trains_new_units_and_the_head_alone(tmp_path: Path) -> None:
    den = Den(units=3)
    begun = first_lesson(tmp_path)
    learned = den.learn(begun)
    net: Net = [state for _, state in learned.change.modules.values()]
    work = Work(after(begun, learned), net)
    den._train_head(work)
    assert all(torch.equal(now[W], old[W]) for now, old in zip(work.net[:-1], net, strict=False))
    assert not torch.equal(work.net[-1][W], net[-1][W])
    val = work.chosen[-1].val_accuracy
    expanded = den._expand(work)
    assert sum(expanded) > 0
    assert widths(work.net) == [20 + expanded[0], 20 + expanded[1]]
    for now, old in zip(work.net[:-1], net, strict=False):
        assert torch.equal(corner(now[W], old[W]), old[W]), "bit for bit"
        assert torch.equal(corner(now[B], old[B]), old[B])
    assert work.chosen[-1].val_accuracy >= val, "it begins with the net as it was"


def test_strong_group_sparsity_drops_all_new_units(tmp_path: Path) -> None:
    den = Den(units=3, group=10.0, enough=0, split_at=99)
    begun = first_lesson(tmp_path)
    info = den.learn(after(begun, den.learn(begun))).change.tasks["next"].info
    assert info["expanded"] == [0, 0]
    assert info["units"] == [20, 20]


def test_only_a_loss_above_the_threshold_adds_units(tmp_path: Path) -> None:
    begun = first_lesson(tmp_path)
    following = after(begun, Den().learn(begun))
    low, high = (Den(units=3, enough=t, split_at=99).learn(following).change.tasks["next"].info for t in (99, 0))
    assert low["expanded"] == low["split"] == [0, 0]
    assert low["units"] == [20, 20]
    assert sum(high["expanded"]) > 0
    assert high["units"] == [20 + new for new in high["expanded"]]


def test_units_that_drift_are_split_as_many_as_may_be(tmp_path: Path) -> None:
    begun = first_lesson(tmp_path)
    following = after(begun, Den().learn(begun))
    learned = Den(units=2, enough=99, split_at=0.0, pull=0.0).learn(following)
    assert learned.change.tasks["next"].info["split"] == [2, 2]
    padding = learned.change.modules[learned.change.tasks["new"].path[-1]][1][W][:, 20:]
    assert padding.shape == (10, 2)
    assert not padding.any(), "the old head does not read the new copies"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("den")
    return run(settings("den", backbone=FC), out, own_learner=Den()), out / settings("den", backbone=FC).folder_name


def test_it_learns_grows_and_counts_what_it_keeps(finished: tuple[dict[str, Any], Path]) -> None:
    result, folder = finished
    assert result["accuracy"][0][0] > 0.3, "chance is 0.2"
    library = Library.open(folder / "library")
    library.verify()
    entries = list(library.tasks.values())
    assert [len(e.info["units"]) for e in entries] == [2, 2, 2, 2]
    for earlier, later in pairwise(entries):
        grew = [b - a for a, b in zip(earlier.info["units"], later.info["units"], strict=True)]
        parts = zip(later.info["expanded"], later.info["split"], strict=True)
        assert grew == [new + halved for new, halved in parts]
        assert all(units <= 20 for units in grew)
    trunk = [t for module in entries[-1].path[:-1] for t in library.state(module).values()]
    heads = sum(5 * (entry.info["units"][-1] + 1) for entry in entries)
    numbers_kept = sum(t.numel() for t in trunk) + heads
    stamps = sum(entries[-1].info["units"])
    assert result["metrics"]["memory_mb"] == pytest.approx(4 * (numbers_kept + stamps) / 1e6)


def test_all_tasks_share_the_newest_layers_each_with_its_own_stamp(finished: tuple[dict[str, Any], Path]) -> None:
    _, folder = finished
    library = Library.open(folder / "library")
    assert {entry.path[:2] for entry in library.tasks.values()} == {("t4.dense1", "t4.dense2")}
    assert len({entry.path[2] for entry in library.tasks.values()}) == 4
    for name, entry in library.tasks.items():
        gates = library.extras()[own_tensors(name)]
        for block, known in zip(("dense1", "dense2"), entry.info["units"], strict=True):
            gate = gates[f"{block}/0.gate"]
            assert gate[:known].all()
            assert not gate[known:].any()
            assert len(gate) == library.tasks["t4"].info["units"][("dense1", "dense2").index(block)]
        assert library.states(name)[0].keys() == {W, B, "0.gate"}


def test_it_changes_old_answers_a_little(finished: tuple[dict[str, Any], Path]) -> None:
    result, folder = finished
    library = Library.open(folder / "library")
    first = stream("small_mini")[0]
    now = predict(library, "t1", first.test.x)
    then = backbone(FC, (3, 8, 8), 5).forward(
        [library.state(f"t1.{block}") for block in library.blocks], first.normalise(first.test.x)
    )
    assert not torch.equal(now, then)
    assert (now.argmax(1) == then.argmax(1)).float().mean() > 0.7
    assert result["metrics"]["forgetting"] > -0.2
