"""`espalier data`: list, fetch, verify, pack."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from espalier.cli.console import DataOption, console, counter, progress_bar
from espalier.cli.streams import missing_datasets
from espalier.data.embedded import EMBEDDED
from espalier.data.fetch import fetch as fetch_files
from espalier.data.folder import DataFolder, Holding
from espalier.data.imageset import Dataset
from espalier.data.official import OFFICIAL
from espalier.data.own import as_dataset, check_name, from_csv, from_folder
from espalier.data.pack import verify_pack, write_pack
from espalier.data.pictures import Progress
from espalier.errors import InputError
from espalier.files import digest
from espalier.streams import STREAMS, stream

app = typer.Typer(no_args_is_help=True, help="Look at, download, check and convert image data.")

_STATE_STYLE = {"complete": "green", "partial": "yellow", "missing": "red"}


@app.command("list")
def list_datasets(data: DataOption = None) -> None:
    """Say which datasets are there, whole or in part, and what each stream still lacks."""
    folder = DataFolder(data)
    table = Table("dataset", "state", "from", "images", "note", box=None, pad_edge=False)
    for name in folder.names():
        held = _holding(folder, name)
        counts = ", ".join(f"{n:,} {split}" for split, n in held.counts.items())
        table.add_row(name, f"[{_STATE_STYLE.get(held.state, 'red')}]{held.state}[/]", held.source, counts, held.note)
    mnist = _holding(folder, "mnist")
    style = _STATE_STYLE.get(mnist.state, "red")
    table.add_row(
        "rainbow-mnist",
        f"[{style}]{mnist.state}[/]",
        "made from mnist",
        "",
        "a red, green or blue background",
    )
    console.print(table)
    console.print()
    for name in STREAMS:
        lacking = missing_datasets(stream(name, 0, folder))
        console.print(f"{name:<16}" + (f"[yellow]lacks {', '.join(lacking)}[/]" if lacking else "[green]ready[/]"))
    console.print(f"\nData folder: {folder.path}", highlight=False, soft_wrap=True)


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
        console.print(f"{official.title}: {official.licence}", highlight=False, soft_wrap=True)
        with progress_bar() as progress:
            counters = {file.name: counter(progress, file.name) for file in official.files}
            fetch_files(official.files, folder.path / name, lambda file, *counts, to=counters: to[file](*counts))
        console.print(f"{name} is complete in {folder.path / name}", highlight=False, soft_wrap=True)


@app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Datasets; none: all there.")] = None,
    data: DataOption = None,
) -> None:
    """Check every checksum and read every image of the datasets that are there."""
    folder = DataFolder(data)
    chosen = names or [n for n in folder.names() if n not in EMBEDDED and _holding(folder, n).state != "missing"]
    if not chosen:
        raise InputError(
            f"there is nothing to verify in {folder.path}; run 'espalier data fetch' or name another folder."
        )
    faults = []
    for name in chosen:
        try:
            with progress_bar() as progress:
                _verify(folder, name, counter(progress, name))
            console.print(f"{name}: [green]good[/]", highlight=False)
        except InputError as error:
            console.print(f"{name}: [red]bad[/]", highlight=False)
            faults.append(str(error))
    if faults:
        raise InputError(" ".join(faults))


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
    with progress_bar() as progress:
        dataset = _read_source(folder, source, name, size, counter(progress, "reading"))
        target = (out or folder.path) / dataset.name
        write_pack(dataset, target, counter(progress, "packing"))
    images = sum(len(split) for split in dataset.splits.values())
    console.print(
        f"{images:,} images of {len(dataset.class_names)} classes in {target}",
        highlight=False,
        soft_wrap=True,
    )


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


def _read_source(folder: DataFolder, source: str, name: str | None, size: int, progress: Progress) -> Dataset:
    path = Path(source).expanduser()
    if path.is_file() and path.suffix.lower() == ".csv":
        return as_dataset(from_csv(path, size, progress), name or path.stem.lower())
    if path.is_dir():
        return as_dataset(from_folder(path, size, progress), name or path.resolve().name.lower())
    if source not in folder.names():
        raise InputError(
            f"{source!r} is neither a folder of class folders, nor a .csv file, nor one of the datasets "
            f"{', '.join(folder.names())}."
        )
    if name:
        check_name(name)
    return replace(folder.load(source), name=name or source)
