"""What is made of run folders: rows of figures and the page."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from espalier.cli import app
from espalier.errors import InputError
from espalier.report import Finished, library_svg, page, read_runs, summary, write_page
from tests.report_help import EVIL, one_run, twenty, write_run

# Reading and figures


def test_runs_are_found_below_a_folder_and_sorted(tmp_path: Path) -> None:
    write_run(tmp_path / "deep" / "a", "mntdp-d", seed=10)
    write_run(tmp_path / "b", "mntdp-d", seed=2)
    write_run(tmp_path / "c", "finetune", seed=3)
    unfinished = write_run(tmp_path / "d", "ewc")
    (unfinished / "result.json").unlink()
    found = [(run.result["learner"], run.result["seed"]) for run in read_runs(tmp_path)]
    assert found == [("finetune", 3), ("mntdp-d", 2), ("mntdp-d", 10)]


def test_a_task_has_its_accuracy_when_learned_and_at_the_end(tmp_path: Path) -> None:
    run = one_run(tmp_path, matrix=[[0.9], [0.4, 0.8], [0.3, 0.6, 0.7]])
    assert [(task.learned, task.final) for task in run.tasks] == [(0.9, 0.3), (0.8, 0.6), (0.7, 0.7)]


def last(accuracy: float) -> list[list[float]]:
    return [[0.5], [0.5, 0.5], [0.5, 0.5, accuracy]]


def test_transfer_is_against_independent_of_the_same_stream_seed_backbone_and_protocol(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mntdp-d", seed=1, matrix=last(0.9))
    write_run(tmp_path / "b", "independent", seed=1, matrix=last(0.6))
    write_run(tmp_path / "c", "independent", seed=2, matrix=last(0.1))
    write_run(tmp_path / "d", "independent", seed=1, matrix=last(0.2), stream="s_other")
    write_run(tmp_path / "e", "independent", seed=1, matrix=last(0.3), backbone="resnet")
    write_run(tmp_path / "f", "independent", seed=1, matrix=last(0.4), protocol="paper")
    write_run(tmp_path / "g", "mntdp-d", seed=3, matrix=last(0.9))
    rows = summary(read_runs(tmp_path))
    transfers = {row.seed: row.transfer for row in rows if row.learner == "mntdp-d"}
    assert transfers == {1: pytest.approx(0.3), 3: None}
    assert {row.transfer for row in rows if row.learner == "independent"} == {0.0}


def test_runs_of_one_folder_are_compared_with_each_other(tmp_path: Path) -> None:
    for name, accuracy in (("cpu", 0.5), ("gpu", 0.75)):
        write_run(tmp_path / name / "i", "independent", matrix=last(accuracy))
        write_run(tmp_path / name / "m", "mntdp-d", matrix=last(1.0))
    assert sorted(row.transfer or 0.0 for row in summary(read_runs(tmp_path))) == [0.0, 0.0, 0.25, 0.5]


def test_a_rebuilt_run_stands_behind_the_first_and_is_compared_with_its_like(tmp_path: Path) -> None:
    for name, accuracy in (("a", 0.5), ("b", 0.75)):
        for learner, end in (("independent", accuracy), ("mntdp-d", 1.0)):
            folder = write_run(tmp_path / f"{name} {learner}", learner, matrix=last(end))
            if name == "a":
                asked = json.loads((folder / "run.json").read_text())
                (folder / "run.json").write_text(json.dumps({**asked, "rebuilt_from": {}}))
    rows = [(row.name, row.transfer) for row in summary(read_runs(tmp_path))]
    independent, mntdp = rows[:2], rows[2:]
    assert independent == [("independent", 0.0), ("independent (rebuilt)", 0.0)]
    assert mntdp == [("mntdp-d", 0.25), ("mntdp-d (rebuilt)", 0.5)]


def test_a_row_holds_the_figures_of_the_result(tmp_path: Path) -> None:
    (row,) = summary([one_run(tmp_path, data_complete=False)])
    assert (row.stream, row.learner, row.backbone, row.protocol, row.seed) == (
        "s_minus_mini",
        "mntdp-d",
        "tiny",
        "quick",
        0,
    )
    assert (row.avg_accuracy, row.forgetting, row.lca, row.memory_mb, row.tflops) == (0.5, -0.1, 0.2, 1.5, 0.03)
    assert (row.seconds, row.data_complete) == (12.5, False)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "0"},
        {"learner": None},
        {"metrics": {}},
        {"metrics": {"avg_accuracy": float("nan"), "forgetting": 0, "lca": 0, "memory_mb": 0, "tflops": 0}},
        {"accuracy": []},
        {"accuracy": [[0.5], [0.5, 0.5]]},
        {"accuracy": [[0.5], [0.5], [0.5]]},
        {"accuracy": [[0.5], [0.5, 0.5], [0.5, 0.5, 7]]},
        {"accuracy": [[0.5], [0.5, 0.5], [0.5, 0.5, None]]},
        {"seconds": True},
        {"data_complete": None},
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_run(tmp_path / "run")
    path = folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=re.escape(f"{path} is damaged")):
        read_runs(tmp_path)


@pytest.mark.parametrize("name", ["result.json", "run.json", "library/library.json", "records.jsonl"])
@pytest.mark.parametrize("content", ["{", "[]\n", "[" * 100_000 + "\n", "3\n"])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, name: str, content: str) -> None:
    path = write_run(tmp_path / "run") / name
    if name == "records.jsonl" and content == "{":
        content += "\n"  # a torn last line alone is no damage
    path.write_text(content)
    with pytest.raises(InputError, match=re.escape(str(path))):
        read_runs(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        read_runs(tmp_path / "nowhere")


def candidate(task: str, slots: str, modules: Sequence[str | None], val_accuracy: float) -> dict[str, Any]:
    measured = {"lr": 0.01, "weight_decay": 0.0, "val_accuracy": val_accuracy, "steps": 240}
    return {"event": "candidate", "task": task, "slots": slots, "modules": modules, **measured}


def test_copies_are_those_of_the_candidate_that_was_kept(tmp_path: Path) -> None:
    kept = {"task": "t2", "lr": 0.01, "weight_decay": 0.0, "val_accuracy": 0.7, "steps": 240}
    events = [
        candidate("t2", "rcc", ["t1.stem", "t1.body", "t1.head"], 0.6),
        candidate("t2", "ccf", ["t1.stem", "t1.body", None], 0.7),  # as good, but not the path that was kept
        candidate("t2", "rcf", ["t1.stem", "t1.body", None], 0.7),
        {"event": "learned", **kept, "path": ["t1.stem", "t2.body", "t2.head"]},
    ]
    run = one_run(tmp_path, events=events)
    assert {name: module.copied_from for name, module in run.modules.items() if module.copied_from} == {
        "t2.body": "t1.body"
    }
    assert library_svg(run).count('class="copy"') == 2  # the box, and the legend


# The page


class Tags(HTMLParser):
    """Notes every tag, and that each is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_what_comes_from_data_is_escaped(tmp_path: Path) -> None:
    run = one_run(tmp_path, datasets=[EVIL] * 3, learner=EVIL, stream=EVIL, backbone=EVIL, protocol=EVIL)
    settings = {"hardware": {EVIL: EVIL}, "versions": {EVIL: EVIL}, "data": {EVIL: {EVIL: EVIL}}}
    ET.fromstring(library_svg(run))
    html = page([Finished(run.folder, run.result, settings, run.events, run.tasks, run.blocks, run.modules)], EVIL)
    assert "script" not in Tags(html).seen
    assert html.count("&lt;script&gt;") > 10


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "independent")
    write_run(tmp_path / "b", "mntdp-d", paths=twenty())
    html = page(read_runs(tmp_path), "Two runs")
    tags = Tags(html)
    assert tags.open == []
    assert tags.seen.count("svg") == 2
    assert set(re.findall(r"https?://[^\s\"'<]*", html)) == {"http://www.w3.org/2000/svg"}
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert "url(" not in html
    assert "@import" not in html
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)


