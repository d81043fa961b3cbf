"""How long each task took to learn, by the records of finished runs.

    python examples/task_seconds.py results

prints, for each run, the seconds of every task with its number of train images; and, for every size that comes more
than once after the first task, the mean, the operations per second, how much longer its last task took than its first,
and its last ten than its first ten.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from espalier.report.records import Recorded, find_runs, read_recorded
from espalier.runs.records import of_kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    for folder in sorted(find_runs(parser.parse_args().runs)):
        show(read_recorded(folder))


def show(run: Recorded) -> None:
    events = run.events
    learned = of_kind(events, "learned")
    print(f"{run.result['stream']} {run.result['learner']} seed {run.result['seed']}")
    print("  " + ", ".join(f"{e['task']} {e['images']['train']} images {e['seconds']:.1f} s" for e in learned))
    by_size: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in learned[1:]:
        by_size[event["images"]["train"]].append(event)
    for images, tasks in by_size.items():
        if len(tasks) > 1:
            print(f"  {images} images: {compared(tasks)}")


def compared(tasks: list[dict[str, Any]]) -> str:
    seconds = [task["seconds"] for task in tasks]
    rate = sum(task["flops"] for task in tasks) / sum(seconds) / 1e12
    told = f"{len(tasks)} tasks, {fmean(seconds):.2f} s on average at {rate:.0f} TFLOP/s; "
    told += f"{tasks[-1]['task']} took {seconds[-1] / seconds[0]:.2f} times as long as {tasks[0]['task']}"
    if len(tasks) >= 20:
        told += f", the last ten {sum(seconds[-10:]) / sum(seconds[:10]):.2f} times as long as the first ten"
    return told


if __name__ == "__main__":
    main()
