"""The prior: which past tasks are near a new one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from espalier.errors import InputError
from espalier.learners import MntdpD, Space, prior
from espalier.learners.lesson import Lesson
from espalier.learners.prior import Prior, _evenly, dead_channels, nearest_labels, neighbour_accuracies, recoloured
from espalier.nets import Block, Mode, State, backbone
from espalier.runs import run
from espalier.runs.records import read_records
from espalier.streams import STREAMS, stream
from espalier.streams.task import Split
from espalier.training import PROTOCOLS
from tests.nets_help import lesson, modules, path, random
from tests.small_streams import PROTOCOL, install, settings, small

NET = backbone("tiny", (3, 8, 8), 3)
OLD = modules(NET, "a", "b")
PATHS = {"t1": path("aaaaa", NET), "t2": path("bbbbb", NET), "t3": path("aabbb", NET), "t4": path("aabbb", NET)}


def count_images(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """From now on, how many images pass through the modules of each block."""
    passed: Counter[str] = Counter()

    def counted(block: Block, stack: State, x: Tensor, mode: Mode) -> Tensor:
        passed[block.name] += len(x) * len(next(iter(stack.values())))
        return forward(block, stack, x, mode)

    forward = Block.forward
    monkeypatch.setattr(Block, "forward", counted)
    return passed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    return lesson(tmp_path_factory.mktemp("past"), NET, PATHS, OLD)


# Nearest neighbours


@pytest.mark.parametrize(("known", "classes", "features"), [(100, 2, 3), (100, 10, 8), (57, 30, 2), (5, 3, 4)])
def test_labels_are_those_of_scikit_learn(known: int, classes: int, features: int) -> None:
    draw = random(known + classes)
    x, asked = (torch.randn(count, features, generator=draw) for count in (known, 300))
    y = torch.randint(0, classes, (known,), generator=draw)
    wanted = KNeighborsClassifier(n_neighbors=5).fit(x.numpy(), y.numpy()).predict(asked.numpy())
    assert nearest_labels(x, y, asked, classes).tolist() == wanted.tolist()


def test_fewer_images_than_neighbours_all_vote_and_ties_go_to_the_smaller_label() -> None:
    known, asked = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[4.9]])
    assert nearest_labels(known, torch.tensor([1, 1, 2]), asked, 3).tolist() == [1]
    assert nearest_labels(known, torch.tensor([2, 1, 0]), asked, 3).tolist() == [0]


def test_distances_are_exact_far_from_the_origin() -> None:
    known = 1e4 + torch.arange(20.0)[:, None] / 16
    labels = torch.arange(20) // 10
    assert nearest_labels(known, labels, known[[0, 19]], 2).tolist() == [0, 1]


# Scores


def score(made: Lesson, letters: str) -> float:
    """The accuracy of scikit-learn's classifier on the features before the head."""
    states = [OLD[module] for module in path(letters, NET)[:-1]]
    train, val = made.task.train, made.task.val
    features = [NET.forward(states, made.task.normalise(split.x)).numpy() for split in (train, val)]
    neighbours = KNeighborsClassifier(n_neighbors=5).fit(features[0], train.y.numpy())
    return float(neighbours.score(features[1], val.y.numpy()))


def test_scores_come_in_the_order_of_paths(made: Lesson) -> None:
    letters = ["aaaaa", "bbbbb", "aabba", "aabbb", "abaaa"]
    found = neighbour_accuracies(made, made.task, [path(one, NET) for one in letters])
    assert found == pytest.approx([score(made, one) for one in letters])
    assert len(set(found)) > 1


