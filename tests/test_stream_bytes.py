"""Same seed, same bytes; and nothing that is validated or tested on is ever trained on."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from espalier import DataFolder, Stream, Task, stream
from espalier.streams.task import SPLITS, build_task

SCRIPT = """
import sys
from espalier import stream
from tests.test_stream_bytes import fingerprint
chosen = stream(sys.argv[1], 5, sys.argv[2])
print(fingerprint(chosen[int(sys.argv[3])]))
"""


def fingerprint(task: Task) -> str:
    digest = hashlib.sha256()
    for split in (task.train, task.val, task.test):
        digest.update(split.x.numpy().tobytes())
        digest.update(split.y.numpy().tobytes())
    digest.update(task.mean.numpy().tobytes() + task.std.numpy().tobytes())
    return digest.hexdigest()


def image_bytes(task: Task, split: str) -> set[bytes]:
    return {image.numpy().tobytes() for image in getattr(task, split).x}


@pytest.mark.parametrize("name", ["s_in_mini", "s_long_mini"])
def test_same_bytes_in_any_order_and_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    forwards = [fingerprint(task) for task in stream(name, 5, tmp_path)]
    again = stream(name, 5, tmp_path)
    backwards = [fingerprint(again[i]) for i in reversed(range(len(again)))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == len(forwards)
    other = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(tmp_path), "3"], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == forwards[3]
    assert fingerprint(stream(name, 6, tmp_path)[3]) != forwards[3]


@pytest.mark.parametrize(("name", "index"), [("s_in_mini", 5), ("s_long_mini", 1), ("permuted_mini", 2)])
def test_a_split_by_itself_has_the_bytes_it_has_in_its_task(name: str, index: int) -> None:
    chosen = stream(name, 1)
    for split in SPLITS:
        whole, alone = getattr(chosen[index], split), chosen.split(index, split)
        assert torch.equal(whole.x, alone.x)
        assert torch.equal(whole.y, alone.y)


def test_real_streams_give_the_same_bytes_twice(real_data: DataFolder) -> None:
    fresh = DataFolder(real_data.path)
    for index in (0, 5):
        assert fingerprint(stream("s_in", 0, real_data)[index]) == fingerprint(stream("s_in", 0, fresh)[index])


@pytest.mark.parametrize("name", ["s_minus_mini", "s_out_mini", "s_plus_mini", "s_pl_mini"])
def test_no_mini_task_trains_on_what_another_is_judged_by(name: str, tmp_path: Path) -> None:
    _assert_disjoint(stream(name, 0, tmp_path))


@pytest.mark.parametrize("name", ["s_minus", "s_plus", "s_out", "s_pl", "split_cifar100"])
def test_no_real_task_trains_on_what_another_is_judged_by(name: str, real_data: DataFolder) -> None:
    _assert_disjoint(stream(name, 0, real_data))


def _assert_disjoint(chosen: Stream) -> None:
    """By content, over the whole stream."""
    seen: dict[str, set[bytes]] = {split: set() for split in SPLITS}
    for task in chosen:
        for split in SPLITS:
            seen[split] |= image_bytes(task, split)
    assert not seen["train"] & seen["val"]
    assert not seen["train"] & seen["test"]
    assert not seen["val"] & seen["test"]


def test_the_two_versions_of_a_task_are_drawn_on_their_own(tmp_path: Path) -> None:
    chosen = stream("s_minus_mini", 0, tmp_path)
    first, last = chosen[0], chosen[5]
    shared = image_bytes(first, "train") & image_bytes(last, "train")
    assert len(shared) < len(last.train)
    assert image_bytes(first, "test") == image_bytes(last, "test")


def test_permuted_tasks_hold_the_same_pixels_in_another_order(fake_data: DataFolder) -> None:
    chosen = stream("permuted_mnist", 0, fake_data)
    small = [replace(spec, size=4, train=3) for spec in chosen.specs[:2]]
    plain, first, second = (
        build_task(spec, fake_data, 0, "permuted") for spec in (replace(small[0], permutation=None), *small)
    )
    for task in (first, second):
        assert torch.equal(task.train.x.flatten(1).sort().values, plain.train.x.flatten(1).sort().values)
        orders = {
            tuple((a != b).tolist()) for a, b in zip(task.train.x.flatten(1), plain.train.x.flatten(1), strict=True)
        }
        assert orders != {(False,) * 16}
    assert not torch.equal(first.train.x, second.train.x)


def test_splits_are_not_sorted_by_label(tmp_path: Path) -> None:
    y = stream("s_minus_mini", 0, tmp_path)[0].train.y
    assert not torch.equal(y, y.sort().values)
    assert len(set(y[:50].tolist())) > 5
