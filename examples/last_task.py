"""What a learner chose for the last task of a stream, beside `independent`, by the records of finished runs.

    python examples/last_task.py results s_pl mntdp-d

prints, for each seed, the candidate that was kept (one letter per block: r, re-used; f, fresh; c, a copy), its
transfer, and of both learners the setting, the validation accuracy, and the test accuracy before the first step and
behind the first two. A network that is all fresh begins with the weights of `independent` and sees the same batches:
what it is better or worse than that by is rounding.
"""

import argparse
from pathlib import Path

from espalier.errors import InputError
from espalier.report.records import Recorded, read_recorded
from espalier.runs.kept import kept_among
from espalier.runs.records import Event, of_kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("stream")
    parser.add_argument("learner")
    options = parser.parse_args()
    found = sorted(options.runs.glob(f"{options.stream}--{options.learner}--*"))
    pairs = [(run, run.parent / run.name.replace(f"--{options.learner}--", "--independent--")) for run in found]
    there = [pair for pair in pairs if all((run / "result.json").is_file() for run in pair)]
    if not there:
        raise SystemExit(f"{options.runs} has no finished runs of {options.learner} and independent on it")
    for pair in there:
        for line in compared(*map(read_recorded, pair)):
            print(line)


def compared(run: Recorded, independent: Recorded) -> list[str]:
    learned = last_learned(run)
    kept = kept_among(run.events, learned, len(learned["path"]))
    transfer = run.result["accuracy"][-1][-1] - independent.result["accuracy"][-1][-1]
    slots = " or ".join(dict.fromkeys(str(event["slots"]) for event in kept))
    rows = [f"{run.folder.name}: {learned['task']} kept {slots}, transfer {transfer:+.4f}"]
    for each in (run, independent):
        event = last_learned(each)
        first = ", ".join(f"{value:.4f}" for value in event["curve"][:3])
        setting = f"rate {event['lr']:g}, decay {event['weight_decay']:g}"
        rows.append(f"  {each.result['learner']:<13} {setting}, validation {event['val_accuracy']:.4f}, first {first}")
    return rows


def last_learned(run: Recorded) -> Event:
    return of_kind(run.events, "learned")[-1]


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
