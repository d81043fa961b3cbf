"""PNN: columns against a computation by hand, members on their own, the paper's memory, and whole runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from espalier.evaluation import network_of, predict
from espalier.learners.pnn import Pnn
from espalier.library import Change, Library, TaskEntry
from espalier.nets import EVAL, Backbone, State, backbone
from espalier.nets.columns import Columns
from espalier.runs import run
from espalier.training import Job, Setting, Trained, fit
from espalier.training.columns import ColumnModel, column_flops, fresh_column
from espalier.training.trie import Modes, evaluating
from tests.nets_help import RATES, close, job, lesson, quiet, random, same_results
from tests.small_streams import install, settings

install()
NETS = [("tiny", 8), ("resnet-x0.1", 8), ("alexnet-x0.05", 19), ("fc-x0.02", 8)]
EARLIER = ("t1", "t2")


def other(made: Job, number: int) -> Job:
    return replace(made, place=("made", number))


def shaken(states: list[State], seed: int) -> list[State]:
    """The states with other statistics, norms and biases than new ones have."""
    draw = random(seed)
    for state in states:
        for key, tensor in state.items():
            if key.endswith(("running_var", "bias")) or "norm" in key:
                tensor += torch.rand(tensor.shape, generator=draw) / 3
    return states


def earlier_columns(made: Job, classes: int = 5) -> dict[str, list[State]]:
    """Columns t1 and t2, whose heads have a number of classes of their own."""
    net = backbone(made.backbone.name, made.backbone.image, classes)
    made = replace(made, backbone=net)
    columns: dict[str, list[State]] = {}
    for number, name in enumerate(EARLIER):
        columns[name] = shaken(fresh_column(other(made, number), tuple(columns)), number)
    return columns


def by_hand(net: Backbone, columns: Mapping[str, Sequence[State]], x: Tensor, modes: Modes) -> Tensor:
    """The equation of Rusu et al. word for word, module by module: logits of the last column, which runs in `modes`."""
    names = list(columns)
    before = dict.fromkeys(names, x)
    for depth, block in enumerate(net.blocks):
        now = {}
        for number, name in enumerate(names):
            how = modes(depth) if name == names[-1] else EVAL
            if depth == len(net.blocks) - 1 and name != names[-1]:
                continue  # a head of another task
            sources = {"own": name} | ({} if depth == 0 else {f"from.{n}": n for n in names[:number]})
            total = torch.zeros(1)
            for part, source in sources.items():
                prefix = f"{part}/"
                state = {k[len(prefix) :]: t[None] for k, t in columns[name][depth].items() if k.startswith(prefix)}
                assert state
                total = total + block.forward(state, before[source], how)
            now[name] = total if depth == len(net.blocks) - 1 else F.relu(total)
        before = now
    return before[names[-1]]


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("name", "size"), NETS)
def test_three_columns_compute_what_the_equation_says(name: str, size: int) -> None:
    made = job(name, size)
    earlier = earlier_columns(made)
    network = Columns(made.backbone, earlier)
    own = [shaken(fresh_column(other(made, n), EARLIER), n) for n in (2, 3)]
    x = torch.randn(4, 3, size, size, generator=random(0))
    for states in own:
        wanted = by_hand(made.backbone, {**earlier, "t3": states}, x, evaluating)
        assert wanted.shape == (4, 3)
        torch.testing.assert_close(network.forward(states, x), wanted, rtol=1e-9, atol=1e-9)

    # Two members in training: each by its own batch's statistics, which the members keep; frozen columns do not.
    stacks = [{key: torch.stack([a[key], b[key]]) for key in a} for a, b in zip(*own, strict=True)]
    training = made.modes(made.drawn(0, 4))
    together = network.run(stacks, x, training).view(4, 2, 3)
    for number, states in enumerate(own):
        wanted = by_hand(made.backbone, {**earlier, "t3": states}, x, training)
        torch.testing.assert_close(together[:, number], wanted, rtol=1e-9, atol=1e-9)
        for stack, state in zip(stacks, states, strict=True):
            close({key: tensor[number] for key, tensor in stack.items()}, state)


@pytest.mark.usefixtures("in_float64")
def test_every_column_and_every_copy_counts() -> None:
    made = job()
    earlier = earlier_columns(made)
    states = shaken(fresh_column(other(made, 2), EARLIER), 2)
    x = torch.randn(4, 3, 8, 8, generator=random(0))
    plain = Columns(made.backbone, earlier).forward(states, x)
    for column in (earlier["t1"], earlier["t2"], states):
        for depth, state in enumerate(column):
            for part in {key.partition("/")[0] for key in state}:
                key = next(k for k in state if k.startswith(f"{part}/") and k.endswith("weight"))
                kept = state[key].clone()
                state[key] *= 1.5
                changed = Columns(made.backbone, earlier).forward(states, x)
                state[key] = kept
                unread = column is not states and depth == 4  # the heads of earlier columns
                assert torch.equal(changed, plain) == unread, (depth, key)


@pytest.mark.parametrize(
    ("name", "image", "tasks", "wanted"),
    [
        ("resnet", (3, 32, 32), 5, 36.5),
        ("resnet", (3, 32, 32), 6, 51.1),
        ("resnet-6", (3, 32, 32), 6, 51.1),
        ("resnet", (3, 32, 32), 10, 133.8),
        ("fc", (1, 28, 28), 10, 253.8),
    ],
)
def test_memory_is_the_papers(name: str, image: tuple[int, int, int], tasks: int, wanted: float) -> None:
    """Columns differ by one set of copies each, so all are counted from the first two."""
    made = replace(job(), backbone=backbone(name, image, 10))
    first, second = (
        sum(t.numel() for state in fresh_column(made, earlier) for t in state.values()) for earlier in ((), ("t1",))
    )
    numbers = sum(first + n * (second - first) for n in range(tasks))
    assert 4 * numbers / 1e6 == pytest.approx(wanted, abs=0.05)


def test_operations_are_those_that_torch_counts() -> None:
    made = job(pad=0, flip=False)
    network = Columns(made.backbone, earlier_columns(made))
    model = ColumnModel(made, network, RATES[:1])
    x = torch.randn(2, 3, 8, 8, generator=random(0))
    stacks = [cell.stack for _, cell in model.cells()]
    with FlopCounterMode(display=False) as forward:
        model.logits(x)
    with FlopCounterMode(display=False) as both:
        torch.autograd.grad(network.run(stacks, x, evaluating).sum(), model.optimiser.parameters)
    assert (both.get_total_flops(), forward.get_total_flops()) == tuple(2 * count for count in model.flops())
    step, evaluation = column_flops(network, 1)
    three = column_flops(network, 3)
    frozen = 2 * (2 * 13824 + 3 * (57344 + 19456 + 14336))
    assert three == (3 * (step - frozen) + frozen, 3 * (evaluation - frozen) + frozen)


# Training


def trained(made: Job, network: Columns, grid: Sequence[Setting]) -> list[Trained]:
    return fit(made, ColumnModel(made, network, grid), quiet).results


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("name", "size"), NETS)
def test_what_a_member_learns_does_not_depend_on_the_others(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[int] = []
    keep = ColumnModel.keep

    def counted(model: ColumnModel, numbers: list[int]) -> None:
        packed.append(len(numbers))
        keep(model, numbers)

    monkeypatch.setattr(ColumnModel, "keep", counted)
    made = job(name, size, max_epochs=4, patience=4) if name == "tiny" else job(name, size, max_epochs=1, batch=10)
    network = Columns(made.backbone, earlier_columns(made))
    grid = (Setting(0.0, 0.0), RATES[0], Setting(0.05, 0.0), RATES[1])
    together = trained(made, network, grid)
    if name == "tiny":
        assert any(packed), "some left before the others"
    for setting, result in zip(grid, together, strict=True):
        same_results(result, trained(made, network, [setting])[0])
    moved, still = together[1].early[3], together[0].early[3]
    for depth, (mine, begun) in enumerate(zip(moved, still, strict=True)):
        assert mine is not None
        assert begun is not None
        assert {key.partition("/")[0] for key in mine} == {"own"} | (set() if depth == 0 else {"from.t1", "from.t2"})
        assert not any(torch.equal(mine[key], begun[key]) for key in mine if "weight" in key)


def test_copies_begin_apart_and_own_blocks_as_in_any_network() -> None:
    made = job()
    states = fresh_column(made, EARLIER)
    for depth, (state, fresh) in enumerate(zip(states, made.fresh(), strict=True)):
        assert all(torch.equal(state[f"own/{name}"], tensor) for name, tensor in fresh.items())
        names = [n for n in fresh if n.endswith(("conv1.weight", "linear.weight"))] if depth else []
        for name in names:
            begun = [state[f"{part}/{name}"] for part in ("own", "from.t1", "from.t2")]
            assert not any(torch.equal(begun[i], begun[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_frozen_columns_get_no_gradient_and_keep_every_bit() -> None:
    made = job()
    earlier = earlier_columns(made)
    network = Columns(made.backbone, earlier)
    tensors = [t for readers in network.frozen for _, stack in readers for t in stack.values()]
    before = [t.clone() for t in tensors]
    trained(made, network, RATES)
    assert not any(t.requires_grad for t in tensors)
    assert all(torch.equal(t, kept) for t, kept in zip(tensors, before, strict=True))


# Learner and library


def test_a_library_predicts_what_was_trained(tmp_path: Path) -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    states: dict[str, State] = {}
    made = lesson(tmp_path, net, {}, states)
    for number, name in enumerate(("t1", "t2", "t3")):
        now = replace(made, name=name, index=number)
        learned = Pnn().learn(now)
        assert learned.change.tasks[name].info["columns"] == ["t1", "t2"][:number]
        task = now.task
        info = {"image": [3, 8, 8], "classes": ["0", "1", "2"], "mean": task.mean.flatten().tolist()}
        info |= {"std": task.std.flatten().tolist(), **learned.change.tasks[name].info}
        entry = TaskEntry(name, learned.change.tasks[name].path, info)
        with made.library.writer():
            made.library.commit(Change(learned.change.modules, {name: entry}))
        assert learned.network is not None
        kept = [state for state in learned.chosen.states if state is not None]
        wanted = learned.network.forward(kept, task.normalise(task.val.x))
        said = predict(Library.open(made.library.folder), name, task.val.x)
        torch.testing.assert_close(said, wanted, rtol=1e-4, atol=1e-5)
        assert (said.argmax(1) == task.val.y).double().mean().item() == learned.chosen.val_accuracy
        assert torch.equal(
            network_of(made.library, name).forward(made.library.states(name), task.normalise(task.val.x)), wanted
        )


def test_the_library_names_the_columns_and_keeps_them_all(tmp_path: Path) -> None:
    asked = settings("pnn")
    result = run(asked, tmp_path)
    library = Library.open(tmp_path / asked.folder_name / "library")
    assert list(library.tasks["t4"].info["columns"]) == ["t1", "t2", "t3"]
    numbers = sum(entry.numbers for entry in library.modules.values())
    assert result["metrics"]["memory_mb"] == pytest.approx(4 * numbers / 1e6)
