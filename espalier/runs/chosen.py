"""What a run chose for each task, by its records. Knows nothing about what is done with it."""

from collections.abc import Sequence

from espalier.learners.repeat import Choice
from espalier.runs.kept import by_task, kept_among
from espalier.runs.records import Event, of_kind
from espalier.training import Candidate, Copy, Fresh, Reuse, Setting
from espalier.training.job import steps_per_epoch


def chosen_in(events: Sequence[Event], batch: int) -> dict[str, Choice]:
    """By task. What records do not tell, or tell otherwise than they should, is a KeyError, an IndexError, a TypeError
    or a ValueError."""
    return {
        task: _choice(own, event, batch)
        for task, own in by_task(events).items()
        for event in own
        if event["event"] == "learned"
    }


def _choice(own: Sequence[Event], learned: Event, batch: int) -> Choice:
    refits = of_kind(own, "refit")
    kept = kept_among(own, learned, len(learned["path"]))
    if len(kept) > 1 and refits:
        kept = [event for event in kept if _led_to(event, refits[0], learned, batch)]
    candidate = kept[0]
    return Choice(
        tuple(map(str, learned["path"])),
        _candidate(candidate),
        Setting(float(candidate["lr"]), float(candidate["weight_decay"])),
        any(refit["kept"] for refit in refits),
        list(map(str, learned["classes"])),
        {split: int(count) for split, count in dict(learned["images"]).items()},
        [float(value) for value in learned["mean"]],
        {
            "paper_flops": int(learned["paper_flops"]),
            "flops": int(learned["flops"]),
            "seconds": float(learned["seconds"]),
        },
    )


def _led_to(candidate: Event, refit: Event, learned: Event, batch: int) -> bool:
    """A refit takes as many epochs as it took the candidate to be at its best."""
    epochs = -(-candidate["best_step"] // steps_per_epoch(learned["images"]["train"], batch))
    return bool(refit["steps"] == epochs * steps_per_epoch(refit["images"], batch))


def _candidate(event: Event) -> Candidate:
    slots = {"r": Reuse, "c": Copy}
    return tuple(
        Fresh() if slot == "f" else slots[slot](module)
        for slot, module in zip(event["slots"], event["modules"], strict=True)
    )
