"""`run.json`: what a run folder was begun with, and whether it can be gone on with. Knows nothing about learning.

What has been learned binds: the settings, and the tasks so far. What was only asked for does not: behind the learned
tasks a stream may get others, and a folder in which nothing has been learned is as good as new.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from espalier.errors import InputError
from espalier.learners.options import described
from espalier.library import Library
from espalier.runs.order import Order
from espalier.runs.result import read_result, read_table
from espalier.training import protocol

SCHEMA = 1
TRIED = "tried"  # the folder in which a run that chooses a value tries them all
FIRST = f"{TRIED}/first-task"


def asked_for(order: Order, learner: str | None = None) -> dict[str, Any]:
    """Everything that a run depends on, as it is read back from `run.json`; `learner` tells all of its values."""
    details = {
        "protocol_details": asdict(protocol(order.settings.protocol)),
        "learner_details": learner or described(order.learner),
        "tasks": [spec.told() for spec in order.stream.specs],
    }
    asked: dict[str, Any] = json.loads(json.dumps({"schema": SCHEMA, **asdict(order.settings), **details}))
    return asked


def learned_in(folder: Path) -> int:
    """How many tasks have been learned in a run folder: by its library or, where it has none (now, or of its own), by
    its result or what all its trials began with."""
    if (folder / "library" / "library.json").is_file():
        return len(Library.open(folder / "library").tasks)
    if (folder / "result.json").is_file():
        return len(read_result(folder / "result.json")["accuracy"])
    return learned_in(folder / FIRST) if (folder / FIRST).is_dir() else 0


def read_begun(folder: Path) -> dict[str, Any]:
    """`run.json` of a folder in which something has been learned."""
    if not (folder / "run.json").is_file():
        raise InputError(f"{folder} has lost its run.json; restore it from a copy, or begin in another folder.")
    return read_table(folder / "run.json")


def check_begun(folder: Path, asked: dict[str, Any]) -> None:
    """What was learned under other settings, or from other tasks, is not gone on with."""
    learned = learned_in(folder)
    if learned == 0:
        return
    other = unlike(read_begun(folder), asked, learned)
    if other:
        raise InputError(
            f"{folder} was begun with other settings ({', '.join(other)} in its run.json); begin in another folder."
        )


def unlike(begun: dict[str, Any], asked: dict[str, Any], learned: int) -> list[str]:
    """What is asked for otherwise than in a `run.json`, where so many tasks have been learned."""
    tasks = begun.get("tasks", [])  # older folders do not tell them
    known = tasks[:learned] if isinstance(tasks, list) else None
    expected = {**asked, "tasks": asked["tasks"][: len(known or [])]}
    return [key for key, value in expected.items() if not _same({**begun, "tasks": known}.get(key), value)]


def _same(begun: object, asked: object) -> bool:
    """Values that only one version of Espalier knows do not count: as it was before they are as they were."""
    if isinstance(begun, dict) and isinstance(asked, dict):
        return all(begun[key] == asked[key] for key in begun.keys() & asked.keys())
    return begun == asked


def result_of(order: Order) -> dict[str, Any] | None:
    """What the run came to, if it has finished with all tasks that its stream has now."""
    path = order.folder / "result.json"
    result = read_result(path) if path.is_file() else None
    return result if result and len(result["accuracy"]) == len(order.stream) else None
