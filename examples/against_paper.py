"""A picture of finished runs against the paper: average accuracy and transfer, one mark per learner and stream.

    python examples/against_paper.py results docs/against_paper.png

draws what the paper has from left to right and what the runs have upwards; on the line they agree, in the grey band by
0.03. Runs whose figures the paper does not have are left out.
"""

import argparse
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from espalier.report.published import MEAN, published_figures
from espalier.report.table import MAIN, Line, ResultTable, collect, tables

WITHIN = 0.03
SHOWN = {"avg_accuracy": "average accuracy", "transfer": "transfer to the last task"}
PAIRS = plt.get_cmap("tab20").colors
COLOURS = (*PAIRS[::2], *PAIRS[1::2])  # the strong ones first
MARKS = "o^vsDPX*d"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    made = [t for t in tables(collect([options.runs]), published_figures()) if t.columns == MAIN and t.stream != MEAN]
    figure, panels = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    for panel, (key, title) in zip(panels, SHOWN.items(), strict=True):
        draw(panel, made, key, title)
    learners, streams = names(made)
    marks = [plt.Line2D([], [], color=learners[n], marker="o", linestyle="", label=n) for n in learners]
    marks += [plt.Line2D([], [], color="black", marker=streams[n], linestyle="", label=n) for n in streams]
    figure.legend(handles=marks, loc="outside right center", frameon=False)
    figure.savefig(options.picture, dpi=110)


def names(made: list[ResultTable]) -> tuple[dict[str, tuple[float, ...]], dict[str, str]]:
    """A colour for every learner that the paper has too, a mark for every stream."""
    learners = dict.fromkeys(line.learner for table in made for line in table.lines if both(line, "avg_accuracy"))
    streams = dict.fromkeys(table.stream for table in made)
    return dict(zip(learners, cycle(COLOURS), strict=False)), dict(zip(streams, cycle(MARKS), strict=False))


def both(line: Line, key: str) -> tuple[float, float] | None:
    """The paper's figure and ours."""
    figure = line.figures[key]
    if figure.mean is None or figure.published is None:
        return None
    return float(figure.published.value), figure.mean


def draw(panel: Axes, made: list[ResultTable], key: str, title: str) -> None:
    learners, streams = names(made)
    marks = [(line.learner, t.stream, at) for t in made for line in t.lines if (at := both(line, key))]
    values = [value for _, _, at in marks for value in at]
    low, high = min(values) - 0.05, max(values) + 0.05
    panel.fill_between([low, high], [low - WITHIN, high - WITHIN], [low + WITHIN, high + WITHIN], color="0.9", lw=0)
    panel.plot([low, high], [low, high], color="0.6", lw=1)
    for learner, stream, (paper, ours) in marks:
        panel.plot(paper, ours, streams[stream], color=learners[learner], ms=8, mec="white", mew=0.6)
    panel.set(xlim=(low, high), ylim=(low, high), aspect="equal", title=title, xlabel="the paper", ylabel="here")


if __name__ == "__main__":
    main()
