"""`espalier streams`: list the streams, or show one: its table of tasks and a contact sheet."""

import io
from pathlib import Path
from typing import Annotated

import typer
from PIL.Image import Image
from rich.table import Column, Table
from rich.text import Text

from espalier.cli.console import DataOption, console, progress_bar, say
from espalier.data.folder import DataFolder
from espalier.errors import InputError
from espalier.files import write_bytes
from espalier.streams import STREAMS, Stream, TaskSpec, stream
from espalier.streams.sheet import arrange, panel


def show(
    name: Annotated[str | None, typer.Argument(metavar="STREAM", help="The stream to show; none: list all.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the stream.", min=0)] = 0,
    data: DataOption = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the contact sheet goes.")] = Path("sheets"),
) -> None:
    """List the streams, or print the tasks of one and write a picture of them."""
    folder = DataFolder(data)
    if name is None:
        _list(folder)
    else:
        _show(stream(name, seed, folder), out)


def readiness(name: str, folder: DataFolder) -> Text:
    """Whether a stream can be built from what is in the folder; what is damaged does not end the list."""
    try:
        chosen = stream(name, 0, folder)
        states = {dataset: folder.holding(dataset).state for dataset in chosen.datasets()}
    except InputError as error:
        return Text(str(error), "red")
    for state, words, style in (("missing", "lacks", "red"), ("partial", "ready, but in part:", "yellow")):
        found = [dataset for dataset, is_state in states.items() if is_state == state]
        if found:
            return Text(f"{words} {', '.join(found)}", style)
    return Text("ready", "green")


def _list(folder: DataFolder) -> None:
    table = Table(Column("stream", no_wrap=True), "what it asks", "datasets", box=None, pad_edge=False)
    for name, (_, description) in STREAMS.items():
        table.add_row(name, description, readiness(name, folder))
    console.print(table)
    say(f"\nData folder: {folder.path}" + ("" if folder.path.exists() else " (it does not exist yet)"))


def _show(chosen: Stream, out: Path) -> None:
    lacking = chosen.missing()
    if lacking:
        console.print(_table(chosen, [_sizes_per_class(spec) for spec in chosen.specs]))
        raise InputError(
            f"{chosen.name} needs {', '.join(lacking)}, not found in {chosen.data.path}, so the sizes above are per "
            f"class and there is no contact sheet; run 'espalier data fetch {' '.join(lacking)}', or name the folder "
            f"that holds the images with --data."
        )
    sizes, panels, notes = [], [], []
    with progress_bar() as progress:
        for number, task in enumerate(progress.track(chosen, len(chosen), description=chosen.name), start=1):
            sizes.append(tuple(f"{len(split):,}" for split in (task.train, task.val, task.test)))
            panels.append(panel(number, task))
            notes.append(task.note)
    console.print(_table(chosen, sizes))
    for note in dict.fromkeys(filter(None, notes)):
        say(note, style="yellow")
    path = out / f"{chosen.name}-seed{chosen.seed}.png"
    _write_png(arrange(panels, f"{chosen.name}, seed {chosen.seed}"), path)
    say(f"Contact sheet: {path}")


def _table(chosen: Stream, sizes: list[tuple[str, ...]]) -> Table:
    table = Table(
        "task",
        Column("dataset", no_wrap=True),
        "train",
        "val",
        "test",
        "classes, in the order of their labels",
        box=None,
    )
    for number, (spec, size) in enumerate(zip(chosen.specs, sizes, strict=True), start=1):
        table.add_row(str(number), spec.title, *size, Text(" ".join(spec.classes)))
    return table


def _sizes_per_class(spec: TaskSpec) -> tuple[str, ...]:
    return tuple("all" if n is None else f"≤{n:,}" for n in (spec.train, spec.val, spec.test))


def _write_png(image: Image, path: Path) -> None:
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    write_bytes(path, encoded.getvalue())
