"""The memory of experience replay, and the loss of a step with remembered images."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from espalier import InputError
from espalier.learners.episodic import Memory, reservoir, ring
from espalier.learners.er import Er
from espalier.nets import Backbone, Block, State
from espalier.nets.pieces import Dense
from espalier.training import Fresh, Job, Member, Replay, Rules, Setting
from espalier.training.model import TrieModel
from tests.nets_help import SHORT, doubles, random, task

# The memories.


def test_the_ring_holds_so_many_of_every_class() -> None:
    y = torch.arange(100) % 4
    y[50:] = 0  # of class 3 there are 12, of class 0 there are 63
    chosen = ring(y, 4, 10, random(0))
    assert y[chosen].bincount().tolist() == [10, 10, 10, 10]
    assert len(set(chosen.tolist())) == 40
    assert y[ring(y, 4, 13, random(0))].bincount().tolist() == [13, 13, 12, 12], "all, where there are fewer"
    assert not torch.equal(chosen, ring(y, 4, 10, random(1)))


def chi_square(counts: Tensor, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_reservoir_is_a_uniform_sample_of_all_that_came() -> None:
    """Three tasks of 40, 5 and 15 images, 12 places: each image is held with probability 12/60."""
    rounds, draw, counts = 3000, random(0), torch.zeros(60)
    for _ in range(rounds):
        places, seen = torch.arange(0), 0
        for new in (40, 5, 15):
            coming = torch.cat([places, torch.arange(seen, seen + new)])
            places, seen = coming[reservoir(len(places), seen, new, 12, draw)], seen + new
        assert len(set(places.tolist())) == 12
        counts[places] += 1
    # A count has variance np(1 - p) about np: the sum is expected to be 60 · (1 - 12/60) = 48, its deviation is 9.
    assert chi_square(counts, rounds * 12 / 60) < 48 + 3 * 9


def test_a_reservoir_that_grows_stays_full_and_is_uniform_within_a_task() -> None:
    rounds, draw, counts = 2000, random(0), torch.zeros(80)
    for _ in range(rounds):
        places = reservoir(0, 0, 50, 10, draw)
        coming = torch.cat([places, 50 + torch.randperm(30, generator=draw)])
        places = coming[reservoir(10, 50, 30, 20, draw)]
        assert len(set(places.tolist())) == 20
        counts[places] += 1
    for part in (counts[:50], counts[50:]):
        share = float(part.mean()) / rounds
        count = len(part)
        assert chi_square(part, rounds * share) < (1 - share) * count + 4 * (2 * count) ** 0.5
    # The i-th image puts a given one out with probability 20/i · 1/20; the first 10 of the new ones found room.
    survive = math.prod(1 - 1 / i for i in range(61, 81))
    assert float(counts[:50].sum()) / rounds == pytest.approx(10 * survive, abs=0.1)


def test_a_memory_with_room_keeps_everything() -> None:
    assert reservoir(0, 0, 7, 10, random(0)).tolist() == list(range(7))
    assert reservoir(7, 7, 3, 10, random(0)).tolist() == list(range(10))


def test_a_memory_of_another_image_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"images of shape \(3, 8, 8\).*one shape"):
        Memory.empty(task(size=8)).check_fits(task(size=16))


@pytest.mark.parametrize(
    "wrong", [{"kind": "queue"}, {"per_class": 0}, {"kind": "reservoir", "budget": 0}, {"budget": 9}]
)
def test_options_that_make_no_memory_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Er(**wrong)


# The loss of a step.

LINEAR = Backbone("line", (1, 4, 4), (Block("head", (Dense(16, 6, relu=False),)),))
BARE = replace(SHORT, pad=0, flip=False)


def linear_job(replay: Replay | None, outputs: tuple[int, int] | None, protocol: Any = BARE) -> Job:
    rules = Rules(replay=replay, outputs=outputs)
    return Job(task(classes=2, size=4, channels=1, train=10), LINEAR, {}, protocol, 3, ("made", 2), rules)


def remembered(count: int) -> Replay:
    """Images of two past tasks with two outputs each; the last two are this task's."""
    draw = random(5)
    x = torch.randint(0, 256, (count, 1, 4, 4), generator=draw, dtype=torch.uint8)
    number = torch.arange(count) % 2
    y = torch.where(number == 0, torch.arange(count) % 3 % 2, 2 + torch.arange(count) % 2)
    mean, std = torch.rand(2, 2, 1, 1, 1, generator=draw) + 0.1
    return Replay(x, y, number, mean, std, torch.tensor([True, True]), ((0, 2), (2, 4)))


class Caught(TrieModel):
    """Keeps a step's loss instead of learning from it."""

    def _update(self, loss: Tensor) -> None:
        self.loss = loss


def caught(job: Job, chosen: Tensor) -> tuple[Caught, int]:
    model = Caught(job, [Member((Fresh(),), Setting(0.1, 0.0))])
    return model, model.step(chosen, 0)


def by_hand(head: State, images: list[tuple[Tensor, int, tuple[int, int]]]) -> Tensor:
    """Mean over images of the cross-entropy among the outputs of each one's own task."""
    losses = []
    for x, label, (first, behind) in images:
        logits = head["0.linear.weight"] @ x.flatten() + head["0.linear.bias"]
        losses.append(logits[first:behind].logsumexp(0) - logits[label])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("memory", [3, 30])
