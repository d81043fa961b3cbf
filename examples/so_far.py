"""Runs on the same stream side by side, on the tasks that all of them have learned; they need not have finished.

    python examples/so_far.py results/s_long@paper--*

prints for each run, by its records, the average accuracy on these tasks behind the last of them, also by the size of
tasks, the memory at that time, the seconds of learning, and on how many tasks it is better than each run before it.
"""

import argparse
from pathlib import Path
from statistics import fmean

from espalier.errors import InputError
from espalier.runs.records import Event, of_kind, read_records

LARGE = 1000  # train images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    folders = parser.parse_args().runs
    known = {folder.name: read_records(folder / "records.jsonl") for folder in folders}
    count = min(len(of_kind(events, "evaluated")) for events in known.values())
    if not count:
        raise SystemExit("one of these folders has no records of a learned task")
    print(f"the first {count} tasks")
    shown: dict[str, list[float]] = {}
    for name, events in known.items():
        accuracies = of_kind(events, "evaluated")[count - 1]["accuracy"]
        print(name)
        print(f"  {told(events, accuracies)}")
        for other, before in shown.items():
            print(f"  better on {sum(a > b for a, b in zip(accuracies, before, strict=True))} than {other}")
        shown[name] = accuracies


def told(events: list[Event], accuracies: list[float]) -> str:
    learned = of_kind(events, "learned")[: len(accuracies)]
    sizes = [event["images"]["train"] for event in learned]
    means = [f"average accuracy {fmean(accuracies):.3f}"]
    for title, large in (("large", True), ("small", False)):
        some = [accuracy for accuracy, size in zip(accuracies, sizes, strict=True) if (size >= LARGE) == large]
        seconds = [event["seconds"] for event, size in zip(learned, sizes, strict=True) if (size >= LARGE) == large]
        if some:
            means.append(f"{len(some)} {title} tasks {fmean(some):.3f} in {fmean(seconds):.1f} s each")
    memory = of_kind(events, "evaluated")[len(accuracies) - 1]["memory_mb"]
    return f"{', '.join(means)}; {memory:.1f} MB; {sum(event['seconds'] for event in learned):.0f} s"


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
