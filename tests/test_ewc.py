"""EWC: the Fisher matrix and the folded penalty against sums written out, the memory of the paper's tables."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from espalier.data.folder import DataFolder
from espalier.errors import InputError
from espalier.learners import Learned, Lesson
from espalier.learners.ewc import Ewc, Folded, fisher_diagonal, fisher_flops, mean_squared_gradients
from espalier.library import Library
from espalier.nets import EVAL, backbone, is_buffer, parameters
from espalier.nets.layers import alone
from espalier.runs import Settings, run, tuned
from espalier.runs.loop import run_in
from espalier.runs.many import run_many
from espalier.runs.order import Order
from espalier.runs.records import read_records
from espalier.streams import stream
from espalier.streams.registry import STREAMS
from tests.nets_help import lesson, modules, random, task
from tests.small_streams import install, settings, small, without_times

install()
TINY = backbone("tiny", (3, 8, 8), 3)


# The penalty


def three_tasks() -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """(Fisher, weights) at the end of three tasks: two tensors of one block."""
    shapes = {"stem/w": (4, 3), "stem/b": (4,)}
    return [
        tuple({n: torch.rand(s, generator=random(10 * t + k)) for n, s in shapes.items()} for k in (0, 1))  # type: ignore[misc]
        for t in range(3)
    ]


@pytest.mark.usefixtures("in_float64")
def test_the_folded_penalty_is_the_sum_over_tasks() -> None:
    folded = Folded()
    for fisher, weights in three_tasks():
        folded = folded.plus(fisher, weights)
    theta = {n: torch.rand(2, *s, generator=random(99)) for n, s in (("w", (4, 3)), ("b", (4,)))}
    written_out = torch.zeros(2)
    for member in range(2):
        for fisher, weights in three_tasks():
            for name in ("w", "b"):
                gap = theta[name][member] - weights[f"stem/{name}"]
                written_out[member] += (fisher[f"stem/{name}"] * gap**2).sum()
    torch.testing.assert_close(folded.distance({"stem": theta}), written_out, rtol=1e-12, atol=0)


@pytest.mark.usefixtures("in_float64")
def test_the_penalty_pulls_towards_the_weighted_mean_of_the_anchors() -> None:
    """One value, two tasks: F 1 at θ 0 and F 3 at θ 4. The sum is least at 3, where it is 1·9 + 3·1 = 12."""
    at = [({"b/w": torch.tensor([f])}, {"b/w": torch.tensor([theta])}) for f, theta in ((1.0, 0.0), (3.0, 4.0))]
    folded = Folded().plus(*at[0]).plus(*at[1])
    theta = torch.tensor([[3.0]], requires_grad=True)
    distance = folded.distance({"b": {"w": theta}})
    assert distance.tolist() == [12.0]
    (slope,) = torch.autograd.grad(distance.sum(), theta)
    assert slope.item() == 0


@pytest.mark.usefixtures("in_float64")
def test_it_is_read_as_it_was_written() -> None:
    folded = Folded().plus(*three_tasks()[0])
    again = Folded.read(folded.written())
    theta = {"stem": {n: torch.rand(2, *s, generator=random(1)) for n, s in (("w", (4, 3)), ("b", (4,)))}}
    assert torch.equal(again.distance(theta), folded.distance(theta))


@pytest.mark.usefixtures("in_float64")
def test_online_decays_the_old_fisher_and_moves_the_anchor(tmp_path: Path) -> None:
    made = lesson(tmp_path, TINY, {}, {})
    states = list(modules(TINY, "a").values())
    nothing = Folded()
    once = Ewc(online=True)._with_this_task(made, nothing, states)
    twice = Ewc(online=True, decay=0.9)._with_this_task(made, once, states)
    summed = Ewc()._with_this_task(made, once, states)
    for name, fisher in once.fisher.items():
        torch.testing.assert_close(twice.fisher[name], 1.9 * fisher)
        torch.testing.assert_close(summed.fisher[name], 2 * fisher)
    assert "head/0.linear.weight" not in once.fisher
    assert not any(is_buffer(name) for name in once.fisher)
    # The anchor of both is where the weights are: no distance from there.
    there = {b.name: {n: t[None] for n, t in s.items()} for b, s in zip(TINY.blocks, states, strict=True)}
    assert abs(float(twice.distance(there))) < 1e-12


# The Fisher matrix


@pytest.mark.usefixtures("in_float64")
def test_the_fisher_diagonal_is_the_mean_of_squared_gradients_one_by_one(tmp_path: Path) -> None:
    made = lesson(tmp_path, TINY, {}, {})
    states = list(modules(TINY, "a").values())
    x = made.task.normalise(made.task.train.x)
    answers = TINY.forward(states, x).argmax(1)
    assert (answers != made.task.train.y).any(), "the network's own answers are taken, not the labels"
    wanted: dict[str, torch.Tensor] = {}
    for image, label in zip(x, answers, strict=True):
        own = [{n: t[None].clone().requires_grad_(not is_buffer(n)) for n, t in s.items()} for s in states]
        out = image[None]
        for block, state in zip(TINY.blocks, own, strict=True):
            out = block.forward(state, out, EVAL)
        F.cross_entropy(out, label[None]).backward()  # type: ignore[no-untyped-call]
        for block, state in zip(TINY.blocks, own, strict=True):
            for name, tensor in state.items():
                if tensor.grad is not None:
                    key = f"{block.name}/{name}"
                    wanted[key] = wanted.get(key, torch.zeros_like(tensor[0])) + tensor.grad[0] ** 2 / len(x)
    found = fisher_diagonal(made, states)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-15)


@pytest.mark.usefixtures("in_float64")
def test_a_softmax_of_one_weight_has_its_fisher_in_closed_form() -> None:
    """fc at width ~0: for a linear head alone the gradient of image x with label y is (p - e_y) x."""
    net = backbone("fc-x0.001", (1, 1, 2), 2)  # two inputs, one unit, one unit, two outputs
    ones = [{n: torch.ones_like(t) for n, t in b.init(random(0)).items()} for b in net.blocks]
    ones[2]["0.linear.weight"] = torch.tensor([[1.0], [-1.0]])
    x, y = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([0])
    hidden = (1 + 2 + 1) + 1.0  # dense1: 4, dense2: 5
    p = torch.softmax(torch.tensor([hidden + 1, -hidden + 1]), 0)
    found = mean_squared_gradients(net, ones, x, y)
    gap = p - torch.tensor([1.0, 0.0])
    torch.testing.assert_close(found["head/0.linear.weight"][:, 0], (gap * hidden) ** 2)
    torch.testing.assert_close(found["head/0.linear.bias"], gap**2)


# Memory


@pytest.mark.parametrize(
    ("online", "tasks", "classes", "megabytes"),
    [
        (False, 6, 10, "31.5"),
        (True, 6, 10, "7.3"),
        (False, 5, 10, "26.7"),
        (True, 5, 10, "7.3"),
        (False, 10, 10, "51.0"),
        (True, 10, 10, "7.3"),
        (True, 100, 5, "7.4"),
    ],
)
def test_memory_is_that_of_the_papers_tables(
    tmp_path: Path, online: bool, tasks: int, classes: int, megabytes: str
) -> None:
    net = backbone("resnet", (3, 32, 32), classes)
    states = [block.init(random(0)) for block in net.blocks]
    trunk = {f"t.{b.name}": s for b, s in zip(net.blocks[:-1], states, strict=False)}
    heads = {f"t{i}.head": states[-1] for i in range(1, tasks)}
    made = lesson(tmp_path, net, {f"t{i}": [*trunk, f"t{i}.head"] for i in range(1, tasks)}, trunk | heads)
    made = type(made)(**{**vars(made), "index": tasks - 1})
    assert f"{4 * Ewc(online=online).memory(made, states) / 1e6:.1f}" == megabytes


def test_with_the_fully_connected_backbone_one_head_is_shared(tmp_path: Path) -> None:
    net = backbone("fc", (1, 28, 28), 10)
    states = [block.init(random(0)) for block in net.blocks]
    made = lesson(tmp_path, net, {}, {})
    made = type(made)(**{**vars(made), "task": task(classes=10), "index": 9})
    assert f"{4 * Ewc(online=True).memory(made, states) / 1e6:.1f}" == "21.6"
    assert Ewc().memory(made, states) == 21 * sum(parameters(s) for s in states), "the paper has 143.7 MB: 20 of them"


# On a stream


def test_a_strong_penalty_holds_the_network_and_a_weak_one_lets_it_go(tmp_path: Path) -> None:
    moved = []
    for strength in (0.0, 1e6):
        run(settings("mine"), tmp_path / str(strength), own_learner=Ewc(strength))
        library = Library.open(tmp_path / str(strength) / settings("mine").folder_name / "library")
        first, second = library.state("t1.stage1")["0.conv1.weight"], library.state("t2.stage1")["0.conv1.weight"]
        moved.append(float((first - second).norm()))
        assert library.tasks["t1"].path[:-1] == library.tasks["t4"].path[:-1], "one trunk"
        assert torch.equal(
            library.state("t1.stem")["0.norm.running_mean"], library.state("t4.stem")["0.norm.running_mean"]
        )
    assert moved[1] < moved[0] / 5


def test_the_strength_is_chosen_on_the_stream_and_the_result_says_so(tmp_path: Path) -> None:
    result = run(settings("ewc"), tmp_path)
    tuning = result["tuning"]
    tried = tuning["avg_val_accuracy"]
    assert set(tried) == {"1", "100"}
    assert tuning["level"] == "stream"
    assert tried[f"{tuning['chosen']:g}"] == max(tried.values()) == result["metrics"]["avg_val_accuracy"]
    assert run(settings("ewc"), tmp_path) == result, "a finished run is not done again"
    folder = tmp_path / settings("ewc").folder_name
    library = Library.open(folder / tuning["folder"] / "library")
    assert library.tasks["t4"].info["memory"] * 4 / 1e6 == pytest.approx(result["metrics"]["memory_mb"])


@pytest.mark.parametrize("name", ["ewc", "online-ewc"])
def test_strengths_share_the_first_task_and_come_to_what_each_comes_to_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, learned, begin, folders = Ewc.learn, [], DataFolder.__init__, []

    def counted(learner: Ewc, lesson: Lesson) -> Learned:
        learned.append(lesson.name)
        return learn(learner, lesson)

    def noted(folder: DataFolder, *given: Any) -> None:
        folders.append(folder)
        begin(folder, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Ewc, "learn", counted)
        patch.setattr(DataFolder, "__init__", noted)
        result = run(settings(name), tmp_path)
    assert len(folders) == 1, "images are read once for all"
    assert sorted(learned) == ["t1", "t2", "t2", "t3", "t3", "t4", "t4"]
    seconds = {}
    for strength in (1.0, 100.0):
        alone = tmp_path / f"{strength:g}"
        learner = Ewc(strength, online=name == "online-ewc")
        run_in(Order(alone, settings(name), learner, stream("small_mini"), "cpu", lambda moment: None))
        tried = tmp_path / settings(name).folder_name / "tried" / f"strength-{strength:g}"
        assert as_learned(tried) == as_learned(alone)
        for event in read_records(tried / "records.jsonl"):
            if event["event"] == "learned":
                seconds[event["task"], strength if event["task"] != "t1" else 0] = event["seconds"]
    assert result["seconds"] == pytest.approx(sum(seconds.values()), abs=0.01)


def as_learned(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in event.items() if "seconds" not in k} for event in read_records(folder / "records.jsonl")]


def test_a_tuned_run_that_was_killed_while_its_first_task_was_shared_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(settings("ewc"), tmp_path / "whole")

    def killed(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", killed)
        with pytest.raises(KeyboardInterrupt):
            run(settings("ewc"), tmp_path / "parts")
    left = tmp_path / "parts" / settings("ewc").folder_name / "tried/strength-1/.library.12345678"
    left.mkdir()  # as of a process that could not clean up
    parts = run(settings("ewc"), tmp_path / "parts")
    assert not left.exists()
    assert without_times(parts) == without_times(whole)


def test_a_head_that_tasks_share_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [small("letters"), small("digits"), small("textures", classes=("dots", "rings", "rays"))]
    monkeypatch.setitem(STREAMS, "shared_mini", (lambda name, seed, data: specs, "5, 5 and 3 classes"))
    asked = settings("mine", stream="shared_mini", backbone="fc-x0.02")
    run(asked, tmp_path, own_learner=Ewc(online=True))
    library = Library.open(tmp_path / asked.folder_name / "library")
    *trunk, head = [parameters(state) for state in library.states("t3")]
    both = parameters(library.states("t1")[-1])
    assert library.tasks["t1"].path[-1] == library.tasks["t2"].path[-1]
    assert library.tasks["t3"].info["memory"] == 3 * sum(trunk) + head + both


def test_a_head_of_other_size_is_no_more_shared(tmp_path: Path) -> None:
    """On dense layers: five classes, then three, then four. What was learned of the first head is dropped."""
    for online in (False, True):
        asked = settings("mine", stream="unequal_mini", backbone="fc-x0.02")
        result = run(asked, tmp_path / str(online), own_learner=Ewc(online=online))
        library = Library.open(tmp_path / str(online) / asked.folder_name / "library")
        assert not any("head" in name for name in library.extras()["ewc"])
        assert [len(row) for row in result["accuracy"]] == [1, 2, 3]


def test_a_tuned_run_that_was_killed_goes_on_and_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(settings("online-ewc"), tmp_path / "whole")
    learn = Ewc.learn

    def killed(learner: Ewc, lesson: Lesson) -> Learned:
        if learner.strength == 100 and lesson.name == "t3":
            raise KeyboardInterrupt
        return learn(learner, lesson)

    with monkeypatch.context() as patch:
        patch.setattr(Ewc, "learn", killed)
        with pytest.raises(KeyboardInterrupt):
            run(settings("online-ewc"), tmp_path / "parts")
    parts = run(settings("online-ewc"), tmp_path / "parts")
    assert without_times(parts) == without_times(whole)
    with pytest.raises(InputError, match="chosen on the stream"):
        run(settings("online-ewc"), tmp_path / "whole", own_learner=Ewc(online=True))


def test_strengths_side_by_side_come_to_what_they_come_to_one_after_another(tmp_path: Path) -> None:
    asked = Settings.of("permuted_mini", "online-ewc", backbone="fc-x0.02")
    alone = run(asked, tmp_path / "alone")
    ((_, together),) = run_many([(asked, None)], tmp_path / "together", workers=3)
    assert {**together, "seconds": alone["seconds"]} == alone
    assert list(run_many([(asked, None)], tmp_path / "together")) == [(asked, together)], "it is not done again"


def test_while_another_process_tries_a_strength_no_other_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def killed(trial: Order) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuned, "run_in", killed)
        with pytest.raises(KeyboardInterrupt):
            run(settings("ewc"), tmp_path)
    tried = tmp_path / settings("ewc").folder_name / "tried"
    before = (tried / "strength-1/records.jsonl").read_bytes()
    with Library.open(tried / "strength-100/library").writer(), pytest.raises(InputError, match="another writer"):
        run(settings("ewc"), tmp_path)
    assert (tried / "strength-1/records.jsonl").read_bytes() == before


def test_a_trial_that_has_begun_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(settings("ewc"), tmp_path)
    (tmp_path / settings("ewc").folder_name / "result.json").unlink()
    tried = tmp_path / settings("ewc").folder_name / "tried"
    begun, first = tried / "strength-1", (tried / "first-task/records.jsonl").read_bytes()
    before = (begun / "records.jsonl").read_bytes()
    assert len(before) > len(first)
    shutil.rmtree(tried / "strength-100")
    monkeypatch.setattr(tuned, "run_in", None)
    with pytest.raises(TypeError):
        run(settings("ewc"), tmp_path)
    assert (begun / "records.jsonl").read_bytes() == before
    assert (tried / "strength-100/records.jsonl").read_bytes() == first


def test_a_tuned_run_needs_its_first_tasks_folder_no_more_once_all_trials_have_begun(tmp_path: Path) -> None:
    whole = run(settings("ewc"), tmp_path)
    folder = tmp_path / settings("ewc").folder_name
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "tried/first-task")
    assert run(settings("ewc"), tmp_path) == whole
    (folder / "result.json").unlink()
    for lost in (folder / "tried").glob("*/records.jsonl"):
        lost.unlink()
    assert run(settings("ewc"), tmp_path) == {**whole, "seconds": 0}


def test_an_untuned_run_does_not_take_the_name_of_a_tuned_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'ewc' names Ewc\(\), its strength chosen on the stream, not Ewc\(\); give"):
        run(settings("ewc"), tmp_path, own_learner=Ewc())


def test_a_half_done_tuned_run_keeps_its_folder_and_goes_on_though_trials_do_not_tell_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tuned, "run_in", None)
        with pytest.raises(TypeError):
            run(settings("ewc"), tmp_path)
    with pytest.raises(InputError, match="chosen on the stream"):
        run(settings("ewc"), tmp_path, own_learner=Ewc())
    folder = tmp_path / settings("ewc").folder_name
    for trial in (folder / "tried").glob("strength-*"):
        (trial / "run.json").unlink()  # as earlier versions left it
    result, whole = run(settings("ewc"), tmp_path), run(settings("ewc"), tmp_path / "whole")
    assert {**result, "seconds": 0} == {**whole, "seconds": 0}


@pytest.mark.usefixtures("in_float64")
def test_the_operations_of_the_fisher_matrix_are_counted(tmp_path: Path) -> None:
    given = lesson(tmp_path, TINY, {}, {})
    states = [block.init(random(5)) for block in TINY.blocks]
    for state in states:
        for name in state:
            state[name].requires_grad_(not is_buffer(name))
    out = given.task.train.x[:1].double()
    with FlopCounterMode(display=False) as counted:
        TINY.forward(states, out)  # for the label
        for block, state in zip(TINY.blocks, states, strict=True):
            out = block.forward(alone(state), out, EVAL)
        F.cross_entropy(out, given.task.train.y[:1]).backward()  # type: ignore[no-untyped-call]
    assert fisher_flops(given) == len(given.task.train) * counted.get_total_flops()
