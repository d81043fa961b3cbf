"""A picture of finished runs against the paper: average accuracy and transfer, one mark per learner and stream.

    python examples/against_paper.py results docs/against_paper.png

draws what the paper has from left to right and what the runs have upwards; on the line they agree, in the grey band by
0.03. Runs whose figures the paper does not have are left out, and transfers with AlexNet: the paper's are against
ResNets. It needs matplotlib.
"""

import argparse
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib import color_sequences
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.typing import ColorType

from espalier.report.published import published_figures
from espalier.report.records import gather, read_recorded
from espalier.report.table import MAIN, Line, ResultTable, tables

WITHIN = 0.03
SHOWN = {"avg_accuracy": "average accuracy", "transfer": "transfer to the last task"}
PAIRS = color_sequences["tab20"]
COLOURS = (*PAIRS[::2], *PAIRS[1::2])  # the strong ones first
SHAPES = "o^vsDPX*d"

Mark = tuple[ColorType, str, tuple[float, float]]  # colour, shape, and where: the paper's figure and ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    runs, _ = gather([options.runs], read_recorded)
    made = [table for table in tables(runs, published_figures()) if table.columns == MAIN]
    lines = [(table, line) for table in made for line in table.lines]
    known = [(name(table, line), table.stream) for table, line in lines if both(table, line, "avg_accuracy")]
    if not known:
        parser.error(f"the paper has no figures for the runs in {options.runs}")
    colours = dict(zip(dict.fromkeys(label for label, _ in known), cycle(COLOURS), strict=False))
    shapes = dict(zip(dict.fromkeys(stream for _, stream in known), cycle(SHAPES), strict=False))
    figure, panels = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    for panel, (key, title) in zip(panels, SHOWN.items(), strict=True):
        marks = [
            (colours[name(table, line)], shapes[table.stream], at)
            for table, line in lines
            if (at := both(table, line, key))
        ]
        draw(panel, marks, title)
    legend = [Line2D([], [], color=colour, marker="o", ls="", label=label) for label, colour in colours.items()]
    legend += [Line2D([], [], color="black", marker=shape, ls="", label=label) for label, shape in shapes.items()]
    figure.legend(handles=legend, loc="outside right center", frameon=False)
    figure.savefig(options.picture, dpi=110)


def name(table: ResultTable, line: Line) -> str:
    return f"{line.learner}, {table.backbone}" if table.backbone == "alexnet" else line.learner


def both(table: ResultTable, line: Line, key: str) -> tuple[float, float] | None:
    """The paper's figure and ours, where both are of the same."""
    figure = line.figures[key]
    if figure.mean is None or figure.published is None or (key == "transfer" and table.backbone == "alexnet"):
        return None
    return float(figure.published.value), figure.mean


def draw(panel: Axes, marks: list[Mark], title: str) -> None:
    values = [value for _, _, at in marks for value in at]
    low, high = min(values) - 0.05, max(values) + 0.05
    panel.fill_between([low, high], [low - WITHIN, high - WITHIN], [low + WITHIN, high + WITHIN], color="0.9", lw=0)
    panel.plot([low, high], [low, high], color="0.6", lw=1)
    for colour, shape, (paper, ours) in marks:
        panel.plot(paper, ours, shape, color=colour, ms=8, mec="white", mew=0.6)
    panel.set(xlim=(low, high), ylim=(low, high), aspect="equal", title=title, xlabel="the paper", ylabel="here")


if __name__ == "__main__":
    main()
