"""Every image of a task is traced back to where it came from: right label, right split, right statistics.

The fake datasets write into each image who it is; where pixels must move, images with pixels all different are used.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from espalier import DataFolder, Dataset, ImageSet, Task, TaskSpec, stream
from espalier.streams import build_task
from espalier.streams.task import SPLITS, Split
from tests.fakes import COUNTS

Words = NDArray[np.uint32]
PAD, SIDE = 2, 16  # an image of 16×16 is padded with 2 before it is cropped
LABELLED = ["s_minus", "s_out", "s_in", "s_long"]


def traced(split: Split) -> Words:
    """(n, 2): the official split's number and the index in it. The darkest channel is the one without background."""
    pixels = np.ascontiguousarray(split.x.numpy().min(axis=1)).reshape(len(split), 16)
    words = pixels.view(np.uint32)
    assert not words[:, 2:].any(), "these are no whole images"
    return words[:, :2]


def true_classes(data: DataFolder, name: str, split: Split) -> list[str]:
    dataset = data.load(name)
    labels = [dataset.splits[source].labels for source in COUNTS[name]]
    return [dataset.class_names[labels[source][index]] for source, index in traced(split)]


def small(spec: TaskSpec) -> TaskSpec:
    """The same images as they are, so that they can be traced."""
    return replace(spec, size=4, channels=1, val_copies=0, permutation=None)


def some_tasks(name: str, data: DataFolder) -> Iterator[Task]:
    specs = stream(name, 1, data).specs
    chosen = list(range(len(specs)))
    if name == "s_long":
        large = [i for i, spec in enumerate(specs) if spec.train == 1000]
        chosen = [large[0], large[-1], next(i for i in chosen if i not in large), 99]
    for index in chosen:
        yield build_task(small(specs[index]), data, 1, name, index)


# Labels


@pytest.mark.parametrize("name", LABELLED)
def test_a_label_is_the_position_of_the_image_s_true_class(name: str, fake_data: DataFolder) -> None:
    for task in some_tasks(name, fake_data):
        for split in SPLITS:
            part: Split = getattr(task, split)
            named = [task.spec.classes[label] for label in part.y]
            assert named == true_classes(fake_data, task.spec.dataset, part), (task.spec.title, split)
            assert set(part.y.tolist()) == set(range(task.n_classes))


@pytest.mark.parametrize("name", LABELLED)
def test_no_image_comes_twice_in_a_task(name: str, fake_data: DataFolder) -> None:
    for task in some_tasks(name, fake_data):
        everything = np.concatenate([traced(getattr(task, split)) for split in SPLITS])
        assert len(np.unique(everything, axis=0)) == len(everything)


def test_s_out_gives_the_same_class_another_label(fake_data: DataFolder) -> None:
    """Traced, not read from the specs: an image of the last task's label k+1 is of the first task's label k."""
    first, *_, last = some_tasks("s_out", fake_data)
    of_class = dict(zip(true_classes(fake_data, "cifar10", first.train), first.train.y.tolist(), strict=True))
    for name, label in zip(true_classes(fake_data, "cifar10", last.train), last.train.y.tolist(), strict=True):
        assert label == (of_class[name] + 1) % 10


# Statistics


def check_statistics(task: Task) -> None:
    exact = task.train.x.double() / 255
    mean, std = exact.mean((0, 2, 3)), exact.std((0, 2, 3), correction=0)
    std[std == 0] = 1  # a background's own channel
    assert torch.allclose(task.mean.flatten().double(), mean, rtol=0, atol=1e-6)
    assert torch.allclose(task.std.flatten().double(), std, rtol=0, atol=1e-6)
    for other in (task.val, task.test):
        x = other.x.double() / 255
        assert not torch.allclose(x.mean((0, 2, 3)), mean, rtol=0, atol=1e-5), "the check tells nothing"
        assert not torch.allclose(x.std((0, 2, 3), correction=0), std, rtol=0, atol=1e-5), "the check tells nothing"


@pytest.mark.parametrize("name", ["s_minus", "s_in", "s_long"])
def test_mean_and_deviation_are_those_of_the_train_images(name: str, fake_data: DataFolder) -> None:
    for task in some_tasks(name, fake_data):
        check_statistics(task)


def test_copies_and_permutations_leave_the_statistics_to_the_train_images() -> None:
    data, spec = noise_folder(8), TaskSpec("mnist", tuple("0123"), 5, 3, size=8)
    check_statistics(build_task(replace(spec, val_copies=4), data, 0, "x"))
    check_statistics(build_task(replace(spec, permutation=1), data, 0, "x"))


# Copies of the val images


