"""The paper's figures in the package: all of them, under our names."""

import csv
from pathlib import Path

from espalier.learners import LEARNERS
from espalier.report import published_figures
from espalier.report.published import MEAN, find
from espalier.report.table import MAIN, TRANSFERS
from espalier.runs.settings import Settings
from espalier.streams import STREAMS


def test_the_papers_names_are_ours() -> None:
    figures = published_figures()
    assert {stream for stream, _, _, _ in figures} - {MEAN} <= set(STREAMS)
    assert {learner for _, learner, _, _ in figures} <= set(LEARNERS)
    ours = {column.key for column in (*MAIN, *TRANSFERS)} | {"acc_first", "acc_last", "delta"}
    assert {metric for _, _, _, metric in figures} <= ours


def test_every_learner_of_the_paper_is_found_by_its_usual_backbone() -> None:
    figures = published_figures()
    for stream, learner, _, metric in figures:
        if stream != MEAN:
            assert find(figures, stream, learner, Settings.of(stream, learner).backbone, metric)
    assert find(figures, "s_minus", "mntdp-d", "resnet-3", "avg_accuracy") is None
    assert find(figures, "s_minus", "mntdp-d", "alexnet-x2.5", "avg_accuracy") is None


def test_no_figure_was_lost_from_the_papers_tables(paper_files: Path) -> None:
    rows = list(csv.DictReader((paper_files / "results.csv").read_text().splitlines()))
    figures = published_figures()
    assert len(figures) == len(rows)
    for row in rows:
        stream = row["stream"].replace("-", "_") if row["stream"] != MEAN else MEAN
        ours = figures[stream, row["learner"], row["backbone"], row["metric"].replace("lca5", "lca")]
        assert (str(ours.value), "" if ours.stderr is None else str(ours.stderr)) == (row["value"], row["stderr"])
        assert ours.tuned_on_stream == (row["tuning_level"] == "stream")