def test_the_loss_is_the_mean_over_new_and_remembered_images_each_among_its_own_classes(memory: int) -> None:
    with doubles():
        replay = remembered(memory)
        job = linear_job(replay, (4, 6))
        chosen = torch.tensor([0, 3, 4, 7, 8, 9])
        model, through = caught(job, chosen)
        picked = torch.randint(memory, (min(memory, 6),), generator=job.generator("replay")).tolist()
        assert through == 6 + len(picked)
        train = job.task.train
        images = [(job.task.normalise(train.x[i]), int(train.y[i]) + 4, (4, 6)) for i in chosen]
        for i in picked:
            number = int(replay.task[i])
            x = (replay.x[i].float() / 255 - replay.mean[number]) / replay.std[number]
            images.append((x, int(replay.y[i]), replay.outputs[number]))
        assert model.loss.item() == pytest.approx(by_hand(job.fresh()[-1], images).item(), abs=1e-12)
    assert memory == 3 or len(set(picked)) > 2


def test_without_replay_only_the_tasks_own_outputs_count() -> None:
    with doubles():
        job = linear_job(None, (4, 6))
        model, through = caught(job, torch.arange(4))
        x, y = job.task.normalise(job.task.train.x[:4]), job.task.train.y[:4]
        hand = by_hand(job.fresh()[-1], [(a, int(b) + 4, (4, 6)) for a, b in zip(x, y, strict=True)])
        assert through == 4
        assert model.loss.item() == pytest.approx(hand.item(), abs=1e-12)
        assert model.logits(x).shape == (4, 1, 2)


def test_an_image_gives_no_gradient_to_another_tasks_outputs() -> None:
    """A memory of task 0 alone, a batch of task 2: nothing moves the outputs of task 1."""
    everything = remembered(8)
    first = everything.task == 0
    replay = replace(everything, x=everything.x[first], y=everything.y[first], task=everything.task[first])
    model, _ = caught(linear_job(replay, (4, 6)), torch.arange(5))
    (gradient,) = torch.autograd.grad(model.loss, [model.cells()[0][1].stack["0.linear.weight"]])
    rows = gradient[0].abs().sum(1)
    assert (rows[2:4] == 0).all()
    assert (rows[[0, 1, 4, 5]] > 0).all()


def test_remembered_images_are_drawn_with_replacement_and_all_alike() -> None:
    replay = remembered(4)
    model = Caught(linear_job(replay, (4, 6)), [Member((Fresh(),), Setting(0.1, 0.0))])
    x, y, known = torch.zeros(4, 1, 4, 4), torch.full((4,), 5), replay.normalise(replay.x, replay.task)
    drawn = []
    for _ in range(400):
        batch, labels, own = model._with_replay(replay, x, y)
        assert own.sum(1).tolist() == [2] * 8
        assert own[torch.arange(8), labels].all(), "a label is one of its task's outputs"
        drawn.append([int((known == image).flatten(1).all(1).nonzero()) for image in batch[4:]])
    assert any(len(set(four)) < 4 for four in drawn)
    counts = torch.tensor(drawn).flatten().bincount(minlength=4).double()
    assert chi_square(counts, 400.0) < 16.3, "0.999 quantile with 3 degrees of freedom"


def test_images_of_permuted_tasks_are_not_augmented_and_others_are() -> None:
    images = replace(remembered(40), still=torch.tensor([True, False]))
    flips = replace(BARE, flip=True)
    model = Caught(linear_job(images, (4, 6), flips), [Member((Fresh(),), Setting(0.1, 0.0))])
    known = images.normalise(images.x, images.task).flatten(1)
    mirrored = images.normalise(images.x.flip(3), images.task).flatten(1)
    x, y = torch.zeros(40, 1, 4, 4), torch.full((40,), 5)
    batch, labels, _ = model._with_replay(images, x, y)
    old = batch[40:].flatten(1)
    as_it_was = (old[:, None] == known).all(2).any(1)
    assert as_it_was[labels[40:] < 2].all(), "the first task's images stand still"
    moved = ~as_it_was
    assert 0 < moved.sum() < (labels[40:] >= 2).sum()
    assert (old[moved][:, None] == mirrored).all(2).any(1).all()


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the tensor operations done within it."""

    count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_step_is_as_many_operations_after_many_tasks() -> None:
    def operations(tasks: int) -> int:
        x = torch.randint(0, 256, (tasks, 1, 4, 4), dtype=torch.uint8)
        rows, still = torch.ones(tasks, 1, 1, 1), torch.ones(tasks, dtype=torch.bool)
        number = torch.arange(tasks)
        replay = Replay(x, 0 * number, number, rows, rows, still, ((0, 2),) * tasks)
        model = Caught(linear_job(replay, (4, 6)), [Member((Fresh(),), Setting(0.1, 0.0))])
        counting = Counting()  # type: ignore[no-untyped-call]
        with counting:
            model.step(torch.arange(2), 0)
        return int(counting.count)

    assert operations(40) == operations(2) > 10