def noise_folder(side: int, name: str = "mnist", complete: bool = True, note: str = "") -> DataFolder:
    """A small dataset; in every image of up to 16×16 no two pixels are alike."""
    rng = np.random.RandomState(side)
    splits = {}
    for split, per_class in (("train", 30), ("test", 12)):
        labels = rng.permutation(np.repeat(np.arange(10), per_class))
        pixels = np.stack([rng.permutation(256)[: side * side] for _ in labels]).astype(np.uint8)
        splits[split] = ImageSet(pixels.reshape(-1, side, side, 1), labels, tuple("0123456789"))
    folder = DataFolder("/nonexistent")
    folder.add(Dataset(name, splits, complete, note))
    return folder


def crops(image: NDArray[np.uint8]) -> set[bytes]:
    """All that cropping after padding, and mirroring, can make of an image (channels, side, side)."""
    padded = np.pad(image, ((0, 0), (PAD, PAD), (PAD, PAD)))
    places = range(2 * PAD + 1)
    cut = [padded[:, top : top + SIDE, left : left + SIDE] for top in places for left in places]
    return {made.tobytes() for crop in cut for made in (crop, crop[:, :, ::-1])}


@pytest.mark.parametrize("per_class", [3, 9])
@pytest.mark.parametrize("channels", [1, 3])
def test_val_copies_are_the_same_images_moved_or_mirrored_with_their_labels(per_class: int, channels: int) -> None:
    data, copies = noise_folder(SIDE), 4
    spec = TaskSpec("mnist", tuple("7310529"), 5, per_class, size=SIDE, channels=channels)
    plain = build_task(spec, data, 0, "x", 2)
    task = build_task(replace(spec, val_copies=copies), data, 0, "x", 2)
    n = len(plain.val)
    assert n == 7 * per_class
    assert task.val.x.shape == ((copies + 1) * n, channels, SIDE, SIDE)
    assert torch.equal(task.val.x[:n], plain.val.x), "the images themselves come first"
    assert task.val.y.tolist() == plain.val.y.tolist() * (copies + 1)

    possible = [crops(image.numpy()) for image in plain.val.x]
    made = [image.numpy().tobytes() for image in task.val.x[n:]]
    assert all(copy in possible[i % n] for i, copy in enumerate(made)), "copy k of image i is made of image i"
    originals = [image.numpy().tobytes() for image in plain.val.x]
    assert sum(copy != originals[i % n] for i, copy in enumerate(made)) > 0.9 * len(made)
    unlike = [len({made[k * n + i] for k in range(copies)}) for i in range(n)]
    assert sum(unlike) > 0.9 * len(made), "the copies of an image are made each on its own"
    for split in ("train", "test"):
        assert torch.equal(getattr(task, split).x, getattr(plain, split).x), "only val images are copied"


def test_val_copies_are_mirrored_half_of_the_time_and_moved_everywhere() -> None:
    data = noise_folder(SIDE)
    spec = TaskSpec("mnist", tuple("0123456789"), 5, 10, size=SIDE, channels=1)
    original = build_task(spec, data, 0, "x").val.x.numpy()
    copied = build_task(replace(spec, val_copies=20), data, 0, "x").val.x.numpy()[len(original) :]
    middle = SIDE // 2  # this pixel is in every crop: where it went tells the offset
    found: dict[tuple[bool, int, int], int] = defaultdict(int)
    for number, copy in enumerate(copied):
        image = original[number % len(original)]
        for flipped in (False, True):
            view = copy[0, :, ::-1] if flipped else copy[0]
            for top in range(-PAD, PAD + 1):
                for left in range(-PAD, PAD + 1):
                    part = (slice(middle - 2 - top, middle + 2 - top), slice(middle - 2 - left, middle + 2 - left))
                    kept = image[0, middle - 2 : middle + 2, middle - 2 : middle + 2]
                    found[flipped, top, left] += np.array_equal(view[part], kept)
    assert sum(found.values()) == len(copied) == 2000
    assert len(found) == 50
    assert min(found.values()) > 10
    assert sum(n for (flipped, _, _), n in found.items() if flipped) == pytest.approx(1000, abs=100)


# What is only partly there


def test_a_task_of_a_partial_dataset_says_so() -> None:
    data = noise_folder(4, "mine", complete=False, note="only 300 of 9,000 images")
    task = build_task(TaskSpec("mine", ("4", "2"), 5, 3, size=4), data, 0, "x")
    assert not task.complete
    assert "mine" in task.note
    assert "only 300 of 9,000 images" in task.note


