"""Result tables as text, Markdown, CSV or LaTeX. Knows nothing about runs, or where the figures come from."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Column as RichColumn
from rich.table import Table

from espalier.report.table import Column, Figure, Line, ResultTable

TUNED, PARTIAL = "†", "‡"
NATURAL = 10_000  # columns: as wide as the table wants to be


def text(tables: Sequence[ResultTable], width: int = NATURAL) -> str:
    """Where the width does not suffice, cells are broken between words; no number is broken, nothing is left out."""
    out = io.StringIO()
    console = Console(file=out, width=NATURAL, color_system=None, markup=False, emoji=False, highlight=False)
    for number, table in enumerate(tables):
        grid = _grid(table)
        least = [max(map(len, " ".join(column).split())) for column in zip(*grid, strict=True)]
        least[0] = max(len(row[0]) for row in grid)  # a name and its marks stay together
        shown = Table(
            *(RichColumn(title, min_width=n) for title, n in zip(grid[0], least, strict=True)), box=None, pad_edge=False
        )
        for row in grid[1:]:
            shown.add_row(*row)
        console.print("\n" * (number > 0) + table.title)
        console.print(shown, width=max(width, sum(least) + 2 * len(least)))
        console.print("\n".join(_notes(table)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def markdown(tables: Sequence[ResultTable]) -> str:
    parts = []
    for table in tables:
        head, *body = [[cell.replace("|", "\\|") for cell in row] for row in _grid(table)]
        rule = ["---", *("---:" for _ in head[1:])]
        rows = [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
        parts.append("\n".join([f"### {table.title}", "", *rows, "", "<br>\n".join(_notes(table)), ""]))
    return "\n".join(parts)


def latex(tables: Sequence[ResultTable]) -> str:
    r"""Each a `table` with a caption, as wide as the text."""
    parts = [r"% for a document with \usepackage{booktabs} and \usepackage{graphicx}" + "\n"]
    for table in tables:
        head, *body = [f"{' & '.join(map(_tex_cell, row))} \\\\" for row in _grid(table)]
        lines = [
            r"\begin{table}[ht]",
            r"\centering",
            rf"\caption{{{_tex(table.title)}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) + 1)}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}}",
            r"\footnotesize",
            *(rf"\par {_tex(note)}" for note in _notes(table)),
            r"\end{table}",
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def as_csv(tables: Sequence[ResultTable]) -> str:
    """One table of everything: a row per stream, backbone, protocol and learner, rebuilt or not."""
    beside = any(figure.published for table in tables for line in table.lines for figure in line.figures.values())
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    names_of = ("stream", "backbone", "protocol", "learner", "rebuilt")
    for table in tables:
        for line in table.lines:
            rebuilt = str(line.rebuilt).lower() if line.seeds else ""
            place = table.stream, table.backbone, table.protocol, line.learner, rebuilt
            row = rows.setdefault(place, dict(zip(names_of, place, strict=True)))
            row |= {key: value for key, value in _about(line, beside).items() if value or key not in row}
            for column in table.columns:
                row |= _fields(column, line.figures[column.key], beside)
    names = dict.fromkeys(name for row in rows.values() for name in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows.values())
    return out.getvalue()


# CSV


def _about(line: Line, beside: bool) -> dict[str, str]:
    levels = {figure.published.tuned_on_stream for figure in line.figures.values() if figure.published}
    about = {
        "seeds": " ".join(map(str, line.seeds)),
        "tuned": line.tuned,
        "data_complete": str(line.data_complete).lower() if line.seeds else "",
        "hardware": " / ".join(line.hardware),
        "versions": " / ".join(line.versions),
    }
    return about | ({"published_tuning": "stream" if True in levels else "task" if levels else ""} if beside else {})


def _fields(column: Column, figure: Figure, beside: bool) -> dict[str, str]:
    fields = {column.key: _plain(figure.mean), f"{column.key}_sd": _plain(figure.deviation)}
    if beside and column.in_paper:
        value, stderr = (figure.published.value, figure.published.stderr) if figure.published else (None, None)
        fields[f"{column.key}_published"] = "" if value is None else str(value)
        fields[f"{column.key}_published_stderr"] = "" if stderr is None else str(stderr)
    return fields


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


# What the other three share: a grid of words, and the lines below it


def _grid(table: ResultTable) -> list[list[str]]:
    head = ["learner", "seeds", *(column.title for column in table.columns)]
    rows = [
        [_name(line), str(len(line.seeds) or ""), *(_cell(c, line.figures[c.key]) for c in table.columns)]
        for line in table.lines
    ]
    return [head, *rows]


def _name(line: Line) -> str:
    marks = TUNED * bool(line.tuned) + PARTIAL * (not line.data_complete)
    return f"{line.name} {marks}".rstrip()


def _cell(column: Column, figure: Figure) -> str:
    parts = []
    if figure.mean is not None:
        digits = _digits(figure.mean) if column.kind == "amount" else 3
        mean = round(figure.mean, digits) + 0.0  # no -0.000
        parts.append(f"{mean:{'+' if column.kind == 'change' else ''}.{digits}f}")
        if figure.deviation is not None:
            parts.append(f"± {figure.deviation:.{digits}f}")
    if figure.published is not None:
        stderr = "" if figure.published.stderr is None else f" ± {figure.published.stderr}"
        mark = TUNED if figure.published.tuned_on_stream else ""
        sign = "+" if column.kind == "change" and figure.published.value > 0 else ""
        parts.append(f"({sign}{figure.published.value}{stderr}{mark})")
    return " ".join(parts)


def _digits(value: float) -> int:
    """Behind the point, so that three digits count; none from a hundred on."""
    return 2 if value == 0 else min(max(2 - math.floor(math.log10(abs(value))), 0), 6)


def _notes(table: ResultTable) -> list[str]:
    figures = [figure for line in table.lines for figure in line.figures.values()]
    published = [figure.published for figure in figures if figure.published]
    notes = []
    if any(figure.deviation is not None for figure in figures):
        notes.append("±: standard deviation over the seeds.")
    if published:
        error = ", ± its standard error" if any(each.stderr is not None for each in published) else ""
        notes.append(f"In parentheses: the paper's figure{error}.")
    ran = [line.figures["transfer"] for line in table.lines if line.seeds and "transfer" in line.figures]
    if any(figure.mean is None for figure in ran):
        notes.append("No T: independent has not run with the same seed and backbone.")
    # The paper has no independent networks but ResNets and, for permuted images, fully connected ones.
    if any(each.backbone == "alexnet" and each.metric.startswith("transfer") for each in published):
        notes.append("The paper's T of AlexNets is against independent ResNets, ours against the same backbone.")
    if any(line.tuned for line in table.lines) or any(each.tuned_on_stream for each in published):
        notes.append(f"{TUNED}: tuned on the whole stream, with sight of the later tasks.")
    if not all(line.data_complete for line in table.lines):
        partial = sorted({name for line in table.lines if not line.data_complete for name in line.partial})
        which = f": {', '.join(partial)}" if partial else ""
        notes.append(f"{PARTIAL}: only a part of the datasets was there{which}.")
    if any(line.rebuilt for line in table.lines):
        notes.append(
            "Rebuilt: what a run had chosen, trained again; memory, TFLOPs and seconds are those of its search."
        )
    return [*notes, f"{_seeds(table)}; protocol {table.protocol}{''.join(f'; {words}' for words in _made(table))}."]


def _seeds(table: ResultTable) -> str:
    told = _with_users((", ".join(map(str, line.seeds)), line.name) for line in table.lines if line.seeds)
    return f"Seed{'s' * (len(told) > 1 or any(len(line.seeds) > 1 for line in table.lines))} {', '.join(told)}"


def _made(table: ResultTable) -> list[str]:
    """On which machines and with which versions."""
    return _with_users(
        (words, line.name) for line in table.lines if (words := "; ".join((*line.hardware, *line.versions)))
    )


def _with_users(told: Iterable[tuple[str, str]]) -> list[str]:
    """Words of learners, each once; where there are several, with the names of those whose they are."""
    users: dict[str, list[str]] = {}
    for words, learner in told:
        users.setdefault(words, []).append(learner)
    return [words + (f" ({', '.join(names)})" if len(users) > 1 else "") for words, names in users.items()]


# LaTeX

TEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", TUNED: r"$^\dagger$", PARTIAL: r"$^\ddagger$"},
}


def _tex(words: str) -> str:
    return "".join(TEX.get(character, character) for character in words)


def _tex_cell(words: str) -> str:
    """As `_tex`, with a minus where there is one."""
    return re.sub(r"(?<![\w-])-(?=[\d ])", "$-$", _tex(words))
