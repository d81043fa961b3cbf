"""The streams are the paper's: datasets, order, sizes and classes of every task."""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from espalier import DataFolder, stream
from espalier.streams import STREAMS, TaskSpec, build_task
from espalier.streams.long import PAPER, s_long_paper
from espalier.streams.registry import Stream

# The paper's table of streams: (dataset, train, val) of every task.
SMALL = {d: (d, 400, 200) for d in ("mnist", "dtd", "fashion-mnist", "svhn", "cifar10")}
LARGE_CIFAR = ("cifar10", 4000, 2000)
MIDDLE = [SMALL["dtd"], SMALL["fashion-mnist"], SMALL["svhn"]]
TRANSFER = {
    "s_minus": [LARGE_CIFAR, SMALL["mnist"], *MIDDLE, SMALL["cifar10"]],
    "s_plus": [SMALL["cifar10"], SMALL["mnist"], *MIDDLE, LARGE_CIFAR],
    "s_in": [("mnist", 4000, 2000), SMALL["cifar10"], *MIDDLE, ("mnist", 50, 30)],
    "s_out": [LARGE_CIFAR, SMALL["mnist"], *MIDDLE, SMALL["cifar10"]],
    "s_pl": [SMALL["mnist"], *MIDDLE, LARGE_CIFAR],
}
TEST_IMAGES = {"cifar10": 10000, "fashion-mnist": 10000, "svhn": 10000, "dtd": 400, "mnist": 9786}


def small_images(chosen: Stream) -> Stream:
    """The same stream at 4×4 pixels: sizes and classes are what is tested."""
    return replace(chosen, specs=tuple(replace(s, size=4) for s in chosen.specs))


@pytest.mark.parametrize("name", TRANSFER)
def test_transfer_streams_have_the_paper_s_datasets_and_sizes(name: str, fake_data: DataFolder) -> None:
    tasks = list(small_images(stream(name, 3, fake_data)))
    assert [(t.spec.dataset, len(t.train), len(t.val)) for t in tasks] == TRANSFER[name]
    assert [len(t.test) for t in tasks] == [TEST_IMAGES[t.spec.dataset] for t in tasks]
    assert all(t.n_classes == 10 and t.complete for t in tasks)
    for task in tasks:
        assert len({Counter(task.train.y.tolist())[c] for c in range(10)}) == 1, "classes are balanced"


def test_s_minus_and_s_plus_end_with_the_first_task_and_its_labels(fake_data: DataFolder) -> None:
    for name in ("s_minus", "s_plus"):
        first, *_, last = stream(name, 3, fake_data).specs
        assert first.classes == last.classes


def test_s_out_moves_every_label_on_by_one(fake_data: DataFolder) -> None:
    first, *_, last = stream("s_out", 3, fake_data).specs
    for label, name in enumerate(first.classes):
        assert last.classes.index(name) == (label + 1) % 10


@pytest.mark.parametrize("seed", range(6))
def test_s_in_changes_the_background(seed: int, fake_data: DataFolder) -> None:
    first, *middle, last = stream("s_in", seed, fake_data).specs
    assert first.classes == last.classes
    assert first.background != last.background
    assert {first.background, last.background} <= {"red", "green", "blue"}
    assert all(s.background is None for s in middle)


def test_other_seeds_choose_other_classes_and_colours(fake_data: DataFolder) -> None:
    seeds = [stream("s_in", seed, fake_data).specs for seed in range(12)]
    assert len({s[2].classes for s in seeds}) == 12
    assert {s[0].background for s in seeds} == {"red", "green", "blue"}


def test_s_long_is_drawn_as_the_paper_says(fake_data: DataFolder) -> None:
    chosen = stream("s_long", 0, fake_data)
    assert len(chosen) == 100
    assert set(chosen.datasets()) == {"mnist", "svhn", "cifar10", "fashion-mnist", "cifar100"}
    assert all(len(set(s.classes)) == 5 and s.val_copies == 4 for s in chosen.specs)
    assert all((s.train, s.val) in ((1000, 500), (5, 3)) for s in chosen.specs)

    def large(specs: tuple[TaskSpec, ...]) -> int:
        return sum(s.train == 1000 for s in specs)

    assert large(chosen.specs[66:]) == 0
    many = [stream("s_long", seed, fake_data).specs for seed in range(40)]
    assert sum(large(s[:33]) for s in many) / (40 * 33) == pytest.approx(0.5, abs=0.05)
    assert sum(large(s[33:66]) for s in many) / (40 * 33) == pytest.approx(0.25, abs=0.05)
    share = Counter(spec.dataset for specs in many for spec in specs)
    assert all(share[d] / 4000 == pytest.approx(0.2, abs=0.03) for d in PAPER.datasets)


