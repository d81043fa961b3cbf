"""`espalier teach`: one more task for a library. `espalier ask`: what it knows, and what it says of pictures."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Column, Table
from rich.text import Text

from espalier.cli.console import DataOption, console, note, say
from espalier.cli.run import watching
from espalier.data.own import SUFFIXES
from espalier.errors import InputError
from espalier.evaluation import pictures, predict
from espalier.library import Library
from espalier.runs.begun import learned_in
from espalier.runs.records import of_kind, read_records
from espalier.runs.taught import teach as do_teach

LOADED = 256  # pictures that are read before they are answered

LibraryArgument = Annotated[Path, typer.Argument(metavar="LIBRARY", help="The folder that it lives in.")]


def teach(
    library: LibraryArgument,
    dataset: Annotated[str, typer.Argument(help="A dataset by its name, as 'espalier data list' shows it.")],
    learner: Annotated[str | None, typer.Option(help="Of a new library; else mntdp-d-plus.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Of a new library; else resnet. On a CPU: tiny.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Of a new library; else paper. On a CPU: quick.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    data: DataOption = None,
) -> None:
    """Teach a library one more task: to tell the classes of a dataset apart. What it knows it never forgets.

    The same command goes on with a lesson that was stopped.
    """
    before = learned_in(library)
    if not before and device == "cpu" and not (backbone and protocol):
        note("What is usual is work for a GPU; on a CPU, --backbone tiny --protocol quick takes minutes.")
    with watching(f"{library.name} {dataset}") as watch:
        do_teach(library, dataset, data, device, watch, learner=learner, backbone=backbone, protocol=protocol)
    if learned_in(library) == before:
        say(f"{dataset} is known already. To learn from more images of it, pack them under another name.")
    _show(library)


def ask(
    library: LibraryArgument,
    task: Annotated[str | None, typer.Argument(help="Which of its tasks: its name, or its dataset's.")] = None,
    files: Annotated[list[Path] | None, typer.Argument(metavar="[PICTURE]…")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
) -> None:
    """What a library says of pictures, or of all in a folder, as one of its tasks; without a task, what it knows."""
    if task is None:
        _show(library)
        return
    opened = _opened(library)
    name = _named(opened, task)
    if not files:
        raise InputError("there is no picture; name at least one file, or a folder that holds some.")
    asked, faults = _pictures(files)
    for start in range(0, len(asked), LOADED):
        faults += _answer(opened, name, asked[start : start + LOADED], device)
    if faults:
        raise InputError("\n".join(faults))


def _answer(library: Library, task: str, files: Sequence[Path], device: str) -> list[str]:
    """Say what the pictures show. What is wrong with some of them is returned; the others are answered all the same."""
    answered, loaded, faults = [], [], []
    for file in files:
        try:
            loaded.append(pictures(library, task, [file]))
        except InputError as error:
            faults.append(str(error))
            continue
        answered.append(file)
    if loaded:
        classes = library.tasks[task].info["classes"]
        sure, labels = predict(library, task, torch.cat(loaded), device).softmax(1).max(1)
        for file, label, share in zip(answered, labels.tolist(), sure.tolist(), strict=True):
            say(f"{file}: {classes[label]} ({share:.2f})")
    return faults


def _pictures(asked: list[Path]) -> tuple[list[Path], list[str]]:
    """A folder stands for the pictures in it; those without any are told."""
    inside = {folder: _inside(folder) for folder in asked if folder.is_dir()}
    found = [file for each in asked for file in inside.get(each, [each])]
    empty = [folder for folder, files in inside.items() if not files]
    return found, [f"there is no picture in the folder {folder} itself; name one that holds some." for folder in empty]


def _inside(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("[!.]*") if file.suffix.lower() in SUFFIXES)


def _opened(folder: Path) -> Library:
    if (folder / "library.json").is_file():
        raise InputError(f"{folder} is inside a library; name the folder that it lies in.")
    if not (folder / "library").is_dir():
        raise InputError(f"{folder} holds no library; 'espalier teach {folder} DATASET' begins one.")
    return Library.open(folder / "library")


def _named(library: Library, task: str) -> str:
    """The task of that name, or the one of that dataset."""
    if task in library.tasks:
        return task
    names = [name for name, entry in library.tasks.items() if entry.info.get("dataset", "") == task]
    if len(names) > 1:
        raise InputError(f"{', '.join(names)} are all tasks of {task!r}; name one of these.")
    if not names:
        known = ", ".join(f"{name} ({entry.info.get('dataset', '')})" for name, entry in library.tasks.items())
        order = "; the task comes before the pictures" if Path(task).exists() else ""
        raise InputError(f"the library has no task {task!r}; it has {known or 'none yet'}{order}.")
    return names[0]


def _show(folder: Path) -> None:
    library = _opened(folder)
    if not library.tasks:
        say(f"{folder} has learned nothing yet.")
        return
    evaluated = of_kind(read_records(folder / "records.jsonl"), "evaluated")
    accuracies = evaluated[-1]["accuracy"] if evaluated else []
    columns = (Column("task", no_wrap=True), "dataset", "classes", "test accuracy", "modules of other tasks")
    table = Table(*columns, box=None, pad_edge=False)
    for (name, entry), accuracy in zip_longest(library.tasks.items(), accuracies[: len(library.tasks)]):
        old = [module for module in entry.path if not module.startswith(f"{name}.")]
        measured = "" if accuracy is None else f"{accuracy:.3f}"
        dataset, classes = Text(entry.info.get("dataset", "")), Text(_some(entry.info.get("classes", [])))  # no markup
        table.add_row(name, dataset, classes, measured, " ".join(old) or "none")
    console.print(table)


def _some(classes: Sequence[str], shown: int = 5) -> str:
    more = f" and {len(classes) - shown} more" if len(classes) > shown else ""
    return ", ".join(classes[:shown]) + more
