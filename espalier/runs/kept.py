"""Which of a task's recorded candidates was kept. Knows records alone."""

from collections.abc import Sequence

from espalier.runs.records import Event


def by_task(events: Sequence[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(str(event.get("task")), []).append(event)
    return found


def kept_among(events: Sequence[Event], learned: Event, n_blocks: int) -> list[Event]:
    """Of a task's events: the candidates that agree with what is told of the one that was learned. Records that do not
    tell its slots, as older ones, may leave several."""
    return [event for event in events if event["event"] == "candidate" and _agrees(event, learned, n_blocks)]


def _agrees(candidate: Event, learned: Event, n_blocks: int) -> bool:
    same = ("task", "lr", "weight_decay", "val_accuracy", "steps", *(["slots"] if "slots" in learned else []))
    if any(candidate.get(key) != learned.get(key) for key in same):
        return False
    slots, sources, path = candidate.get("slots"), candidate.get("modules"), learned.get("path")
    if not isinstance(slots, str) or not isinstance(sources, list) or not isinstance(path, list):
        return False
    if not len(slots) == len(sources) == len(path) == n_blocks:
        return False
    new = f"{learned.get('task')}."
    return all(
        source == module if slot == "r" else str(module).startswith(new)
        for slot, source, module in zip(slots, sources, path, strict=True)
    )
