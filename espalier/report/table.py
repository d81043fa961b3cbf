"""Result tables of finished runs, the paper's figures beside ours, as plain data. Knows nothing about how they look.

For every stream, backbone and protocol a table of figures and one of the tasks' accuracies, a line per learner; then
the mean over the five transfer streams, for those learners that have run on all five. Runs that were rebuilt have lines
of their own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, TypeVar

from espalier.errors import InputError
from espalier.learners import LEARNERS
from espalier.report.published import MEAN, Figures, Published, find, published_learners
from espalier.report.records import Recorded, learner_name, part, task_titles
from espalier.report.runs import Row, summary
from espalier.streams import STREAMS

FIVE = ("s_minus", "s_plus", "s_in", "s_out", "s_pl")
FIRST_AGAIN = FIVE[:4]  # their last task is the first again, in some way
MOST_TASKS = 12  # of longer streams the thirds are shown


@dataclass(frozen=True)
class Column:
    """`share` is a number from 0 to 1, `change` a difference of two, `amount` any number."""

    key: str
    title: str
    kind: Literal["share", "change", "amount"]
    in_paper: bool = True


@dataclass(frozen=True)
class Figure:
    """Mean and standard deviation over the seeds, None where there is none, and what the paper has."""

    mean: float | None
    deviation: float | None
    published: Published | None


@dataclass(frozen=True)
class Line:
    """A learner's figures by column. Without seeds it has not run: only the paper has it."""

    learner: str
    rebuilt: bool
    seeds: tuple[int, ...]
    tuned: str  # what was chosen on the whole stream
    data_complete: bool
    partial: tuple[str, ...]  # datasets of which only a part was there
    hardware: tuple[str, ...]  # as the runs themselves say, each once
    versions: tuple[str, ...]
    figures: Mapping[str, Figure]

    @property
    def name(self) -> str:
        return learner_name(self.learner, self.rebuilt)


@dataclass(frozen=True)
class ResultTable:
    title: str
    stream: str
    backbone: str
    protocol: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]


MAIN = (
    Column("avg_accuracy", "A", "share"),
    Column("forgetting", "F", "change"),
    Column("transfer", "T", "change"),
    Column("lca", "LCA", "share"),
    Column("memory_mb", "memory MB", "amount"),
    Column("tflops", "TFLOPs", "amount"),
    Column("seconds", "seconds", "amount", in_paper=False),
)
MEANS = tuple(column for column in MAIN if column.key != "transfer")
TRANSFERS = tuple(Column(f"transfer_{stream}", f"T {stream}", "change") for stream in FIVE)

Values = dict[str, float | None]  # the figures of one run


@dataclass(frozen=True)
class _Run:
    """A run, or the mean of several, which are then all in `recorded`."""

    recorded: tuple[Recorded, ...]
    row: Row
    values: Values


def tables(runs: Sequence[Recorded], published: Figures, all_published: bool = False) -> list[ResultTable]:
    """`published` may be empty; with `all_published`, learners that only the paper has run have a line too."""
    _check_once(runs)
    known = [_Run((run,), row, _values(run, row)) for run, row in zip(runs, summary(runs), strict=True)]
    made = []
    for (stream, backbone, protocol), here in _grouped(known, lambda row: (row.stream, row.backbone, row.protocol)):
        title = f"{stream}, {backbone}, protocol {protocol}"
        for more, columns in (("", MAIN), (": test accuracy of the tasks at the end", _task_columns(stream, here))):
            lines = [_line(own, columns, published) for own in _by_learner(here)]
            if all_published:
                lines += _only_published(lines, columns, published, stream, backbone)
            made.append(ResultTable(title + more, stream, backbone, protocol, columns, tuple(lines)))
    return made + [table for family in ("", "_mini") for table in _mean_tables(known, family, published, all_published)]


def _check_once(runs: Sequence[Recorded]) -> None:
    """The same run from two machines would look like two seeds."""
    seen: dict[tuple[object, ...], Path] = {}
    for run in runs:
        key = (*(run.result[word] for word in ("stream", "learner", "backbone", "protocol", "seed")), run.rebuilt)
        if key in seen:
            raise InputError(f"{seen[key]} and {run.folder} are the same run; name folders with only one of them.")
        seen[key] = run.folder


# The figures of one run


