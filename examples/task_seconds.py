"""How long each task took to learn, by the records of finished runs.

    python examples/task_seconds.py results

prints, for each run, the seconds of every task with its number of train images; and, where a size comes more than once
after the first task, how much longer its last task took than its first.
"""

import argparse
from collections import defaultdict
from pathlib import Path

from espalier.report.records import Recorded, find_runs, home, read_events, read_recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    for folder in sorted(find_runs(parser.parse_args().runs)):
        show(read_recorded(folder))


def show(run: Recorded) -> None:
    events = read_events(home(run.folder, run.result) / "records.jsonl")
    taken = [(e["task"], e["images"]["train"], e["seconds"]) for e in events if e["event"] == "learned"]
    print(f"{run.result['stream']} {run.result['learner']} seed {run.result['seed']}")
    print("  " + ", ".join(f"{task} {images} images {seconds:.1f} s" for task, images, seconds in taken))
    by_size: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for task, images, seconds in taken[1:]:
        by_size[images].append((task, seconds))
    for images, tasks in by_size.items():
        (first, before), (last, after) = tasks[0], tasks[-1]
        if first != last:
            print(f"  {images} images: {last} took {after / before:.2f} times as long as {first}")


if __name__ == "__main__":
    main()