def test_s_long_paper_has_all_hundred_rows(fake_data: DataFolder) -> None:
    """Every row of the printed table: dataset, classes in their order, and the three sizes, by building the tasks."""
    table = Path("espalier/streams/s_long_paper.csv").read_text()
    _check_rows(table, fake_data)


def test_the_repository_s_table_is_the_paper_s(paper_files: Path) -> None:
    assert Path("espalier/streams/s_long_paper.csv").read_text() == (paper_files / "s_long_tasks.csv").read_text()


def test_the_transfer_table_is_the_paper_s(paper_files: Path) -> None:
    """The numbers above against the LaTeX table itself."""
    titles = {"Cifar-10": "cifar10", "MNIST": "mnist", "R-MNIST": "mnist", "DTD": "dtd", "F-MNIST": "fashion-mnist"}
    titles["SVHN"] = "svhn"
    lines = (paper_files / "paper.tex").read_text().splitlines()

    def cells(word: str) -> list[list[str]]:
        rows = [line for line in lines if f"\\textbf{{{word}}}" in line and line.count("&") == 7]
        return [[c.split("\\\\")[0].strip() for c in row.split("&")[2:] if c.split("\\\\")[0].strip()] for row in rows]

    columns = zip(cells("Datasets"), cells("\\# Train Samples"), cells("\\# Val Samples"), strict=True)
    printed = [[(titles[d], int(n), int(v)) for d, n, v in zip(*rows, strict=True)] for rows in columns]
    assert printed == list(TRANSFER.values())


def _check_rows(table: str, data: DataFolder) -> None:
    specs = s_long_paper("s_long@paper", 0, data)
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == len(specs) == 100
    for index, (row, spec) in enumerate(zip(rows, specs, strict=True)):
        assert (spec.dataset, "|".join(spec.classes)) == (row["dataset"], row["classes"])
        task = build_task(replace(spec, size=4, val_copies=0), data, 0, "s_long@paper", index)
        sizes = {"train": len(task.train), "val": len(task.val), "test": len(task.test)}
        assert sizes == {key: int(row[key]) for key in sizes}, f"task {row['task']}"


def test_s_long_paper_on_real_images(real_data: DataFolder) -> None:
    """The same with the packs, for the datasets that are whole enough (SVHN's pack is not)."""
    rows = list(csv.DictReader(Path("espalier/streams/s_long_paper.csv").read_text().splitlines()))
    for row, task in zip(rows, stream("s_long@paper", 0, real_data), strict=True):
        if task.spec.dataset != "svhn":
            sizes = len(task.train), len(task.val) // 5, len(task.test)
            assert sizes == (int(row["train"]), int(row["val"]), int(row["test"])), f"task {row['task']}"


def test_classic_streams(fake_data: DataFolder) -> None:
    permuted = stream("permuted_mnist", 0, fake_data)
    assert len({s.permutation for s in permuted.specs}) == len(permuted) == 10
    assert {(s.size, s.channels, len(s.classes)) for s in permuted.specs} == {(28, 1, 10)}
    split = small_images(stream("split_cifar100", 0, fake_data))
    assert len({c for s in split.specs for c in s.classes}) == 100
    assert {(len(t.train), len(t.val), len(t.test)) for t in split} == {(4500, 500, 1000)}


@pytest.mark.parametrize("name", [n for n in STREAMS if n.startswith("s_") and n.endswith("_mini")])
def test_mini_streams_mirror_the_large_ones(name: str, tmp_path: Path) -> None:
    mini = stream(name, 1, tmp_path)
    assert len(mini) == (20 if name == "s_long_mini" else 5 if name == "s_pl_mini" else 6)
    for task in mini:
        assert task.train.x.shape[1:] == (3, 16, 16)
        assert len(task.train) == task.n_classes * (task.spec.train or 0) or task.spec.dataset == "digits"