def test_the_page_tells_how_a_run_was_made(tmp_path: Path) -> None:
    html = page([one_run(tmp_path, data_complete=False)], "x")
    for fact in ("torch 2.13.0", "cores 2", "state complete, source embedded, note drawn"):
        assert fact in html
    assert "batch 32, flip no, early 1 2, grid of size 2" in html
    assert "not complete" in html


def test_a_taught_library_is_told_as_lessons_with_their_classes(tmp_path: Path) -> None:
    classes = ["daisy", EVIL]
    write_run(
        tmp_path / "my garden", stream="garden", taught=True, datasets=["flowers", "birds", "trees"], classes=classes
    )
    (library,) = read_runs(tmp_path)
    assert library.taught
    html = page([library], "x")
    tags = Tags(html)
    assert (tags.open, "script" in tags.seen) == ([], False)
    assert html.count("daisy, &lt;script&gt;") == 3
    assert "<h2>my garden</h2>" in html
    assert "3 lessons with 3 blocks each" in html
    assert 'class="heat"' not in html
    words = set(re.sub(r"<style>.*</style>", "", html, flags=re.DOTALL).split())
    assert not {"seed", "stream", "stream,", "T:", "F:", "run:"} & words
    ET.fromstring(library_svg(library))


def test_of_many_classes_the_names_are_behind_their_number(tmp_path: Path) -> None:
    run = one_run(tmp_path, stream="garden", taught=True, classes=[f"kind {i}" for i in range(31)])
    html = page([run], "x")
    assert html.count("<details><summary>31 classes</summary>kind 0, kind 1, ") == 3
    assert "93" in re.findall(r"<td>(\d+)</td>", html), "in all"


def test_runs_and_taught_libraries_have_a_table_each(tmp_path: Path) -> None:
    write_run(tmp_path / "my garden", stream="my garden", taught=True)
    write_run(tmp_path / "s_minus", "independent")
    html = page(read_runs(tmp_path), "x")
    assert html.count('<table class="summary">') == 2
    links = re.findall(r'href="#([^"]+)">([^<]+)<', html)
    assert links == [("run-1", "independent"), ("run-2", "my garden")]
    heads = re.findall(r'<section id="([^"]+)">\s*<h2>(my garden|\w+)', html)
    assert heads == links


def test_a_command_makes_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", learner="mntdp-d")
    out = tmp_path / "page.html"
    folders = [str(tmp_path / "runs"), str(tmp_path / "runs" / "a")]
    told = CliRunner().invoke(app, ["page", *folders, "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert out.read_text().count("<svg") == 1, "the same run is shown once"
    (tmp_path / "empty").mkdir()
    told = CliRunner().invoke(app, ["page", str(tmp_path / "empty"), "--out", str(tmp_path / "none.html")])
    assert "no finished run" in str(told.exception)
    assert not (tmp_path / "none.html").exists()


def test_a_page_without_runs_says_so() -> None:
    assert "no finished run" in page([], "x")


def test_the_page_is_written_as_it_is(tmp_path: Path) -> None:
    run = one_run(tmp_path, learner="mntdp-d \ud800")
    write_page([run], tmp_path / "out" / "page.html", "Läufe")
    assert "<h1>Läufe</h1>" in (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another place"):
        write_page([run], tmp_path / "file" / "page.html", "x")
