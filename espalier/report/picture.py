"""The library of a run as an SVG: blocks as rows, tasks as columns. Knows nothing about files or pages.

A module is a full box in the column of the task that trained it, and a pale, dashed one of the same colour wherever
it is re-used; a line joins them all. Box, dash, line and label say the same, so it reads without colour too.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from espalier.report.runs import Finished, Module

WIDTH = 960  # what the columns of a long stream are squeezed into, as far as they can be
COLUMN = (30, 84)  # narrowest, widest
BOX, LANE, GAP = 26, 6, 12  # heights: of a box, of a joining line, of the space above a row
LETTER = 6.3  # about the width of one, at font size 11
LONGEST = 26  # letters of a title
SLOPE = math.radians(40)


def library_svg(run: Finished) -> str:
    frame = _frame(run)
    whose = "The library" if run.taught else f"The library of {run.result['learner']} on"
    words = f"{whose} {run.result['stream']}: {len(run.tasks)} tasks"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" '
        f'height="{frame.height}" role="img" aria-label="{_text(words)}" font-family="system-ui, sans-serif" '
        'font-size="11" fill="currentColor">',
        *_columns(run, frame),
        *_rows(frame),
        *_links(run, frame),
        *_boxes(run, frame),
        *_feet(run, frame),
        *_legend(run, frame),
        "</svg>",
    ]
    return "\n".join(parts)


def module_users(run: Finished) -> dict[str, list[int]]:
    """Module -> the indexes of the tasks that use it; modules that no task uses (any more) are not there."""
    users: dict[str, list[int]] = {}
    for index, task in enumerate(run.tasks):
        for module in task.path:
            users.setdefault(module, []).append(index)
    return users


# Where things are


@dataclass(frozen=True)
class _Frame:
    left: float
    top: float  # of the first row's space
    column: float
    slanted: bool  # titles that are wider than their column
    y: dict[str, float]  # block -> top of its boxes
    lanes: dict[str, int]  # module -> its joining line, 0 next to the boxes
    users: dict[str, list[int]]
    index: dict[str, int]  # task -> column
    bottom: float  # of the last row
    changed: bool  # whether a task's accuracy has changed since it was learned
    legend: float  # top of it
    width: int
    height: int

    def centre(self, column: int) -> float:
        return self.left + self.column * (column + 0.5)


def _frame(run: Finished) -> _Frame:
    users = module_users(run)
    left = 16 + LETTER * max(len(_short(block, 16)) for block in (*run.blocks, "when learned"))
    longest = LETTER * max(len(_short(task.dataset, LONGEST)) for task in run.tasks)
    column = _column(WIDTH - left, len(run.tasks))
    slanted = longest > column - 4
    over = longest * math.cos(SLOPE) if slanted else 0  # a slanted title leans over the right edge
    column = _column(WIDTH - left - over, len(run.tasks))
    top = 14 + (longest * math.sin(SLOPE) if slanted else 4)
    lanes: dict[str, int] = {}
    y: dict[str, float] = {}
    edge = top
    for row in reversed(range(len(run.blocks))):  # the head on top: a path grows upward
        here = _lanes({task.path[row]: users[task.path[row]] for task in run.tasks})
        lanes |= here
        edge += GAP + LANE * (max(here.values(), default=-1) + 1)
        y[run.blocks[row]] = edge
        edge += BOX
    width = max(left + column * len(run.tasks) + max(over - column / 2, 0) + 8, 430)
    index = {task.name: i for i, task in enumerate(run.tasks)}
    changed = any(task.learned != task.final for task in run.tasks)
    legend = edge + (69 if changed else 54)
    height = legend + 18 * len(_legend_lines(run, lanes, users))
    size = (math.ceil(width), math.ceil(height))
    return _Frame(left, top, column, slanted, y, lanes, users, index, edge, changed, legend, *size)


def _column(room: float, n_tasks: int) -> float:
    return min(max(room / n_tasks, COLUMN[0]), COLUMN[1])


def _lanes(users: dict[str, list[int]]) -> dict[str, int]:
    """A lane for every shared module of a row; those that would run into each other get different ones."""
    shared = sorted((m for m, u in users.items() if len(u) > 1), key=lambda m: users[m][-1] - users[m][0])
    taken: list[list[tuple[int, int]]] = []
    lanes: dict[str, int] = {}
    for module in shared:
        first, last = users[module][0], users[module][-1]
        free = (i for i, lane in enumerate(taken) if all(last < a or b < first for a, b in lane))
        lane = next(free, len(taken))
        if lane == len(taken):
            taken.append([])
        taken[lane].append((first, last))
        lanes[module] = lane
    return lanes


# What is drawn


def _columns(run: Finished, frame: _Frame) -> Iterator[str]:
    for i, task in enumerate(run.tasks):
        x, height = frame.centre(i), frame.bottom - frame.top
        yield (
            f'<rect x="{x - frame.column / 2 + 2:.1f}" y="{frame.top:.1f}" width="{frame.column - 4:.1f}" '
            f'height="{height + 4:.1f}" rx="6" fill-opacity="0.05"/>'
        )
        turn = f' transform="rotate(-40 {x:.1f} {frame.top - 5:.1f})"' if frame.slanted else ' text-anchor="middle"'
        yield (
            f'<text x="{x:.1f}" y="{frame.top - 5:.1f}"{turn}>{_text(_short(task.dataset, LONGEST))}'
            f"<title>{_text(f'{task.name}: {task.dataset}')}</title></text>"
        )


def _rows(frame: _Frame) -> Iterator[str]:
    for block, y in frame.y.items():
        yield _label(frame.left - 8, y + BOX / 2 + 4, _short(block, 16), "end", 'fill-opacity="0.75"')


def _links(run: Finished, frame: _Frame) -> Iterator[str]:
    for name, lane in frame.lanes.items():
        module, users = run.modules[name], frame.users[name]
        top = frame.y[module.block]
        y = top - 5 - LANE * lane
        drops = "".join(f"M{frame.centre(i):.1f} {y:.1f}V{top:.1f}" for i in users)
        colour = _colour(frame.index[module.trained_by])
        along = f"M{frame.centre(users[0]):.1f} {y:.1f}H{frame.centre(users[-1]):.1f}"
        yield f'<path class="link" d="{along}{drops}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        if frame.index[module.trained_by] in users:
            x = frame.centre(frame.index[module.trained_by])
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def _boxes(run: Finished, frame: _Frame) -> Iterator[str]:
    for i, task in enumerate(run.tasks):
        for name in task.path:
            module = run.modules[name]
            trained = module.trained_by == task.name
            yield f'<g class="module {"trained" if trained else "reused"}" data-module="{_text(name)}">'
            yield f"<title>{_text(_about(module, run, frame))}</title>"
            x, width = frame.centre(i) - frame.column / 2 + 4, frame.column - 8
            colour = _colour(frame.index[module.trained_by])
            yield _box(x, frame.y[module.block], width, colour, trained, trained and module.copied_from is not None)
            ink = 'fill="#fff" font-weight="600"' if trained else ""
            letters = max(int(width / LETTER), 2)
            yield _label(frame.centre(i), frame.y[module.block] + 17, _short(module.trained_by, letters), "middle", ink)
            yield "</g>"


def _box(x: float, y: float, width: float, colour: str, trained: bool, copied: bool, height: float = BOX) -> str:
    look = "" if trained else ' fill-opacity="0.2" stroke-dasharray="4 3"'
    box = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" fill="{colour}" '
        f'stroke="{colour}" stroke-width="1.4"{look}/>'
    )
    corner = f'<path class="copy" d="M{x + width - 9:.1f} {y + 2:.1f}h7v7z" fill="#fff" fill-opacity="0.9"/>'
    return box + (corner if copied else "")


def _about(module: Module, run: Finished, frame: _Frame) -> str:
    users = ", ".join(run.tasks[i].name for i in frame.users[module.name])
    start = f", starting from {module.copied_from}" if module.copied_from else ""
    dataset = run.tasks[frame.index[module.trained_by]].dataset
    values = f"{module.numbers:,} parameters and statistics"
    return f"{module.name}: {values}; trained by {module.trained_by} ({dataset}){start}; used by {users}"


def _feet(run: Finished, frame: _Frame) -> Iterator[str]:
    """Under every column: the task, its test accuracy at the end and, where any has changed, when it was learned."""
    y, faint = frame.bottom + 22, 'fill-opacity="0.75"'
    yield _label(frame.left - 8, y + 16, "test %", "end", faint)
    if frame.changed:
        yield _label(frame.left - 8, y + 31, "when learned", "end", faint)
    digits = 1 if frame.column >= 34 else 0
    for i, task in enumerate(run.tasks):
        x = frame.centre(i)
        yield _label(x, y, _short(task.name, max(int(frame.column / LETTER), 2)), "middle", 'font-weight="600"')
        yield _label(x, y + 16, f"{100 * task.final:.{digits}f}", "middle")
        if frame.changed:
            yield _label(x, y + 31, f"{100 * task.learned:.{digits}f}", "middle", faint)


def _legend(run: Finished, frame: _Frame) -> Iterator[str]:
    for k, (words, trained, copied) in enumerate(_legend_lines(run, frame.lanes, frame.users)):
        y = frame.legend + 18 * k
        yield _box(frame.left, y, 26, "#777777", trained, copied, 13)
        yield _label(frame.left + 34, y + 10.5, words, "start")


def _legend_lines(run: Finished, shared: Iterable[str], used: Iterable[str]) -> list[tuple[str, bool, bool]]:
    """What the boxes mean, of those that there are: words, whether trained, whether copied."""
    lines = [("trained for this task", True, False)]
    if any(run.modules[name].copied_from for name in used):
        lines.append(("trained for this task, from a copy of an older module", True, True))
    if any(shared):
        lines.append(("trained for another task; the line leads there", False, False))
    return lines


def _label(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{_text(words)}</text>'


def _short(words: str, letters: int) -> str:
    return words if len(words) <= letters else words[: letters - 1] + "…"


def _text(words: str) -> str:
    """Safe in XML and HTML, also what neither may hold: control characters and halves of surrogate pairs."""
    return escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", words))


def _colour(index: int) -> str:
    """A colour of its own for each of some twenty tasks, dark enough for white letters: OKLCH, turned to sRGB."""
    lightness, chroma, hue = (0.55, 0.48, 0.6)[index % 3], 0.125, math.radians(250 + 137.508 * index)
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(value, 0.0), 1.0))):02x}" for value in linear)


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else float(1.055 * value ** (1 / 2.4) - 0.055)
