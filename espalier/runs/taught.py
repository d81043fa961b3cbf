"""A library that is taught task after task, whenever one comes: a run in a folder of its own, whose stream grows."""

from pathlib import Path
from typing import Any

from espalier.data.folder import DataFolder
from espalier.errors import InputError
from espalier.learners import entry
from espalier.runs.loop import Order, Watch, run_in
from espalier.runs.result import read_table
from espalier.runs.settings import Settings
from espalier.streams import STREAMS, Stream, TaskSpec

USUAL = {"learner": "mntdp-d-plus", "backbone": "resnet", "protocol": "paper"}


def teach(
    folder: Path | str,
    task: TaskSpec,
    data: DataFolder | str | Path | None = None,
    device: str = "cpu",
    watch: Watch = lambda moment: None,
    learner: str | None = None,
    backbone: str | None = None,
    protocol: str | None = None,
) -> dict[str, Any]:
    """Learn a task behind those that the folder has, and return the result of all. What it has is not learned again.

    Learner, backbone and protocol are those of a new folder, where they are not the usual; it keeps them.
    """
    folder = Path(folder)
    given = {"learner": learner, "backbone": backbone, "protocol": protocol}
    settings, known = _known(folder, {key: value for key, value in given.items() if value is not None})
    tasks = known if task in known else (*known, task)
    images = data if isinstance(data, DataFolder) else DataFolder(data)
    stream = Stream(settings.stream, settings.seed, tasks, images)
    return run_in(Order(folder, settings, entry(settings.learner).learner, stream, device, watch))


def _known(folder: Path, how: dict[str, str]) -> tuple[Settings, tuple[TaskSpec, ...]]:
    """What a folder was begun with, and its tasks."""
    if not (folder / "run.json").is_file():
        chosen, name = USUAL | how, folder.resolve().name
        if name in STREAMS:
            raise InputError(f"{name} is the name of a stream; choose another for the library's folder.")
        settings = Settings(name, chosen["learner"], chosen["backbone"], chosen["protocol"])
        if entry(settings.learner).forgets:
            raise InputError(f"{settings.learner} forgets what it was taught; choose another --learner.")
        return settings, ()
    begun = read_table(folder / "run.json")
    try:
        settings = Settings(begun["stream"], begun["learner"], begun["backbone"], begun["protocol"], begun["seed"])
        tasks = tuple(TaskSpec.of(told) for told in begun["tasks"])
    except (KeyError, TypeError):
        raise InputError(f"{folder / 'run.json'} does not tell what was taught; choose another folder.") from None
    if settings.stream in STREAMS:
        raise InputError(f"{folder} is a run of the stream {settings.stream}; teach another folder.")
    for key, value in how.items():
        if begun[key] != value:
            raise InputError(f"{folder} was begun with --{key} {begun[key]}, which it keeps; leave --{key} out.")
    return settings, tasks
