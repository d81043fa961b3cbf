"""MNTDP-S: the steps of the supernet, and the learner on a small stream."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from espalier import InputError
from espalier.learners.mntdp_s import MntdpS
from espalier.learners.prior import Prior
from espalier.nets import State, backbone
from espalier.runs import Moment, run
from espalier.training import Fresh, Job, Reuse, Setting, Trained, fit
from espalier.training.paths import Paths
from espalier.training.supernet import GAMMA, Supernet
from tests.nets_help import close, doubles, job, lesson, modules, quiet, random, same_states
from tests.small_streams import PROTOCOL, install, settings

install()

BLOCKS = ("stem", "stage1", "stage2", "stage3", "head")
A, B = (tuple(f"{name}.{block}" for block in BLOCKS) for name in "ab")
MIXED = (*A[:2], *B[2:])  # branches off A
SETTINGS = [Setting(1e-2, 0.0, path_lr=1e-2), Setting(1e-2, 1e-3, path_lr=0.3), Setting(3e-3, 0.0, path_lr=1e-3)]


def supernet(of: Job, which: Sequence[Setting] = SETTINGS, fix: str = "probability") -> Supernet:
    return Supernet(of, Paths([A], [A]), which, 1.0, fix)


def likely(net: Supernet, place: int, logit: float) -> None:
    """Give every member a Γ that favours the path at a place of `prefixes`."""
    logits = net.cells()[-1][1].stack[GAMMA]
    with torch.no_grad():
        logits[:, net.paths._node, net.paths._choice] = logit * net.paths._taken[:, place]


def test_an_epoch_has_batches_of_both_halves_in_turn_and_all_images_once() -> None:
    made = job(batch=4)
    net = supernet(made)
    batches = net.batches(random(0))
    assert sorted(torch.cat(batches).tolist()) == list(range(20))
    for number, batch in enumerate(batches):
        assert set(batch.tolist()) <= set(net.halves[number % 2].tolist())
    assert [len(batch) for batch in batches] == [4, 3, 4, 3, 3, 3]


def everything(net: Supernet) -> list[dict[str, Tensor]]:
    moments = [{**{f"1{k}": v for k, v in o.first.items()}, "steps": o.steps} for o in net.optimisers]
    cells = [cell.stack for _, cell in net.cells()]
    return [{k: v.detach().clone() for k, v in {**c, **m}.items()} for c, m in zip(cells, moments, strict=True)]


def moved(before: list[dict[str, Tensor]], after: list[dict[str, Tensor]]) -> list[list[bool]]:
    """By cell and member: whether any bit has changed."""
    return [
        [any(not torch.equal(b[name][row], a[name][row]) for name in b) for row in range(len(b["steps"]))]
        for b, a in zip(before, after, strict=True)
    ]


def test_a_weight_step_moves_the_fresh_modules_on_the_path_and_not_a_bit_of_any_other() -> None:
    net = supernet(job())
    order = random(0)
    for place, depth in ((0, 5), (1, 4), (3, 2), (5, 0)):
        likely(net, place, 30.0)  # so likely that it is fixed, and drawn in any case
        before = everything(net)
        net.step(net.batches(order)[0], 0)
        assert moved(before, everything(net)) == [[d >= depth] * 3 for d in range(5)] + [[False] * 3]
    assert net.fixed == [True] * 3


def test_members_with_different_paths_train_side_by_side() -> None:
    net = supernet(job())
    for member, place in enumerate((0, 5, 2)):
        row = net.cells()[-1][1].stack[GAMMA].detach()[member]
        row[net.paths._node, net.paths._choice] = 30 * net.paths._taken[:, place]
    before = everything(net)
    net.step(net.batches(random(0))[1], 1)  # a batch of the second half: all are fixed, so they train on it too
    assert moved(before, everything(net)) == [
        [False, True, False],
        [False, True, False],
        [False, True, False],
        [False, True, True],
        [False, True, True],
        [False, False, False],
    ]


def test_a_path_step_moves_gamma_alone() -> None:
    net = supernet(job())
    before = everything(net)
    net.step(net.batches(random(0))[1], 1)
    assert moved(before, everything(net)) == [[False] * 3] * 5 + [[True] * 3]


def plain(of: Job, net: Supernet, member: int, prefix: tuple[str, ...], x: Tensor) -> Tensor:
    """Logits of one member along one path, through a plain network."""
    states: list[State] = [of.modules[module] for module in prefix]
    states += [{name: t[member] for name, t in cell.stack.items()} for _, cell in net.cells()[len(prefix) : -1]]
    return of.backbone.forward(states, x)


@pytest.mark.parametrize("old", [[A], [A, B, MIXED]])
def test_every_image_is_judged_on_the_path_drawn_for_it(old: list[tuple[str, ...]]) -> None:
    with doubles():
        made = job()
        net = Supernet(made, Paths(old, old), SETTINGS, 1.0, "probability")
        for chosen in net.batches(random(0)):
            net.step(chosen, 0)  # the members become different
        x, y = made.task.normalise(made.task.train.x), made.task.train.y
        drawn = torch.randint(len(net.paths.prefixes), (2, len(x)), generator=random(6))
        rewards = net._rewards(x, y, [0, 2], drawn)
        for row, member in enumerate((0, 2)):
            for place, prefix in enumerate(net.paths.prefixes):
                expected = plain(made, net, member, prefix, x).log_softmax(1)[torch.arange(len(x)), y]
                here = drawn[row] == place
                torch.testing.assert_close(rewards[row][here], expected[here], rtol=0, atol=1e-9)


def test_evaluation_follows_the_likeliest_path_of_each_member() -> None:
    with doubles():
        made = job()
        net = Supernet(made, Paths([A, B, MIXED], [A, B, MIXED]), SETTINGS, 1.0, "probability")
        net.step(net.batches(random(0))[0], 0)
        for member, prefix in enumerate(((), MIXED, B[:3])):
            row = net.cells()[-1][1].stack[GAMMA].detach()[member]
            row[net.paths._node, net.paths._choice] = 3 * net.paths._taken[:, net.paths.prefixes.index(prefix)]
        x = made.task.normalise(made.task.val.x)
        with torch.no_grad():
            said = net.logits(x)
        for member, prefix in enumerate(((), MIXED, B[:3])):
            torch.testing.assert_close(said[:, member], plain(made, net, member, prefix, x), rtol=0, atol=1e-9)


def test_gamma_learns_to_take_the_path_that_predicts() -> None:
    """The old path is one that has learned the task; no entropy, so that nothing holds Γ back."""
    made = job(batch=16, max_epochs=1000)
    learned = Supernet(made, Paths([A], []), [Setting(1e-2, 0.0, path_lr=0.0)], 0.0, "probability")
    likely(learned, 4, 30.0)  # all fresh
    for number in range(40):
        for chosen in learned.batches(random(number)):
            learned.step(chosen, 0)
    states = [{name: t[0].detach() for name, t in cell.stack.items()} for _, cell in learned.cells()[:-1]]
    again = replace(
        made, modules=dict(zip(A, states, strict=True)), seed=8
    )  # other fresh modules than the old ones were
    net = Supernet(again, Paths([A], [A]), [Setting(1e-5, 0.0, path_lr=0.1)], 0.0, "probability")
    for number in range(60):
        net.step(net.batches(random(number))[1], 1)
    assert net.paths.likeliest(net._gamma()) == [0]
    assert net._log_p()[0, 0].exp() > 0.9


@pytest.mark.parametrize("fix", ["probability", "entropy"])
def test_a_sure_member_is_fixed_and_all_are_after_half_of_the_epochs(fix: str) -> None:
    net = supernet(job(max_epochs=4), fix=fix)
    row = net.cells()[-1][1].stack[GAMMA].detach()[1]
    row[net.paths._node, net.paths._choice] = 30 * net.paths._taken[:, 2]
    seen = []
    for _ in range(4):
        batches = net.batches(random(0))
        net.step(batches[0], 0)
        seen.append(list(net.fixed))
    assert seen == [[False, True, False]] * 2 + [[True] * 3] * 2


def test_nobody_stops_before_its_path_is_fixed() -> None:
    """Learning rates of zero: nothing gets better after the start, and patience is one step. Half of six epochs, of two
    steps each, are the search; one epoch later all have stopped."""
    still = [Setting(0.0, 0.0, path_lr=rate) for rate in (0.0, 1e-9)]
    made = job(max_epochs=6, patience=1, batch=20)
    assert [result.steps for result in results(made, still)] == [8, 8]
    assert [result.best_step for result in results(made, still)] == [0, 0]


def results(of: Job, which: Sequence[Setting]) -> list[Trained]:
    return fit(of, supernet(of, which), quiet).results


def test_a_member_learns_the_same_alone_and_in_company() -> None:
    with doubles():
        made = job(max_epochs=6, patience=9)
        together = results(made, SETTINGS)
        for place in (1, 2):
            (alone,) = results(made, [SETTINGS[place]])
            other = together[place]
            assert (alone.val_accuracy, alone.best_step, alone.steps) == (
                other.val_accuracy,
                other.best_step,
                other.steps,
            )
            same_states(alone.states, other.states)
            for mine, theirs in zip(alone.early, other.early, strict=True):
                same_states(mine, theirs)


def test_same_seed_same_bits() -> None:
    made = job()
    for one, two in zip(results(made, SETTINGS), results(made, SETTINGS), strict=True):
        for mine, other in zip(one.states, two.states, strict=True):
            assert mine is not None
            assert other is not None
            close(mine, other, within=0)


def test_operations_are_those_of_what_ran() -> None:
    made = job()
    net = supernet(made)
    macs, first = made.backbone.macs(), made.backbone.input_macs()
    likely(net, 5, 30.0)  # all fresh
    net.step(net.batches(random(0))[0], 0)
    net.logits(made.task.normalise(made.task.val.x))
    assert net.flops() == (2 * 3 * (3 * sum(macs) - first[0]), 2 * 3 * sum(macs))
    likely(net, 2, 30.0)  # three old blocks, once for all members
    net.step(net.batches(random(0))[0], 0)
    net.logits(made.task.normalise(made.task.val.x))
    tail = 3 * sum(macs[3:])
    assert net.flops() == (2 * (sum(macs[:3]) + 3 * tail - 3 * first[3]), 2 * (sum(macs[:3]) + tail))


def test_the_kept_task_is_what_was_evaluated(tmp_path: Path) -> None:
    """Its path through the library, with its new modules, has the validation accuracy that was recorded."""
    net = backbone("tiny", (3, 8, 8), 3)
    given = lesson(tmp_path, net, {"t1": A, "t2": B, "t3": MIXED}, modules(net, "a", "b"))
    for k in (1, None):
        events: list[tuple[str, dict[str, Any]]] = []
        watched = replace(given, record=lambda event, what, seen=events: seen.append((event, what)))  # type: ignore[misc]
        learned = MntdpS(Prior(k=k)).learn(watched)
        path = learned.change.tasks["new"].path
        slots = learned.chosen.member.candidate
        assert [isinstance(slot, Reuse) for slot in slots] == [not module.startswith("new") for module in path]
        assert set(learned.change.modules) == {m for m in path if m.startswith("new")}
        states = [learned.change.modules[m][1] if m.startswith("new") else given.library.state(m) for m in path]
        said = net.forward(states, given.task.normalise(given.task.val.x))
        assert learned.chosen.val_accuracy == (said.argmax(1) == given.task.val.y).double().mean().item()
        assert all(len(early) == 5 and None not in early for early in learned.chosen.early)
        candidates = [what for event, what in events if event == "candidate"]
        taken = [what for event, what in events if event == "path"]
        assert len(candidates) == len(taken) == 2 * 2, "settings × learning rates of Γ"
        for candidate, end in zip(candidates, taken, strict=True):
            assert [name for name in candidate["modules"] if name] == end["modules"]
            assert 0 < end["probability"] <= 1


def test_a_head_that_does_not_fit_is_not_re_used(tmp_path: Path) -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    states = modules(net, "a")
    states["a.head"] = {name: t.repeat(2, *[1] * (t.dim() - 1)) for name, t in states["a.head"].items()}  # 6 classes
    learned = MntdpS().learn(lesson(tmp_path, net, {"t1": A}, states))
    assert isinstance(learned.chosen.member.candidate[-1], Fresh)


def test_a_step_does_the_same_work_after_any_number_of_tasks(tmp_path: Path) -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    states = modules(net, "a", "b")
    flops = []
    for number, paths in enumerate(({"t1": A}, {"t1": A, "t2": B, "t3": MIXED})):
        given = lesson(tmp_path / str(number), net, paths, states)
        chosen = Prior().choose(given)
        made = given.job(states)
        supernet = Supernet(made, Paths(chosen, chosen), SETTINGS, 1.0, "probability")
        supernet.step(supernet.batches(random(0))[1], 1)
        flops.append(supernet.flops()[0])
    assert flops[0] == flops[1]


def test_unknown_ways_to_fix_a_path_are_refused() -> None:
    with pytest.raises(InputError, match="choose probability or entropy"):
        MntdpS(fix="never")


def test_progress_ends_where_it_says_it_will(tmp_path: Path) -> None:
    seen: list[Moment] = []
    run(settings("mntdp-s"), tmp_path, watch=seen.append)
    last = [moment for moment in seen if moment.task == 1 and moment.step]
    assert max(moment.step for moment in last) > PROTOCOL.max_epochs * 3, "it cuts its own batches: four of 40 images"
    assert all(moment.step <= moment.most_steps for moment in last)
