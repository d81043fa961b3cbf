"""The picture of a library."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from espalier.report import library_svg, page
from tests.report_help import BLOCKS, SVG, boxes, one_run, twenty


def test_a_module_of_three_tasks_is_trained_once_and_re_used_twice(tmp_path: Path) -> None:
    svg = library_svg(one_run(tmp_path))
    assert boxes(svg, "trained").count("t1.stem") == 1
    assert boxes(svg, "reused").count("t1.stem") == 2
    assert boxes(svg, "reused").count("t2.body") == 1
    assert len(boxes(svg, "trained") + boxes(svg, "reused")) == 9
    assert svg.count('class="link"') == 2


def test_hovering_tells_a_modules_size_and_users(tmp_path: Path) -> None:
    root = ET.fromstring(library_svg(one_run(tmp_path)))
    titles = {group.attrib["data-module"]: group.findtext(f"{SVG}title") or "" for group in root.iter(f"{SVG}g")}
    assert "1,234" in titles["t1.stem"]
    assert titles["t1.stem"].endswith("trained by t1 (set 1); used by t1, t2, t3")


def test_a_module_that_is_named_after_no_task_belongs_to_its_first_user(tmp_path: Path) -> None:
    paths = [("t1.stem", "t1.body", "t1.head"), ("all.stem", "t1.body", "t2.head"), ("all.stem", "t2.body", "t3.head")]
    modules = one_run(tmp_path, paths=paths, stored=["all.body"]).modules
    trained_by = {name: modules[name].trained_by for name in ("t1.body", "t2.body", "all.stem", "all.body")}
    assert trained_by == {"t1.body": "t1", "t2.body": "t2", "all.stem": "t2", "all.body": "all"}


def test_independent_has_no_links(tmp_path: Path) -> None:
    paths = [[f"t{i}.{block}" for block in BLOCKS] for i in (1, 2)]
    svg = library_svg(one_run(tmp_path, paths=paths))
    assert len(boxes(svg, "trained")) == 6
    assert 'class="link"' not in svg
    assert "another task" not in svg


def test_finetune_shows_the_modules_that_old_tasks_were_pointed_to(tmp_path: Path) -> None:
    paths = [("t3.stem", "t3.body", "t1.head"), ("t3.stem", "t3.body", "t3.head"), ("t3.stem", "t3.body", "t3.head")]
    stored = [f"t{i}.{block}" for i in (1, 2) for block in ("stem", "body")]
    matrix = [[0.9], [0.4, 0.8], [0.125, 0.6, 0.7]]
    run = one_run(tmp_path, learner="finetune", paths=paths, stored=stored, matrix=matrix)
    svg = library_svg(run)
    assert boxes(svg, "trained") == ["t1.head", "t3.stem", "t3.body", "t3.head"]
    assert boxes(svg, "reused") == ["t3.stem", "t3.body", "t3.stem", "t3.body", "t3.head"]
    assert {"12.5", "90.0"} <= {text.text for text in ET.fromstring(svg).iter(f"{SVG}text")}
    assert "4 more are stored that no task uses any more" in page([run], "x")


def test_a_module_whose_trainer_uses_another_by_now_is_still_drawn(tmp_path: Path) -> None:
    paths = [("t1.stem", "t2.body", "t1.head"), ("t1.stem", "t3.body", "t2.head"), ("t1.stem", "t3.body", "t3.head")]
    svg = library_svg(one_run(tmp_path, paths=paths))
    assert "t2.body" in boxes(svg, "reused")


def test_twenty_tasks_fit_and_crossing_lines_do_not_lie_on_each_other(tmp_path: Path) -> None:
    svg = library_svg(one_run(tmp_path, paths=twenty(), datasets=["a rather long dataset title, really"] * 20))
    root = ET.fromstring(svg)
    assert len(boxes(svg, "trained") + boxes(svg, "reused")) == 60
    assert float(root.attrib["width"]) < 1000
    heights = [re.match(r"M\S+ (\S+)H", link.attrib["d"]) for link in root.iter(f"{SVG}path") if link.get("class")]
    assert len({match[1] for match in heights if match}) == 4
    assert all(0 <= float(rect.attrib["x"]) <= float(root.attrib["width"]) for rect in root.iter(f"{SVG}rect"))
