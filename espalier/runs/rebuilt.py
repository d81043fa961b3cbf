"""A run that is there as records, without its weights, done again without its search: only what it chose is trained.

So the records of others become libraries, in a fraction of the time, and runs that lost theirs can be gone on with.
Results are as the first time but for rounding (of which small tasks can make much), on the same images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.data.folder import DataFolder
from espalier.errors import InputError
from espalier.learners import entry
from espalier.learners.independent import Independent
from espalier.learners.mntdp_d import MntdpD
from espalier.learners.options import described
from espalier.learners.repeat import Choice, Repeat
from espalier.library import Library
from espalier.runs.begun import asked_for, read_begun, unlike
from espalier.runs.kept import kept_among
from espalier.runs.loop import begin_in, run_in
from espalier.runs.order import Order, Watch
from espalier.runs.records import Event, read_records
from espalier.runs.settings import Settings
from espalier.streams import stream
from espalier.training import Candidate, Copy, Fresh, Protocol, Reuse, Setting, protocol
from espalier.training.job import steps_per_epoch

COSTS = ("paper_flops", "flops", "seconds")


@dataclass(frozen=True)
class Task:
    """A rebuilt task: its test accuracy when it was learned, then and now."""

    name: str
    dataset: str
    then: float
    now: float


@dataclass(frozen=True)
class Rebuilt:
    """The new run folder; its result, unless the stream has more tasks than the run had learned."""

    folder: Path
    settings: Settings
    tasks: list[Task]
    of: int  # how many tasks the stream has
    result: dict[str, Any] | None


def rebuild(
    run: Path | str,
    out: Path | str = "runs",
    data: DataFolder | str | Path | None = None,
    device: str = "cpu",
    watch: Watch = lambda moment: None,
) -> Rebuilt:
    """Make the library of a recorded run again, in a run folder below `out`. One that was begun is gone on with."""
    run = Path(run)
    settings, begun, events = _read(run)
    folder = Path(out) / settings.folder_name
    if folder.resolve() == run.resolve():
        raise InputError(f"{run} itself would be written to; name another folder with --out.")
    tasks, chosen = stream(settings.stream, settings.seed, data), protocol(settings.protocol)
    learned = [event for event in events if event["event"] == "learned"]
    if not 0 < len(learned) <= len(tasks):
        raise InputError(f"{run} has learned {len(learned)} tasks of {settings.stream}'s {len(tasks)}.")
    try:
        choices = {event["task"]: choice_of(events, event, chosen) for event in learned}
    except (KeyError, IndexError, TypeError, ValueError):
        raise InputError(f"{run / 'records.jsonl'} does not tell all that was chosen; it cannot be rebuilt.") from None
    told = begun.get("learner_details", described(entry(settings.learner).learner))
    order = Order(folder, settings, Repeat(told, choices), tasks, device, watch)
    other = unlike(begun, {key: value for key, value in asked_for(order).items() if key != "tasks"})
    if other:
        raise InputError(f"{run} was made with other settings than this version has ({', '.join(other)}).")
    _check_same_paths(folder, learned)
    result = None
    if len(learned) == len(tasks):
        result = run_in(order)
    else:
        begin_in(order, len(learned))
    return Rebuilt(folder, settings, _compared(events, read_records(folder / "records.jsonl")), len(tasks), result)


def _read(run: Path) -> tuple[Settings, dict[str, Any], list[Event]]:
    if not (run / "run.json").is_file():
        raise InputError(f"there is no run in {run}; name the folder that holds its run.json and records.jsonl.")
    begun = read_begun(run)
    try:
        settings = Settings(begun["stream"], begun["learner"], begun["backbone"], begun["protocol"], begun["seed"])
    except KeyError:
        raise InputError(f"{run / 'run.json'} does not tell what was run; name another folder.") from None
    if not isinstance(entry(settings.learner).learner, MntdpD | Independent):
        raise InputError(
            f"what {settings.learner} learns is not in its records; runs of independent and of mntdp-d and its "
            f"variants can be rebuilt."
        )
    if not (run / "records.jsonl").is_file():
        raise InputError(f"{run} has no records.jsonl, so what it chose is not known.")
    return settings, begun, read_records(run / "records.jsonl")


def _check_same_paths(folder: Path, learned: Sequence[Event]) -> None:
    """What is gone on with must have begun with the same choices."""
    if not (folder / "library" / "library.json").is_file():
        return
    there = [entry.path for entry in Library.open(folder / "library").tasks.values()]
    if there[: len(learned)] != [tuple(event["path"]) for event in learned[: len(there)]]:
        raise InputError(f"{folder} holds another run, which chose otherwise; name another folder with --out.")


def choice_of(events: Sequence[Event], learned: Event, chosen: Protocol) -> Choice:
    own = [event for event in events if event.get("task") == learned["task"]]
    refits = [event for event in own if event["event"] == "refit"]
    kept = kept_among(own, learned, len(learned["path"]))
    fitting = [event for event in kept if all(_led_to(event, refit, learned, chosen) for refit in refits)]
    event = (fitting or kept)[0]
    return Choice(
        _candidate(event),
        Setting(event["lr"], event["weight_decay"]),
        any(refit["kept"] for refit in refits),
        learned["classes"],
        learned["mean"],
        {key: learned[key] for key in COSTS},
    )


def _led_to(candidate: Event, refit: Event, learned: Event, chosen: Protocol) -> bool:
    """A refit takes as many epochs as it took the candidate to be at its best."""
    epochs = -(-candidate["best_step"] // steps_per_epoch(learned["images"]["train"], chosen.batch))
    return bool(refit["steps"] == epochs * steps_per_epoch(refit["images"], chosen.batch))


def _candidate(event: Event) -> Candidate:
    slots = {"r": Reuse, "c": Copy}
    return tuple(
        Fresh() if slot == "f" else slots[slot](module)
        for slot, module in zip(event["slots"], event["modules"], strict=True)
    )


def _compared(then: Sequence[Event], now: Sequence[Event]) -> list[Task]:
    before, after = _when_learned(then), _when_learned(now)
    titles = {event["task"]: event["dataset"] for event in now if event["event"] == "learned"}
    return [Task(name, titles[name], before[name], after[name]) for name in before if name in after]


def _when_learned(events: Sequence[Event]) -> dict[str, float]:
    return {event["task"]: event["accuracy"][-1] for event in events if event["event"] == "evaluated"}
