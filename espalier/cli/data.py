"""`espalier data`: list, fetch, verify, pack."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from espalier.cli.console import DataOption, console, counter, progress_bar, say
from espalier.cli.streams import readiness
from espalier.data.fetch import fetch as fetch_files
from espalier.data.folder import DataFolder, Holding
from espalier.data.imageset import Dataset
from espalier.data.official import OFFICIAL
from espalier.data.own import as_dataset, check_own_name, from_csv, from_folder
from espalier.data.pack import verify_pack, write_pack
from espalier.data.pictures import Progress
from espalier.errors import InputError
from espalier.files import digest
from espalier.streams import STREAMS

app = typer.Typer(no_args_is_help=True, help="Look at, download, check and convert image data.")

_STATE_STYLE = {"complete": "green", "partial": "yellow", "missing": "red"}


@app.command("list")
def list_datasets(data: DataOption = None) -> None:
    """Say which datasets are there, whole or in part, and what each stream still lacks."""
    folder = DataFolder(data)
    table = Table(Column("dataset", no_wrap=True), "state", "from", "images", "note", box=None, pad_edge=False)
    for name in folder.names():
        table.add_row(*_row(_holding(folder, name)))
    mnist = _holding(folder, "mnist")
    table.add_row(*_row(Holding("rainbow-mnist", mnist.state, "", note="tasks make it from mnist, with a background")))
    console.print(table)
    say("")
    for name in STREAMS:
        console.print(Text(f"{name:<16}") + readiness(name, folder))
    say(f"\nData folder: {folder.path}" + ("" if folder.path.exists() else " (not there yet)"))


def _row(held: Holding) -> tuple[str | Text, ...]:
    counts = ", ".join(f"{n:,} {split}" for split, n in held.counts.items())
    return held.name, Text(held.state, _STATE_STYLE.get(held.state, "red")), held.source, counts, Text(held.note)


@app.command()
def fetch(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Datasets; none: all six.")] = None,
    data: DataOption = None,
) -> None:
    """Download datasets of the paper in their official files; what was begun is gone on with."""
    folder = DataFolder(data)
    unknown = [n for n in names or [] if n not in OFFICIAL]
    if unknown:
        raise InputError(f"there is nothing to fetch for {', '.join(unknown)}; known are {', '.join(OFFICIAL)}.")
    for name in names or OFFICIAL:
        official = OFFICIAL[name]
        say(f"{official.title}: {official.licence}")
        with progress_bar() as progress:
            counters = {file.name: counter(progress, file.name) for file in official.files}
            fetch_files(official.files, folder.path / name, lambda file, *counts, to=counters: to[file](*counts))
        say(f"{name} is complete in {folder.path / name}")


@app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Datasets; none: all there.")] = None,
    data: DataOption = None,
) -> None:
    """Check every checksum and read every image of the datasets that are there."""
    folder = DataFolder(data)
    chosen = names or [n for n in folder.names() if _holding(folder, n).source in ("pack", "official files")]
    if not chosen:
        raise InputError(
            f"there is nothing to verify in {folder.path}; run 'espalier data fetch' or name another folder."
        )
    bad = 0
    for name in chosen:
        try:
            with progress_bar() as progress:
                _verify(folder, name, counter(progress, name))
            say(f"{name}: good", style="green")
        except InputError as error:
            say(f"{name}: {error}", style="red")
            bad += 1
    if bad:
        raise InputError(f"{bad} of {len(chosen)} datasets cannot be used as they are; the lines above say what to do.")


@app.command()
def pack(
    source: Annotated[str, typer.Argument(help="A folder of class folders, a CSV of path,label, or a dataset's name.")],
    name: Annotated[str | None, typer.Option(help="The pack's name; else the source's.")] = None,
    size: Annotated[int, typer.Option(help="Height and width that own images are scaled to.")] = 32,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the pack goes; else the data folder.")
    ] = None,
    data: DataOption = None,
) -> None:
    """Turn any source into an image-pack; in the data folder, streams and tasks find it by its name."""
    folder = DataFolder(data)
    read, name = _source(folder, source, name, size)
    target = (out or folder.path) / name
    if target.exists():
        raise InputError(f"{target} exists already; remove it, or choose another --name or --out.")
    with progress_bar() as progress:
        dataset = read(counter(progress, "reading"))
        write_pack(dataset, target, counter(progress, "packing"))
    images = sum(len(split) for split in dataset.splits.values())
    say(f"{images:,} images of {len(dataset.class_names)} classes in {target}")


def _holding(folder: DataFolder, name: str) -> Holding:
    """As the folder says, but a damaged pack is told of and not an error: the list goes on."""
    try:
        return folder.holding(name)
    except InputError as error:
        return Holding(name, "damaged", "pack", note=str(error))


def _verify(folder: DataFolder, name: str, progress: Progress) -> None:
    held = folder.holding(name)
    if held.source == "pack":
        verify_pack(folder.path / name, progress)
        return
    if held.source == "official files":
        for file in OFFICIAL[name].files:
            if digest(folder.path / name / file.name, "md5") != file.md5:
                raise InputError(
                    f"the checksum of {folder.path / name / file.name} is not the official one; delete the file and "
                    f"run 'espalier data fetch {name}'."
                )
    folder.load(name)


def _check_own_name(name: str, given: bool) -> None:
    try:
        check_own_name(name)
    except InputError as error:
        raise error if given else InputError(f"{error} --name gives another.") from None


def _source(folder: DataFolder, source: str, name: str | None, size: int) -> tuple[Callable[[Progress], Dataset], str]:
    """How a source is read, and the name of its pack: both known before any picture is opened."""
    path = Path(source).expanduser()
    is_table = path.is_file() and path.suffix.lower() == ".csv"
    # Inside the data folder, "mnist" names the dataset and not a folder of own pictures.
    is_dataset = source in folder.names() and path.resolve() == (folder.path / source).resolve()
    if (is_table or path.is_dir()) and not is_dataset:
        own_name = name or (path.stem if is_table else path.resolve().name).lower()
        _check_own_name(own_name, given=name is not None)
        read = from_csv if is_table else from_folder
        return lambda progress: as_dataset(read(path, size, progress), own_name), own_name
    if source not in folder.names():
        what = "is a file of another kind" if path.is_file() else "does not exist"
        raise InputError(
            f"{source!r} {what}: give a folder of class folders, a .csv file, or one of the datasets "
            f"{', '.join(folder.names())}."
        )
    if name and name != source:
        check_own_name(name)
    return lambda progress: replace(folder.load(source), name=name or source), name or source
