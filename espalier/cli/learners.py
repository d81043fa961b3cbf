"""`espalier learners`: what there is. `espalier learners NAME`: one of them, whole."""

import inspect
import textwrap
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from espalier.cli.console import console
from espalier.learners import LEARNERS, entry
from espalier.learners.options import options
from espalier.learners.registry import Entry
from espalier.training import PROTOCOLS


def learners(name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None) -> None:
    """List the learners, or say all about one."""
    if name is not None:
        _describe(name, entry(name))
        return
    table = Table(Column("learner", no_wrap=True), "what it does", box=None, pad_edge=False)
    for each, known in LEARNERS.items():
        table.add_row(each, known.does)
    console.print(table)


def _describe(name: str, known: Entry) -> None:
    console.print(f"{name}: {known.does}", markup=False, highlight=False, style="bold")
    console.print(f"\n{_about(known)}\n", markup=False, highlight=False)
    facts = Table(Column(no_wrap=True), Column(), box=None, pad_edge=False, show_header=False)
    facts.add_row("for a task it tries", known.space)
    facts.add_row("it keeps", known.keeps)
    facts.add_row("it forgets", "yes" if known.forgets else "no: old answers stay the same, bit for bit")
    if known.tuned is not None:
        values = ", ".join(f"{value:g}" for value in PROTOCOLS["paper"].strengths)
        facts.add_row("chosen on the stream", f"{known.tuned}, of {values} (protocol paper)")
    console.print(facts, markup=False, highlight=False)
    _print_options(known.learner)


def _about(known: Entry) -> str:
    """The header of the learner's file: what it is, its paper and equations."""
    return textwrap.dedent(inspect.getmodule(type(known.learner)).__doc__ or "").strip()


def _print_options(learner: Any) -> None:
    table = Table(Column("hyper-parameter", no_wrap=True), "value", "meaning", box=None, pad_edge=False)
    for option, value, meaning in options(learner):
        table.add_row(option, str(value), meaning)
    if table.row_count:
        console.print()
        console.print(table, markup=False, highlight=False)
