"""What runs kept of each task, by their records.

    python examples/kept.py results/s_plus--mntdp-d--*

prints for each task the candidate that was kept (one letter per block: r, re-used; f, fresh; c, a copy), its setting,
the step its weights are of and the steps that were made, and its accuracy on the validation images, on the test images
when it was learned, and on these now. Runs that have not finished are shown as far as they are. Of a learner with a
value that is chosen on the stream, each value has a folder of its own (results/RUN/tried/strength-100).
"""

import argparse
from pathlib import Path
from statistics import fmean

from espalier.errors import InputError
from espalier.runs.kept import by_task, kept_among
from espalier.runs.records import Event, of_kind, read_records

COLUMNS = ("task", "dataset", "slots", "rate", "decay", "best step", "steps", "validation", "test then", "test now")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    for run in parser.parse_args().runs:
        events = read_records(run / "records.jsonl")
        rows = [event["accuracy"] for event in of_kind(events, "evaluated")]
        if not rows:
            raise SystemExit(f"{run} has no records of a task that was learned and measured; name the folder of a run")
        print(f"{run.name}: average accuracy {fmean(rows[-1]):.4f} after {len(rows)} tasks")
        tasks = [told for told in by_task(events).values() if of_kind(told, "evaluated")]
        table = [COLUMNS, *(line_of(told, i, rows) for i, told in enumerate(tasks))]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def line_of(told: list[Event], index: int, rows: list[list[float]]) -> tuple[str, ...]:
    """`rows` are the test accuracies of all tasks so far after each task."""
    (learned,) = of_kind(told, "learned")
    kept = kept_among(told, learned, len(learned["path"]))
    return (
        str(learned["task"]),
        str(learned["dataset"]),
        " or ".join(dict.fromkeys(str(event["slots"]) for event in kept)) or "-",
        f"{learned['lr']:g}",
        f"{learned['weight_decay']:g}",
        " or ".join(dict.fromkeys(str(event["best_step"]) for event in kept)) or "-",
        str(learned["steps"]),
        f"{learned['val_accuracy']:.4f}",
        f"{rows[index][index]:.4f}",
        f"{rows[-1][index]:.4f}",
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