def test_paths_that_share_their_first_blocks_share_the_passes(made: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_images(monkeypatch)
    images = len(made.task.train) + len(made.task.val)
    neighbour_accuracies(made, made.task, [path(letters, NET) for letters in ("aaaaa", "aabbb", "aabba", "aaaab")])
    assert passes == {"stem": images, "stage1": images, "stage2": 2 * images, "stage3": 2 * images}


# The choice


def scripted(monkeypatch: pytest.MonkeyPatch, *scores: float) -> None:
    def accuracies(made: Lesson, task: object, paths: Sequence[object]) -> list[float]:
        return list(scores)

    monkeypatch.setattr(prior, "neighbour_accuracies", accuracies)


@pytest.mark.parametrize(("k", "wanted"), [(1, ["t2"]), (2, ["t2", "t4"]), (None, ["t2", "t4", "t1"])])
def test_the_best_k_are_chosen_best_first(
    made: Lesson, monkeypatch: pytest.MonkeyPatch, k: int | None, wanted: list[str]
) -> None:
    scripted(monkeypatch, 0.4, 0.9, 0.1, 0.5)
    assert Prior(k=k).choose(made) == [PATHS[name] for name in wanted]


def test_ties_go_to_the_latest_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = OLD | {name.replace("a.", "c.", 1): state for name, state in OLD.items() if name.startswith("a.")}
    paths = {"t1": path("aaaaa", NET), "t2": path("ccccc", NET), "t3": path("aaaac", NET)}
    tied = lesson(tmp_path, NET, paths, twins)
    assert Prior(k=None).choose(tied) == [paths["t3"], paths["t2"], paths["t1"]]
    scripted(monkeypatch, 0.7, 0.5, 0.7)
    assert Prior(k=2).choose(tied) == [paths["t3"], paths["t1"]]


def test_what_was_scored_is_recorded(made: Lesson) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    Prior().choose(replace(made, record=lambda event, what: seen.append((event, what))))
    ((event, what),) = seen
    assert (event, what["kind"]) == ("prior", "nearest")
    assert list(what["scores"]) == list(PATHS)
    assert what["scores"]["t2"] == pytest.approx(score(made, "bbbbb"))
    assert what["scores"]["t3"] == what["scores"]["t4"]


@pytest.mark.parametrize(("kind", "k", "words"), [("neerest", 1, "no prior 'neerest'"), ("nearest", 0, "of 0 paths")])
def test_a_prior_that_cannot_be_is_refused(kind: str, k: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Prior(kind, k)


def test_the_random_prior_is_seeded(made: Lesson) -> None:
    chooser = Prior("random", k=None)
    orders = [chooser.choose(replace(made, seed=seed)) for seed in range(12)]
    assert orders == [chooser.choose(replace(made, seed=seed)) for seed in range(12)]
    assert all(sorted(order) == sorted(set(PATHS.values())) for order in orders)
    assert len({order[0] for order in orders}) > 1
    by_task = [chooser.choose(replace(made, index=index)) for index in range(12)]
    assert len({tuple(order) for order in by_task}) > 1
    assert Prior("random", k=1).choose(made) == chooser.choose(made)[:1]


# Which images


def split(labels: list[int]) -> Split:
    """Images that tell their place."""
    return Split(torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1), torch.tensor(labels))


def test_images_are_taken_evenly_from_the_classes() -> None:
    many = split([0] * 20 + [1] * 5 + [2] * 2)
    taken = _evenly(many, 12)
    assert taken.y.bincount().tolist() == [5, 5, 2]
    assert taken.x.flatten().tolist() == [0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 25, 26]  # the first of each, in order
    assert torch.equal(many.y[taken.x.flatten().long()], taken.y)


def test_a_mixed_split_stays_mixed_and_a_small_one_whole() -> None:
    mixed = split([2, 0, 1, 1, 0, 2, 2, 1, 0])
    assert _evenly(mixed, 6).x.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert _evenly(mixed, 7).y.bincount().tolist() in ([2, 2, 3], [2, 3, 2], [3, 2, 2])
    assert _evenly(mixed, 9) is mixed


def test_at_most_a_thousand_images_are_used(made: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prior, "MOST_IMAGES", 9)
    used: list[tuple[int, int]] = []

    def noted(known: Tensor, labels: Tensor, asked: Tensor, classes: int) -> Tensor:
        used.append((len(known), len(asked)))
        assert labels.bincount().tolist() == [3, 3, 3]
        return nearest_labels(known, labels, asked, classes)

    monkeypatch.setattr(prior, "nearest_labels", noted)
    neighbour_accuracies(made, made.task, [path("aaaaa", NET)])
    assert used == [(9, 9)]


# Recoloured


def test_channels_that_were_constant_are_known_by_their_deviation() -> None:
    assert dead_channels([0.2, 1.0, 0.3]) == (1,)
    assert dead_channels([]) == ()


def test_a_recoloured_task_is_grey_but_for_the_dead_channels() -> None:
    task = stream("s_in_mini", 0)[5]
    view = recoloured(task, (1,))
    normal = view.normalise(view.val.x)
    assert torch.equal(normal[:, 0], normal[:, 2])
    assert normal[:, 1].abs().max() == 0
    assert normal[:, 0].std() > 0.5
    assert torch.equal(view.val.y, task.val.y)


def test_a_past_task_in_other_colours_is_found_when_recoloured(tmp_path: Path) -> None:
    """A first task learned on one background colour, an unrelated one, and the first again on another colour."""
    install()
    looks: dict[str, Any] = {"classes": ("circle", "star", "arrow", "ring", "cross"), "size": 16}
    first = small("shapes", background="red", **looks | {"train": 60, "val": 30})
    last = small("shapes", background="blue", **looks | {"train": 10, "val": 30})
    STREAMS["recoloured_mini"] = (lambda name, seed, data: [first, small("letters", size=16), last], "for this test")
    PROTOCOLS["test"] = replace(PROTOCOL, max_epochs=12)
    asked = settings("mine", stream="recoloured_mini")
    try:
        run(asked, tmp_path, own_learner=MntdpD(Prior("nearest-recoloured"), Space((("suffix", 1),))))
    finally:
        install()
    events = read_records(tmp_path / asked.folder_name / "records.jsonl")
    scores = [e["scores"] for e in events if e["event"] == "prior"][-1]
    assert scores["t1"] > scores["t2"] + 0.1


def test_the_operations_of_the_prior_are_those_of_its_passes(made: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted while it runs, block by block, against what `flops` says beforehand."""
    macs = dict(zip((block.name for block in NET.blocks), made.backbone.macs(), strict=True))
    ran = count_images(monkeypatch)
    for kind in ("nearest", "nearest-recoloured", "random"):
        ran.clear()
        Prior(kind).choose(made)
        assert Prior(kind).flops(made) == 2 * sum(macs[name] * images for name, images in ran.items())
    assert Prior("random").flops(made) == 0
