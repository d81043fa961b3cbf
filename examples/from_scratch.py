"""How well a dataset's tasks are learned from scratch, by the records of finished runs.

    python examples/from_scratch.py results svhn

prints, for each run and each task of that dataset, the validation accuracy that a network without any old module
reached under each setting, and the test accuracy of what the learner chose in the end. What goes badly once was bad
luck; what goes badly under all settings, in every run, is the task as it was drawn: its images, or the weights that
its networks begin with (runs with the same seed share both). Runs of `pnn` and `mntdp-s` are left out: what is fresh
there is trained together with old modules.
"""

import argparse
from pathlib import Path

from espalier.report.records import Recorded, find_runs, read_recorded
from espalier.runs.records import of_kind

WITH_OLD_ONES = ("pnn", "mntdp-s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("dataset")
    options = parser.parse_args()
    for folder in sorted(find_runs(options.runs)):
        run = read_recorded(folder)
        if run.result["learner"] not in WITH_OLD_ONES:
            for line in lines_of(run, options.dataset):
                print(line)


def lines_of(run: Recorded, dataset: str) -> list[str]:
    events = run.events
    tasks = [event["task"] for event in of_kind(events, "learned")]
    wanted = [event["task"] for event in of_kind(events, "learned") if event["dataset"] == dataset]
    what = run.result
    title = f"{what['stream']:<8} {what['learner']:<14} {what['backbone']:<7} seed {what['seed']}"
    return [
        f"{title}  {task}  from scratch {' '.join(tried)}  chosen, test {what['accuracy'][-1][tasks.index(task)]:.3f}"
        for task in wanted
        if (tried := from_scratch(events, task))
    ]


def from_scratch(events: list[dict[str, object]], task: str) -> list[str]:
    tried = [event for event in of_kind(events, "candidate") if event["task"] == task]
    return [f"{event['val_accuracy']:.3f}" for event in tried if set(str(event["slots"])) == {"f"}]


if __name__ == "__main__":
    main()
