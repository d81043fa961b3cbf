"""RCL: its controller against exact gradients, its children against plain networks, the learner as a whole."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from espalier import TaskSpec
from espalier.data.folder import DataFolder
from espalier.learners.rcl import Nursery, Rcl, cut, freedom, reward, shut, widened
from espalier.learners.rcl_controller import Controller
from espalier.library import Library
from espalier.nets import BIAS, WEIGHT, State, backbone, with_widths
from espalier.runs import run
from espalier.runs.records import read_records
from espalier.streams.registry import STREAMS
from espalier.training import Copy, Rules, Setting, Trained
from espalier.training.cost import forward_flops
from tests.nets_help import close, doubles, lesson, modules, random
from tests.small_streams import install, settings, small

install()
NET = backbone("fc-x0.006", (3, 8, 8), 3)  # 6 hidden units
SETTING = Setting(1e-2, 1e-2)
REWARDS = torch.tensor([[0.1, 0.9, 0.4], [0.3, 0.2, 0.8], [0.5, 0.6, 0.0]])


def sequences() -> Tensor:
    return torch.tensor(list(itertools.product(range(3), repeat=2)))


def toy() -> Controller:
    return Controller(layers=2, choices=3, lr=0.03, generator=random(0))


def policy(controller: Controller) -> list[Tensor]:
    return [*controller.cell.parameters(), *controller.output.parameters()]


def exact_gradient(controller: Controller, rewards: Tensor) -> Tensor:
    """Of the expected reward, by enumeration."""
    expected = (controller.log_probability(sequences()).exp() * rewards).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(expected, policy(controller))])


def sampled_gradient(controller: Controller, actions: Tensor, rewards: Tensor) -> Tensor:
    gradients = torch.autograd.grad(controller.policy_loss(actions, rewards), policy(controller))
    return -torch.cat([g.flatten() for g in gradients])


def test_probabilities_of_all_sequences_sum_to_one_and_samples_follow_them() -> None:
    controller = toy()
    with torch.no_grad():
        probabilities = controller.log_probability(sequences()).exp()
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-6)
    drawn = controller.sample(4000, random(1))
    counts = torch.bincount(3 * drawn[:, 0] + drawn[:, 1], minlength=9) / 4000
    assert (counts - probabilities).abs().max() < 0.02, "four standard deviations"


def test_a_layer_knows_what_was_chosen_before_it_and_nothing_later() -> None:
    logits = toy().logits(torch.tensor([[0, 0], [1, 0], [1, 2]]))
    assert not torch.equal(logits[0, 1], logits[1, 1])
    torch.testing.assert_close(logits[1], logits[2])


def test_the_expected_policy_gradient_is_that_of_the_expected_reward() -> None:
    with doubles():
        controller, rewards = toy(), REWARDS.double().flatten()
        chances = controller.log_probability(sequences()).exp().detach()
        each = [sampled_gradient(controller, row[None], r[None]) for row, r in zip(sequences(), rewards, strict=True)]
        found = sum(chance * gradient for chance, gradient in zip(chances, each, strict=True))
        torch.testing.assert_close(found, exact_gradient(controller, rewards), rtol=0, atol=1e-12)
        assert controller.value().item() != 0, "whatever the baseline is, it drops out"


def test_the_sampled_policy_gradient_comes_near_the_exact_one() -> None:
    controller = toy()
    actions = controller.sample(4000, random(2))
    found = sampled_gradient(controller, actions, REWARDS[actions[:, 0], actions[:, 1]])
    exact = exact_gradient(controller, REWARDS.flatten())
    assert (found - exact).norm() < 0.15 * exact.norm()


def test_the_value_is_the_mean_of_all_rewards() -> None:
    controller = toy()
    for rewards in ([0.7, 0.5], [0.2, 0.4], [0.9, 0.3]):
        controller.update(torch.tensor([[0, 1], [2, 2]]), torch.tensor(rewards))
    assert controller.value().item() == pytest.approx(0.5, abs=1e-5)


def test_the_controller_learns_which_sequence_is_best() -> None:
    controller, draw = toy(), random(3)
    best = torch.tensor([[0, 1]])
    before = controller.log_probability(best).exp().item()
    for _ in range(60):
        actions = controller.sample(8, draw)
        controller.update(actions, REWARDS[actions[:, 0], actions[:, 1]])
    assert before < 0.2
    assert controller.log_probability(best).exp().item() > 0.6


def test_controllers_come_from_their_generator_alone() -> None:
    torch.manual_seed(1)
    left = toy().state_dict()
    torch.manual_seed(2)
    after = torch.random.get_rng_state()
    right = toy().state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert torch.equal(after, torch.random.get_rng_state())


def test_reward() -> None:
    assert reward(0.75, (3, 5), 0.01) == pytest.approx(0.75 - 0.08)


def old_layers() -> list[State]:
    return list(modules(NET, "a").values())[:2]


def test_old_units_of_a_widened_network_say_what_they_said() -> None:
    """By hand: h₁ = relu(W₁x + b₁), h₂ = relu(W₂h₁ + b₂), whatever the new units do, open or shut."""
    with doubles():
        old = old_layers()
        x = torch.rand(5, 3, 8, 8)
        h1 = (x.flatten(1) @ old[0][WEIGHT].T + old[0][BIAS]).relu()
        h2 = (h1 @ old[1][WEIGHT].T + old[1][BIAS]).relu()
        grown = widened(old, [2, 3], 3, random(4))
        for states in (grown, shut(grown, [6, 6]), shut(grown, [8, 6]), cut(grown, [7, 8])):
            torch.testing.assert_close(NET.forward(states[:1], x)[:, :6], h1, rtol=0, atol=1e-12)
            torch.testing.assert_close(NET.forward(states[:2], x)[:, :6], h2, rtol=0, atol=1e-12)
        closed = NET.forward(shut(grown, [6, 6])[:2], x)
        assert not closed[:, 6:].any()
        assert NET.forward(grown[:2], x)[:, 6:].any()


def test_what_is_trained() -> None:
    old = old_layers()
    grown = widened(old, [2, 3], 4, random(4))
    assert [tuple(s[WEIGHT].shape) for s in grown] == [(8, 192), (9, 8), (4, 9)]
    first, second, head = freedom(old, grown)
    assert first[WEIGHT].sum(1).tolist() == [0] * 6 + [192] * 2
    assert first[BIAS].tolist() == [0] * 6 + [1] * 2
    assert second[WEIGHT].sum(1).tolist() == [0] * 6 + [8] * 3
    assert all(share.all() for share in head.values())


def test_operations_are_counted_at_the_width_that_is_there() -> None:
    assert with_widths(NET, [6, 6]) == NET
    assert forward_flops(with_widths(NET, [8, 7])) == 2 * (192 * 8 + 8 * 7 + 7 * 3)


def nursery(folder: Path) -> Nursery:
    given = modules(NET, "a")
    made = lesson(folder, NET, {"t1": list(given)}, given)
    return Nursery(made, [made.library.state(module) for module in list(given)[:2]], 3)


def present(states: Sequence[State | None]) -> list[State]:
    return [state for state in states if state is not None]


def test_old_weights_stay_bit_for_bit_and_the_new_ones_learn(tmp_path: Path) -> None:
    made = nursery(tmp_path)
    for child, result in zip([(2, 3), (0, 1)], made.train([(2, 3), (0, 1)], [SETTING]), strict=True):
        narrow = made.narrow(child, result)
        begun, trained = present(narrow.early[0]), present(narrow.early[-1])
        for states in (begun, trained, present(narrow.states)):
            for state, old in zip(states, made.old, strict=False):
                units, inputs = old[WEIGHT].shape
                assert torch.equal(state[WEIGHT][:units, :inputs], old[WEIGHT])
                assert torch.equal(state[BIAS][:units], old[BIAS])
        for before, after, new in zip(begun, trained, [*child, 1], strict=True):
            assert torch.equal(before[WEIGHT], after[WEIGHT]) == (new == 0)
        assert not trained[1][WEIGHT][:6, 6:].any(), "old units read nothing new"


def unpadded(made: Nursery, child: tuple[int, ...]) -> Trained:
    """A child trained by itself at its own width, without gates."""
    names = [f"own.{block}" for block in made.blocks]
    states = cut(made.widest, made.widths(child))
    free = dict(zip(made.blocks, freedom(made.old, states), strict=True))
    rules, given = Rules(free=free), dict(zip(names, states, strict=True))
    return made.lesson.train([tuple(Copy(n) for n in names)], [SETTING], rules, given).results[0]


def test_a_padded_child_is_the_plain_one_alone_and_in_company(tmp_path: Path) -> None:
    with doubles():
        made = nursery(tmp_path)
        children = [(2, 1), (3, 3), (0, 2), (0, 0)]
        together = made.train(children, [SETTING])
        for child, result in zip(children, together, strict=True):
            plain, alone = unpadded(made, child), made.train([child], [SETTING])[0]
            for padded in (result, alone):
                narrow = made.narrow(child, padded)
                assert (narrow.val_accuracy, narrow.best_step) == (plain.val_accuracy, plain.best_step)
                for mine, other in zip((narrow.states, *narrow.early), (plain.states, *plain.early), strict=True):
                    for left, right in zip(present(mine), present(other), strict=True):
                        close(left, right, 1e-9)


# The learner as a whole, on three small tasks.

LEARNER = Rcl(most_new=4, episodes=2, children=3)


def three(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    return [
        small("letters", train=60),
        small("digits", train=20),
        small("textures", classes=("dots", "bricks", "rays")),
    ]


STREAMS["three_mini"] = (three, "for tests")
ASKED = settings("small-rcl", stream="three_mini", backbone="fc-x0.02")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("rcl")
    return run(ASKED, out, own_learner=LEARNER), out / ASKED.folder_name


def test_it_learns_and_does_not_forget(finished: tuple[dict[str, Any], Path]) -> None:
    result, _ = finished
    assert result["accuracy"][0][0] > 0.3, "chance is 0.2"
    assert result["metrics"]["forgetting"] == 0
    assert result["accuracy"][2][:2] == result["accuracy"][1]


def test_each_task_holds_the_one_before_and_memory_counts_it_once(finished: tuple[dict[str, Any], Path]) -> None:
    result, folder = finished
    library = Library.open(folder / "library")
    infos = [entry.info for entry in library.tasks.values()]
    states = [library.states(name) for name in library.tasks]
    assert [len(s[-1][BIAS]) for s in states] == [5, 5, 3]
    numbers = sum(t.numel() for t in (*states[0][0].values(), *states[0][1].values(), *states[0][2].values()))
    for before, after, info in zip(states, states[1:], infos[1:], strict=False):
        k1, k2 = info["added"]
        assert {k1, k2} <= set(range(5))
        for small_layer, layer, new in zip(before[:2], after[:2], (k1, k2), strict=True):
            units, inputs = small_layer[WEIGHT].shape
            assert set(layer) == {WEIGHT, BIAS}, "no gates"
            assert len(layer[BIAS]) == units + new
            assert torch.equal(layer[WEIGHT][:units, :inputs], small_layer[WEIGHT])
        numbers += k1 * (192 + 1) + k2 * (len(after[0][BIAS]) + 1)
        numbers += after[2][WEIGHT].numel() + after[2][BIAS].numel()
    assert result["metrics"]["memory_mb"] == pytest.approx(4 * numbers / 1e6)


def test_the_child_with_the_best_reward_is_kept(finished: tuple[dict[str, Any], Path]) -> None:
    _, folder = finished
    events = read_records(folder / "records.jsonl")
    for name, entry in list(Library.open(folder / "library").tasks.items())[1:]:
        episodes = [event for event in events if event["event"] == "episode" and event["task"] == name]
        assert [len(event["added"]) for event in episodes] == [3, 3]
        tried = [(r, a) for event in episodes for r, a in zip(event["rewards"], event["added"], strict=True)]
        found = max(r for r, _ in tried)
        assert entry.info["added"] in [a for r, a in tried if r == found]
        lower = found + LEARNER.alpha * sum(entry.info["added"])
        assert entry.info["val_accuracy"] >= lower - 1e-9, "the whole grid can only raise it"
        trained = [event for event in events if event["event"] == "candidate" and event["task"] == name]
        distinct = {tuple(a) for _, a in tried}
        assert len(trained) == len(distinct) + 1, "each child once; the kept one under the other setting too"
