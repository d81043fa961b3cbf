"""Experience replay: the wide head, whole runs, and the memory they need."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from espalier import DataFolder, TaskSpec
from espalier.evaluation import memory_mb, predict
from espalier.learners import Learned, Learner, Lesson
from espalier.learners.episodic import Memory
from espalier.learners.er import Er, cut, kept_numbers, side_by_side
from espalier.library import Library
from espalier.nets import EVAL, Block, backbone
from espalier.nets.pieces import Dense
from espalier.runs import Moment, Settings, run
from espalier.streams import stream
from espalier.streams.registry import STREAMS
from espalier.training.cost import forward_flops
from tests.nets_help import random
from tests.small_streams import install, small, without_times

install()


def permuted_stream(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    return [small("digits", channels=1, permutation=seed) for seed in (1, 2, 3)]


STREAMS["permuted_small_mini"] = (permuted_stream, "for tests")
UNEQUAL = Settings("unequal_mini", "small-er", "tiny", "test")
PERMUTED = Settings("permuted_small_mini", "small-er", "fc-x0.05", "test")


# The wide head.


def test_a_wide_head_cut_says_what_it_said() -> None:
    heads = [Dense(7, outputs, relu=False).init(random(outputs)) for outputs in (3, 2, 4)]
    heads = [{f"0.{name}": tensor for name, tensor in head.items()} for head in heads]
    wide = side_by_side(heads)
    block = Block("head", (Dense(7, 9, relu=False),))
    x = torch.randn(5, 7, generator=random(0))
    said = block.forward({name: tensor[None] for name, tensor in wide.items()}, x, EVAL)
    for head, part in zip(heads, ((0, 3), (3, 5), (5, 9)), strict=True):
        mine = cut(wide, part)
        assert all(torch.equal(mine[name], head[name]) for name in head)
        own = F.linear(x, mine["0.linear.weight"], mine["0.linear.bias"])
        torch.testing.assert_close(own, said[:, slice(*part)])


# Whole runs.


@dataclass
class Watched:
    """Notes what a learner gave back, and the library it was given."""

    inner: Learner
    given: list[Learned] = field(default_factory=list)
    lessons: list[Lesson] = field(default_factory=list)

    def learn(self, lesson: Lesson) -> Learned:
        self.lessons.append(lesson)
        self.given.append(self.inner.learn(lesson))
        return self.given[-1]


Done = tuple[dict[str, Any], Library, Watched, Path]


def do(asked: Settings, learner: Learner, out: Path) -> Done:
    watched = Watched(learner)
    result = run(asked, out, own_learner=watched)
    folder = out / asked.folder_name
    return result, Library.open(folder / "library"), watched, folder


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return do(UNEQUAL, Er(per_class=4), tmp_path_factory.mktemp("unequal"))


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return do(UNEQUAL, Er("reservoir", per_class=4), tmp_path_factory.mktemp("sampled"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return do(PERMUTED, Er(per_class=5), tmp_path_factory.mktemp("shared"))


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [event for event in lines if event["event"] == kind]


def test_it_learns_and_forgets(unequal: Done) -> None:
    result, library, watched, _ = unequal
    assert result["accuracy"][0][0] > 0.3, "chance is 0.2"
    x = stream("unequal_mini")[0].test.x
    before = _logits_of(watched.given[0], watched.lessons[0], x)
    assert not torch.equal(before, predict(library, "t1", x)), "the one network was trained on"


def _logits_of(learned: Learned, lesson: Lesson, x: Tensor) -> Tensor:
    states = [learned.change.modules[module][1] for module in learned.change.tasks[lesson.name].path]
    return lesson.backbone.forward(states, lesson.task.normalise(x))


def test_all_tasks_share_the_trunk_and_have_a_head_each(unequal: Done) -> None:
    _, library, _, folder = unequal
    paths = [entry.path for entry in library.tasks.values()]
    assert {path[:-1] for path in paths} == {("t3.stem", "t3.stage1", "t3.stage2", "t3.stage3")}
    assert [path[-1] for path in paths] == ["t3.head.t1", "t3.head.t2", "t3.head"]
    library.verify()
    assert [e["images"] for e in events(folder, "memory")] == [20, 32, 48]


def test_old_heads_were_trained_on_with_the_memory(unequal: Done) -> None:
    library = unequal[1]
    for old, new in (("t1.head", "t2.head.t1"), ("t2.head.t1", "t3.head.t1"), ("t2.head", "t3.head.t2")):
        assert not torch.equal(library.state(old)["0.linear.bias"], library.state(new)["0.linear.bias"])


def test_the_first_tasks_statistics_are_kept(unequal: Done) -> None:
    library = unequal[1]
    first, last = library.state("t1.stage1"), library.state("t3.stage1")
    for name in first:
        assert torch.equal(first[name], last[name]) == ("running" in name)


def test_the_fresh_part_of_the_head_begins_as_fresh_heads_do(unequal: Done) -> None:
    watched = unequal[2]
    lesson, learned = watched.lessons[2], watched.given[2]
    fresh, begun = lesson.job({}).fresh()[-1], learned.chosen.early[0][-1]
    assert begun is not None
    assert all(torch.equal(begun[name], fresh[name]) for name in fresh)


def test_remembered_images_and_their_statistics_survive_on_disk(unequal: Done) -> None:
    _, library, _, _ = unequal
    memory = Memory(**library.extras()["memory"])
    tasks = [stream("unequal_mini")[i] for i in range(3)]
    assert memory.x.dtype == torch.uint8
    assert memory.y.dtype == memory.task.dtype == torch.int64
    assert memory.mean.dtype == torch.float32
    assert int(memory.seen) == sum(len(t.train) for t in tasks)
    for number, own in enumerate(tasks):
        mine = memory.task == number
        assert memory.y[mine].bincount().tolist() == [4] * own.n_classes
        assert torch.equal(memory.mean[number], own.mean)
        assert torch.equal(memory.std[number], own.std)
        for x, y in zip(memory.x[mine], memory.y[mine], strict=True):
            same = (own.train.x == x).flatten(1).all(1)
            assert (own.train.y[same] == y).any()


def test_heads_may_have_different_numbers_of_classes(unequal: Done) -> None:
    _, library, watched, _ = unequal
    for index, (name, classes) in enumerate((("t1", 5), ("t2", 3), ("t3", 4))):
        assert predict(library, name, stream("unequal_mini")[index].test.x).shape[1] == classes
    learned, lesson = watched.given[1], watched.lessons[1]
    memory = Memory(**lesson.library.extras()["memory"])
    assert memory.replay(((0, 5), (5, 8), (8, 12))).y.max() == 11, "labels count outputs of the whole head"
    assert [len(learned.change.modules[f"t2.{head}"][1]["0.linear.bias"]) for head in ("head.t1", "head")] == [5, 3]


def test_the_curve_and_the_accuracy_are_those_of_the_tasks_own_head(unequal: Done) -> None:
    """At its best step the kept network has the val accuracy that training saw."""
    _, _, watched, _ = unequal
    learned, lesson = watched.given[2], watched.lessons[2]
    val = lesson.task.val
    right = _logits_of(learned, lesson, val.x).argmax(1) == val.y
    assert right.double().mean().item() == pytest.approx(learned.chosen.val_accuracy)


def test_tasks_share_one_head_on_the_fully_connected_backbone(shared: Done) -> None:
    result, library, _, _ = shared
    assert {entry.path for entry in library.tasks.values()} == {("t3.dense1", "t3.dense2", "t3.head")}
    assert len(library.state("t3.head")["0.linear.bias"]) == 5
    memory = Memory(**library.extras()["memory"])
    assert memory.still.tolist() == [1, 1, 1]
    numbers = sum(t.numel() for block in library.tasks["t1"].path for t in library.state(block).values())
    assert result["metrics"]["memory_mb"] == memory_mb(numbers + 75 * (64 + 2))


def test_on_the_fully_connected_backbone_another_number_of_classes_gets_a_head_of_its_own(tmp_path: Path) -> None:
    _, library, _, _ = do(replace(UNEQUAL, backbone="fc-x0.05"), Er(per_class=2), tmp_path)
    assert [entry.path[-1] for entry in library.tasks.values()] == ["t3.head.t1", "t3.head.t2", "t3.head"]


def test_replayed_images_count_as_seen(unequal: Done) -> None:
    """24 train images in batches of 16 and 8, with 20 remembered ones: every epoch sees 48."""
    _, library, watched, folder = unequal
    learned = watched.given[1]
    setting = learned.chosen.member.setting
    steps = [
        e["steps"]
        for e in events(folder, "candidate")
        if e["task"] == "t2" and (e["lr"], e["weight_decay"]) == (setting.lr, setting.weight_decay)
    ]
    assert len(steps) == 1
    assert steps[0] % 2 == 0
    flops = forward_flops(backbone("tiny", (3, 8, 8), 8))
    assert learned.paper_flops == steps[0] // 2 * 48 * flops == library.tasks["t2"].info["paper_flops"]


def test_the_reservoirs_budget_is_that_of_the_ring_or_fixed(sampled: Done, tmp_path: Path) -> None:
    fixed = do(UNEQUAL, Er("reservoir", budget=30), tmp_path)
    for (_, library, _, folder), sizes in ((sampled, [20, 32, 48]), (fixed, [30, 30, 30])):
        assert [e["images"] for e in events(folder, "memory")] == sizes
        memory = Memory(**library.extras()["memory"])
        assert len(memory) == sizes[-1]
        assert set(memory.task.tolist()) == {0, 1, 2}


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("kind", ["ring", "reservoir"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    kind: str, unequal: Done, sampled: Done, tmp_path: Path
) -> None:
    learner, (whole, _, _, folder) = Er(kind, per_class=4), unequal if kind == "ring" else sampled

    def stop(moment: Moment) -> None:
        if (moment.task, moment.step) == (2, 6):
            raise StoppedError

    with pytest.raises(StoppedError):
        run(UNEQUAL, tmp_path, own_learner=learner, watch=stop)
    again = run(UNEQUAL, tmp_path, own_learner=learner)
    assert without_times(again) == without_times(whole)
    assert _files(tmp_path / UNEQUAL.folder_name / "library") == _files(folder / "library")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")}


# What the paper counts.


def paper_mb(name: str, image: tuple[int, int, int], outputs: int, images: int) -> float:
    """Memory of a network with so many outputs in all and a memory of so many images."""
    states = [block.init(random(0)) for block in backbone(name, image, outputs).blocks]
    numbers = torch.zeros(images)
    held = Memory(torch.zeros(images, *image), numbers, numbers, numbers, numbers, numbers, numbers)
    return memory_mb(kept_numbers(states, held))


def test_the_papers_memory_figures() -> None:
    image = (3, 32, 32)
    assert round(paper_mb("resnet", image, 60, 15 * 60), 1) == 13.5, "six tasks"
    assert round(paper_mb("resnet", image, 50, 15 * 50), 1) == 11.7, "five"
    assert round(paper_mb("resnet", image, 100, 15 * 100), 1) == 20.9, "split CIFAR-100"
    assert round(paper_mb("fc", (1, 28, 28), 10, 25 * 100), 1) == 15.0, "permuted MNIST, one head"
