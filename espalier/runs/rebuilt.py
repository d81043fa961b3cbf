"""A run that is there as records, without its weights, done again without its search: only what it chose is trained.

So the records of others become libraries, in a fraction of the time, and runs that lost theirs can be gone on with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.data.folder import DataFolder
from espalier.errors import InputError
from espalier.learners import LEARNERS, entry
from espalier.learners.independent import Independent
from espalier.learners.mntdp_d import MntdpD
from espalier.learners.options import described
from espalier.learners.repeat import Choice, Repeat
from espalier.library import Library
from espalier.runs.begun import asked_for, learned_in, read_begun, result_of, unlike
from espalier.runs.chosen import chosen_in
from espalier.runs.loop import begin_in, run_in
from espalier.runs.order import Order, Watch
from espalier.runs.records import Event, of_kind, read_records
from espalier.runs.settings import Settings
from espalier.streams import STREAMS, stream
from espalier.training import protocol


@dataclass(frozen=True)
class Source:
    """A run as its records tell it."""

    folder: Path
    settings: Settings
    begun: Mapping[str, Any]  # its `run.json`
    choices: Mapping[str, Choice]
    accuracies: Mapping[str, float]  # of each task when it was learned, on its test images

    @staticmethod
    def read(folder: Path | str) -> "Source":
        folder = Path(folder)
        if not (folder / "run.json").is_file():
            raise InputError(f"there is no run in {folder}; name the folder that holds its run.json and records.jsonl.")
        begun = read_begun(folder)
        settings = _settings(folder, begun)
        if not (folder / "records.jsonl").is_file():
            raise InputError(f"{folder} has no records.jsonl, so what it chose is not known.")
        events = read_records(folder / "records.jsonl")
        try:
            choices, accuracies = chosen_in(events, protocol(settings.protocol).batch), _when_learned(events)
        except (KeyError, IndexError, TypeError, ValueError):
            raise InputError(
                f"{folder / 'records.jsonl'} does not tell all that was chosen; restore it from a copy."
            ) from None
        if not choices or list(choices) != [f"t{number + 1}" for number in range(len(choices))]:
            raise InputError(f"{folder / 'records.jsonl'} does not tell of a first task and those behind it.")
        return Source(folder, settings, begun, choices, accuracies)


@dataclass(frozen=True)
class Compared:
    """A task's test accuracy when it was learned, then (None: the run was stopped before it was known) and now."""

    task: str
    dataset: str
    then: float | None
    now: float


@dataclass(frozen=True)
class Rebuilt:
    """The new run folder, and its result if it has one: the run may have learned less than the whole stream."""

    folder: Path
    tasks: list[Compared]
    of: int  # how many tasks the stream has
    result: dict[str, Any] | None


def rebuild(
    run: Source | Path | str,
    out: Path | str = "runs",
    data: DataFolder | str | Path | None = None,
    device: str = "cpu",
    watch: Watch = lambda moment: None,
) -> Rebuilt:
    """Make the library of a recorded run again, in a run folder below `out`. One that was begun is gone on with."""
    source = run if isinstance(run, Source) else Source.read(run)
    settings, known = source.settings, len(source.choices)
    folder, tasks = Path(out) / settings.folder_name, stream(settings.stream, settings.seed, data)
    learner = Repeat(described(entry(settings.learner).learner), source.choices)
    made = {key: source.begun[key] for key in ("versions", "hardware") if key in source.begun}
    order = Order(folder, settings, learner, tasks, device, watch, rebuilt_from=made)
    tasks.check_there(since=learned_in(folder))
    _check_alike(source, order)
    _check_place(source, folder)
    if known == len(tasks):
        result: dict[str, Any] | None = run_in(order)
    else:
        begin_in(order, known)
        result = result_of(order)
    return Rebuilt(folder, _compared(source, read_records(folder / "records.jsonl")), len(tasks), result)


def _settings(folder: Path, begun: Mapping[str, Any]) -> Settings:
    try:
        settings = Settings.told(begun)
    except ValueError:
        raise InputError(f"{folder / 'run.json'} does not tell what was run; restore it from a copy.") from None
    if settings.stream not in STREAMS:
        raise InputError(f"{folder} is a run of {settings.stream}, which is no stream that is known here.")
    if settings.learner not in LEARNERS:
        raise InputError(f"{folder} is a run of {settings.learner}, which is no learner that is known here.")
    if not isinstance(entry(settings.learner).learner, MntdpD | Independent):
        raise InputError(
            f"what {settings.learner} learns is not in its records; runs of independent and of mntdp-d and its "
            f"variants can be rebuilt."
        )
    return settings


def _check_alike(source: Source, order: Order) -> None:
    """What can be told before any image is read."""
    specs = order.stream.specs[: len(source.choices)]
    for (name, choice), spec in zip(source.choices.items(), specs, strict=False):
        if list(spec.classes) != choice.classes:
            raise InputError(
                f"the classes of {name}, of {spec.dataset}, are drawn otherwise from the images here than from those "
                f"that {source.folder} was made from; name their folder with --data."
            )
    other = unlike(dict(source.begun), asked_for(order), len(source.choices))
    if len(specs) < len(source.choices):
        other.append("fewer tasks")
    if other:
        raise InputError(f"{source.folder} was made with other settings than are known here ({', '.join(other)}).")


def _check_place(source: Source, folder: Path) -> None:
    """What is gone on with must be a rebuilding of the same records."""
    if folder.resolve() == source.folder.resolve():
        raise InputError(f"{source.folder} itself would be written to; name another folder with --out.")
    if not (folder / "library" / "library.json").is_file():
        records = read_records(folder / "records.jsonl")
        if learned_in(folder) or of_kind(records, "learned"):
            raise InputError(f"{folder} holds records without their library; name another folder with --out.")
        return
    there = Library.open(folder / "library").tasks
    if there and "rebuilt_from" not in read_begun(folder):
        raise InputError(f"{folder} is no rebuilding, but a run that searched; name another folder with --out.")
    for task, choice in zip(there.values(), source.choices.values(), strict=False):
        if task.path != choice.path or any(task.info.get(key) != value for key, value in choice.cost.items()):
            raise InputError(f"{folder} holds another run; name another folder with --out.")


def _compared(source: Source, events: Sequence[Event]) -> list[Compared]:
    titles = {event["task"]: event["dataset"] for event in of_kind(events, "learned")}
    now = _when_learned(events)
    return [Compared(task, titles[task], source.accuracies.get(task), now[task]) for task in source.choices]


def _when_learned(events: Sequence[Event]) -> dict[str, float]:
    return {event["task"]: float(event["accuracy"][-1]) for event in of_kind(events, "evaluated")}
