"""A library that is taught task after task, whenever one comes: a run in a folder of its own, whose stream grows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from espalier.data.folder import DataFolder
from espalier.errors import InputError
from espalier.learners import entry
from espalier.runs.begun import learned_in, read_begun
from espalier.runs.loop import run_in
from espalier.runs.order import Order, Watch
from espalier.runs.settings import Settings
from espalier.streams import STREAMS, Stream, TaskSpec

LEARNER = "mntdp-d-plus"
LEFT_BY_SYSTEMS = ("lost+found", "desktop.ini", "Thumbs.db")  # where they think nothing of it


def teach(
    folder: Path | str,
    task: TaskSpec | str,
    data: DataFolder | str | Path | None = None,
    device: str = "cpu",
    watch: Watch = lambda moment: None,
    learner: str | None = None,
    backbone: str | None = None,
    protocol: str | None = None,
) -> dict[str, Any]:
    """Learn a task behind those that the folder has, and return the result of all. What it has is not learned again.

    The name of a dataset is the task to tell all its classes apart. Learner, backbone and protocol are those of a new
    folder, where they are not the usual; it keeps them.
    """
    folder = Path(folder)
    images = data if isinstance(data, DataFolder) else DataFolder(data)
    given = {"learner": learner, "backbone": backbone, "protocol": protocol}
    how = {key: value for key, value in given.items() if value is not None}
    settings, known = _taught(folder, how) if learned_in(folder) else (_new(folder, how), ())
    _check_learner(settings.learner)
    asked = _all_classes(task, images, known) if isinstance(task, str) else task
    tasks = known if asked in known else (*known, asked)
    stream = Stream(settings.stream, settings.seed, tasks, images)
    order = Order(folder, settings, entry(settings.learner).learner, stream, device, watch, same_images=False)
    return run_in(order)


def _all_classes(dataset: str, images: DataFolder, known: tuple[TaskSpec, ...]) -> TaskSpec:
    """The task of a dataset's name, with images of the shape that the library knows."""
    classes = images.class_names(dataset)
    task = TaskSpec(dataset, classes, train=None, val=None, test=None)
    if known:
        return replace(task, size=known[0].size, channels=known[0].channels)
    return replace(task, size=max(task.size, images.holding(dataset).size))


def _new(folder: Path, how: dict[str, str]) -> Settings:
    """How a folder in which nothing was learned will be taught."""
    name = folder.resolve().name
    if name in STREAMS:
        raise InputError(f"{name} is the name of a stream; choose another for the library's folder.")
    if (folder / "library.json").is_file():
        raise InputError(f"{folder} is inside a library; name the folder that it lies in.")
    foreign = sorted(path.name for path in folder.glob("[!.]*") if path.name not in LEFT_BY_SYSTEMS)
    if foreign and not (folder / "library").is_dir():
        raise InputError(f"{folder} holds {foreign[0]}, which is no part of a library; name a new folder.")
    usual = Settings.of("", how.get("learner", LEARNER), 0, how.get("backbone"), how.get("protocol"))
    return replace(usual, stream=name)  # a name that looks like a stream's says nothing about backbones


def _taught(folder: Path, how: dict[str, str]) -> tuple[Settings, tuple[TaskSpec, ...]]:
    """What a folder has been taught with, and the tasks that it has learned."""
    begun = read_begun(folder)
    try:
        settings = Settings.told(begun)
        tasks = tuple(TaskSpec.of(told) for told in begun["tasks"][: learned_in(folder)])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{folder / 'run.json'} does not tell what was taught; choose another folder.") from None
    if settings.stream in STREAMS:
        raise InputError(f"{folder} is a run of the stream {settings.stream}; teach another folder.")
    for key, value in how.items():
        if begun[key] != value:
            raise InputError(f"{folder} was begun with --{key} {begun[key]}, which it keeps; leave --{key} out.")
    return settings, tasks


def _check_learner(name: str) -> None:
    if entry(name).forgets:
        raise InputError(f"{name} forgets what it was taught; choose another --learner.")
    if entry(name).measures_again:
        raise InputError(f"{name} needs the images of all earlier tasks in every lesson; choose another --learner.")