def test_a_task_of_a_whole_dataset_says_nothing() -> None:
    task = build_task(TaskSpec("mine", ("4", "2"), 5, 3, size=4), noise_folder(4, "mine"), 0, "x")
    assert task.complete
    assert task.note == ""


def test_in_a_stream_only_the_tasks_of_the_partial_dataset_say_so(fake_data: DataFolder) -> None:
    data = DataFolder("/nonexistent")
    for name in COUNTS:
        whole = fake_data.load(name)
        data.add(Dataset(name, whole.splits, complete=name != "dtd", note="half of it" if name == "dtd" else ""))
    chosen = stream("s_minus", 0, data)
    tasks = [build_task(small(spec), data, 0, "s_minus", i) for i, spec in enumerate(chosen.specs)]
    assert [(t.spec.dataset, "half of it" in t.note) for t in tasks if not t.complete] == [("dtd", True)]
    assert all(t.note == "" for t in tasks if t.complete)


# Test images


@pytest.mark.parametrize(("dataset", "name"), [("mnist", "1"), ("svhn", "2")])
def test_a_class_is_always_tested_on_the_same_thousand_images(dataset: str, name: str, fake_data: DataFolder) -> None:
    """These classes have more: 1,135 and 4,149."""
    found = []
    for seed, classes, place in [
        (0, (name, "0"), ("a", 0)),
        (0, ("5", "9", name), ("a", 7)),
        (3, ("0", name), ("b", 1)),
    ]:
        task = build_task(TaskSpec(dataset, classes, 5, 3, size=4, channels=1), fake_data, seed, *place)
        of_class = task.test.x[task.test.y == classes.index(name)]
        found.append({tuple(who) for who in traced(Split(of_class, of_class)).tolist()})
    assert len(found[0]) == 1000
    assert found[0] == found[1] == found[2]


def test_train_images_on_the_other_hand_are_drawn_anew(fake_data: DataFolder) -> None:
    spec = TaskSpec("mnist", ("1", "0"), 50, 30, size=4, channels=1)
    for split in ("train", "val"):
        found = [
            {tuple(who) for who in traced(getattr(build_task(spec, fake_data, seed, "a", index), split)).tolist()}
            for seed, index in ((0, 0), (0, 1), (1, 0))
        ]
        assert len(found[0] & found[1]) < 20
        assert len(found[0] & found[2]) < 20


# Permutations


def permutations(task: Task, plain: Task) -> set[tuple[int, ...]]:
    """Where each pixel of each image was before; one, if all images of the task were treated alike."""
    orders = set()
    for split in SPLITS:
        before, after = getattr(plain, split).x.flatten(1), getattr(task, split).x.flatten(1)
        assert torch.equal(getattr(plain, split).y, getattr(task, split).y)
        orders |= {tuple((a[:, None] == b).int().argmax(1).tolist()) for a, b in zip(after, before, strict=True)}
    return orders


def test_one_permutation_for_all_images_of_a_task_another_for_every_task_and_seed() -> None:
    side, data = 6, noise_folder(6)
    orders: list[tuple[int, ...]] = []
    for seed in range(3):
        for index, spec in enumerate(stream("permuted_mnist", seed, data).specs):
            task = build_task(replace(spec, size=side), data, seed, "p", index)
            plain = build_task(replace(spec, size=side, permutation=None), data, seed, "p", index)
            found = permutations(task, plain)
            assert len(found) == 1
            orders += found
    assert all(sorted(order) == list(range(side * side)) for order in orders)
    assert len(set(orders)) == 30
    assert tuple(range(side * side)) not in orders
    stay = np.mean([[at == i for i, at in enumerate(order)] for order in orders])
    assert stay < 0.1, "pixels go anywhere"


# Train and val


@pytest.mark.parametrize("name", ["s_long", "s_in", "permuted_mnist"])
def test_no_image_is_trained_on_here_and_validated_on_there(name: str, fake_data: DataFolder) -> None:
    """Over whole streams and over seeds: the pools are cut once."""
    seen: dict[str, dict[str, list[Words]]] = {split: defaultdict(list) for split in SPLITS}
    for seed in range(2 if name == "permuted_mnist" else 4):
        for index, spec in enumerate(stream(name, seed, fake_data).specs):
            task = build_task(replace(small(spec), test=1), fake_data, seed, name, index)
            for split in SPLITS:
                seen[split][spec.dataset].append(traced(getattr(task, split)))
    for dataset, parts in seen["train"].items():
        train, val, test = (
            np.unique(np.concatenate(p), axis=0) for p in (parts, *(seen[s][dataset] for s in SPLITS[1:]))
        )
        together = np.unique(np.concatenate([train, val, test]), axis=0)
        assert len(together) == len(train) + len(val) + len(test), dataset