def _values(run: Recorded, row: Row) -> Values:
    end, n = run.result["accuracy"][-1], len(run.result["accuracy"])
    first = run.result["accuracy"][0][0]  # the paper's: when it was learned, whatever was forgotten later
    values: Values = {column.key: getattr(row, column.key) for column in MAIN}
    values |= {"acc_first": first, "acc_last": end[-1], "delta": end[-1] - first}
    values |= {f"task_{i + 1}": value for i, value in enumerate(end)}
    if n > MOST_TASKS:
        values |= {f"third_{k + 1}": fmean(end[k * n // 3 : (k + 1) * n // 3]) for k in range(3)}
    return values


def _task_columns(stream: str, here: Sequence[_Run]) -> tuple[Column, ...]:
    n = len(here[0].recorded[0].result["accuracy"])
    titles = _titles(here, n)
    last = Column("acc_last", titles[-1], "share")
    if n > MOST_TASKS:
        thirds = (Column(f"third_{k}", f"{k}. third, mean", "share", in_paper=False) for k in (1, 2, 3))
        return (Column("task_1", titles[0], "share", in_paper=False), *thirds, last)
    columns = [Column(f"task_{i + 1}", titles[i], "share", in_paper=False) for i in range(n - 1)]
    if stream.removesuffix("_mini") not in FIRST_AGAIN:
        return (*columns, last)
    again = Column("acc_first", "t1 when learned", "share"), Column("delta", f"t{n} - t1 when learned", "change")
    return (*columns, last, *again)


def _titles(here: Sequence[_Run], n: int) -> list[str]:
    """Numbers, and what each task is about; in some streams that depends on the seed."""
    told = [titles for run in here if len(titles := task_titles(run.recorded[0])) == n]
    about = [" / ".join(sorted({titles[i] for titles in told})) for i in range(n)]
    return [f"t{i + 1} {each}".rstrip() for i, each in enumerate(about)]


# Lines and tables


def _line(runs: Sequence[_Run], columns: Sequence[Column], published: Figures) -> Line:
    row = runs[0].row
    figures = {
        column.key: _figure(
            [run.values.get(column.key) for run in runs],
            find(published, row.stream, row.learner, row.backbone, column.key),
        )
        for column in columns
    }
    seeds = tuple(run.row.seed for run in runs)
    chosen = " / ".join(dict.fromkeys(run.row.tuned for run in runs if run.row.tuned))
    complete = all(run.row.data_complete for run in runs)
    made = [recorded.settings for run in runs for recorded in run.recorded]
    how = chosen, complete, _partial(made), _hardware(made), _versions(made)
    return Line(row.learner, row.rebuilt, seeds, *how, figures)


def _figure(values: Sequence[float | None], published: Published | None) -> Figure:
    """Nothing unless every seed has it: a mean over other seeds than the line says would mislead."""
    there = [value for value in values if value is not None]
    if not there or len(there) < len(values):
        return Figure(None, None, published)
    return Figure(fmean(there), stdev(there) if len(there) > 1 else None, published)


def _only_published(
    lines: Sequence[Line], columns: Sequence[Column], published: Figures, stream: str, backbone: str
) -> list[Line]:
    ours = {line.learner for line in lines}

    def known(name: str, key: str) -> Published | None:
        return find(published, stream, name, backbone, key)

    return [
        Line(name, False, (), "", True, (), (), (), {c.key: _figure([], known(name, c.key)) for c in columns})
        for name in published_learners(published, stream, backbone)
        if name not in ours
    ]


def _mean_tables(runs: Sequence[_Run], family: str, published: Figures, all_published: bool) -> list[ResultTable]:
    streams = [stream + family for stream in FIVE]
    on_these = [run for run in runs if run.row.stream in streams]
    made, columns = [], MEANS + TRANSFERS
    for (backbone, protocol), here in _grouped(on_these, lambda row: (row.backbone, row.protocol)):
        lines = []
        for own in _by_learner(here):
            whole = [five for _, five in _grouped(own, lambda row: row.seed) if len(five) == len(FIVE)]
            if whole:
                means = [_mean_run(five, MEAN + family) for five in whole]
                lines.append(_line(means, columns, published))
        if lines:
            if all_published:
                lines += _only_published(lines, columns, published, MEAN + family, backbone)
            title = f"mean over {', '.join(streams)}, {backbone}, protocol {protocol}"
            made.append(ResultTable(title, MEAN + family, backbone, protocol, columns, tuple(lines)))
    return made


def _mean_run(five: Sequence[_Run], name: str) -> _Run:
    """The five streams of one seed as if they were one run."""
    values = {column.key: fmean(getattr(run.row, column.key) for run in five) for column in MEANS}
    transfers = {f"transfer_{run.row.stream.removesuffix('_mini')}": run.values["transfer"] for run in five}
    chosen = ", ".join(dict.fromkeys(run.row.tuned for run in five if run.row.tuned))
    complete = all(run.row.data_complete for run in five)
    row = replace(five[0].row, stream=name, tuned=chosen, data_complete=complete)
    return _Run(tuple(recorded for run in five for recorded in run.recorded), row, {**values, **transfers})


# What runs were made with, by their `run.json`


def _partial(made: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    states = [(name, state) for settings in made for name, state in part(settings, "data").items()]
    return tuple(
        sorted({name for name, state in states if isinstance(state, dict) and state.get("state") == "partial"})
    )


def _hardware(made: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return _each_once(map(_machines, made))


def _machines(settings: Mapping[str, Any]) -> str:
    """A rebuilt run's costs are those of the search, which ran elsewhere."""
    own, first = _machine(part(settings, "hardware")), _machine(part(part(settings, "rebuilt_from"), "hardware"))
    return f"{own}, rebuilt from a run on {first}" if first else own


def _machine(facts: Mapping[str, Any]) -> str:
    cores = f"{facts['cores']} {facts.get('machine', '')} cores".replace("  ", " ") if "cores" in facts else ""
    return ", ".join(str(fact) for fact in (facts.get("gpu"), cores) if fact)


def _versions(made: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Without that of the source, which is another for almost every run."""
    versions = (part(settings, "versions") for settings in made)
    return _each_once(
        ", ".join(f"{name} {value}" for name, value in each.items() if name != "code") for each in versions
    )


def _each_once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, words)))


# Order: that of the registries; what is not in them comes last

Key = TypeVar("Key", tuple[str, ...], int)


def _grouped(runs: Sequence[_Run], key: Callable[[Row], Key]) -> list[tuple[Key, list[_Run]]]:
    place = {name: i for i, name in enumerate(STREAMS)}
    found: dict[Key, list[_Run]] = {}
    for run in sorted(runs, key=lambda run: (place.get(run.row.stream, len(place)), key(run.row))):
        found.setdefault(key(run.row), []).append(run)
    return list(found.items())


def _by_learner(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Those that were rebuilt apart, behind the others."""
    place = {name: i for i, name in enumerate(LEARNERS)}

    def key(row: Row) -> tuple[int, str, bool]:
        return place.get(row.learner, len(place)), row.learner, row.rebuilt

    ordered = sorted(runs, key=lambda run: (*key(run.row), run.row.seed))
    return [list(own) for _, own in groupby(ordered, lambda run: key(run.row))]
