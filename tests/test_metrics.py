"""The metrics, against matrices worked out by hand."""

from pathlib import Path

import pytest

from espalier.evaluation import accuracy, average_accuracy, forgetting, lca, memory_mb, tflops, transfer
from espalier.library import Change, Library, TaskEntry
from espalier.nets import backbone
from tests.nets_help import modules, random, task

MATRIX = [[0.9], [0.7, 0.8], [0.6, 0.9, 0.5]]


def test_average_accuracy_is_the_mean_of_the_last_row() -> None:
    assert average_accuracy(MATRIX) == pytest.approx((0.6 + 0.9 + 0.5) / 3)
    assert average_accuracy([[0.25]]) == 0.25


def test_forgetting_is_negative_where_a_task_got_worse() -> None:
    assert forgetting(MATRIX) == pytest.approx((-0.3 + 0.1 + 0.0) / 3)
    assert forgetting([[0.9], [0.9, 0.1]]) == 0
    assert forgetting([[0.4]]) == 0


def test_transfer_is_the_gain_on_the_last_task() -> None:
    alone = [[0.9], [0.9, 0.8], [0.9, 0.8, 0.3]]
    assert transfer(MATRIX, alone) == pytest.approx(0.2)
    assert transfer(alone, MATRIX) == pytest.approx(-0.2)
    assert transfer(alone, alone) == 0


def test_lca_is_the_mean_of_the_learning_curves() -> None:
    flat, rising = [0.5] * 6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert lca([flat]) == 0.5
    assert lca([flat, rising]) == pytest.approx((0.5 + 0.35) / 2)


def test_operations_in_tera() -> None:
    assert tflops(2_500_000_000_000) == 2.5


@pytest.mark.parametrize(("tasks", "classes", "printed"), [(6, 10, "14.6"), (5, 10, "12.2"), (100, 5, "243.7")])
def test_memory_of_independent_networks_is_the_papers(tasks: int, classes: int, printed: str) -> None:
    states = [block.init(random(0)) for block in backbone("resnet", (3, 32, 32), classes).blocks]
    numbers = sum(tensor.numel() for state in states for tensor in state.values())
    assert numbers == 607050 - 65 * (10 - classes) + 2 * 64 * 20  # twenty batch norms of 64 channels
    assert f"{memory_mb(tasks * numbers):.1f}" == printed


def test_a_shared_module_is_kept_in_memory_once(tmp_path: Path) -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    states = modules(net, "a", "b")
    blocks = [block.name for block in net.blocks]
    library = Library.create(tmp_path / "library", "tiny", blocks)
    own = [f"a.{name}" for name in blocks]
    new = {f"{path}.{name}": (name, states[f"{path}.{name}"]) for path in "ab" for name in blocks}
    tasks = {"t1": TaskEntry("t1", tuple(own), {}), "t2": TaskEntry("t2", (*own[:-1], "b.head"), {})}
    with library.writer():
        library.commit(Change(new, tasks))
    # Stem, three residual blocks with a projection (weights, then 4 numbers per normalised channel), two heads.
    stem, head = 3 * 8 * 9 + 4 * 8, 32 * 3 + 3
    stages = sum(9 * i * o + 9 * o * o + i * o + 3 * 4 * o for i, o in ((8, 16), (16, 16), (16, 32)))
    assert library.used_numbers() == stem + stages + 2 * head
    assert memory_mb(library.used_numbers()) == pytest.approx(4 * (stem + stages + 2 * head) / 1_000_000)


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_accuracy_is_the_share_of_test_images_that_are_right(batch: int) -> None:
    made, net = task(), backbone("fc", (3, 8, 8), 3)
    states = [block.init(random(0)) for block in net.blocks]
    for constant in range(3):  # a head that always says the same
        states[-1]["0.linear.weight"].zero_()
        states[-1]["0.linear.bias"].zero_()[constant] = 1
        wanted = (made.test.y == constant).sum().item() / len(made.test)
        assert accuracy(made, net, states, batch) == wanted == pytest.approx(1 / 3)
