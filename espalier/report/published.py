"""The figures that the paper prints, beside which ours are put. Knows nothing about runs.

They are in `published.csv`, one per row, with our names of streams, learners, backbones and metrics; a `tuning_level`
of `stream` is the paper's dagger. `ctrl-transfer-mean` is its main table: the mean over the five transfer streams.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources

from espalier.nets import split_name

MEAN = "ctrl-transfer-mean"


@dataclass(frozen=True)
class Published:
    """One figure, with the digits that are printed; `stderr` where the paper has several runs."""

    table: str  # its label in the paper
    stream: str
    learner: str
    backbone: str
    tuned_on_stream: bool
    metric: str
    value: Decimal
    stderr: Decimal | None


Figures = Mapping[tuple[str, str, str, str], Published]  # by stream, learner, backbone and metric


def published_figures() -> Figures:
    text = resources.files("espalier.report").joinpath("published.csv").read_text(encoding="utf-8")
    rows = map(_published, csv.DictReader(text.splitlines()))
    return {(row.stream, row.learner, row.backbone, row.metric): row for row in rows}


def find(figures: Figures, stream: str, learner: str, backbone: str, metric: str) -> Published | None:
    """What the paper has for a figure of ours. `s_long@paper` is one of the instances that its `s_long` averages."""
    plain, factor = split_name(backbone)
    if (factor != 1) != (learner == "hat-wide"):  # how wide it was is not printed for every stream; nothing else was
        return None
    return figures.get((stream.removesuffix("@paper"), learner, plain, metric))


def published_learners(figures: Figures, stream: str, backbone: str) -> list[str]:
    """Whom the paper has on a stream with a backbone, in its order."""
    names = dict.fromkeys(learner for _, learner, _, _ in figures)
    return [name for name in names if find(figures, stream, name, backbone, "avg_accuracy")]


def _published(row: Mapping[str, str]) -> Published:
    stderr = Decimal(row["stderr"]) if row["stderr"] else None
    place = row["table"], row["stream"], row["learner"], row["backbone"]
    return Published(*place, row["tuning_level"] == "stream", row["metric"], Decimal(row["value"]), stderr)
