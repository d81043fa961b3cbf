"""What the average accuracy on a long stream owes to the tasks that were drawn, by the records of finished runs.

    python examples/long_mix.py results

prints, for each run on `s_long` or `s_long@paper`, the mean test accuracy of its large and small tasks by dataset; and
the average over the stream beside the one to be expected of streams drawn by the same law, in which all datasets are
alike likely and 24.75 of 100 tasks are large. Its error is that of the means alone.
"""

import argparse
from collections import defaultdict
from math import sqrt
from pathlib import Path
from statistics import mean, variance

from espalier.report.records import Recorded, find_runs, read_recorded
from espalier.runs.records import of_kind
from espalier.streams.long import PAPER

Groups = dict[tuple[str, bool], list[float]]  # accuracies by dataset, and whether the tasks are large


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    for folder in sorted(find_runs(parser.parse_args().runs)):
        run = read_recorded(folder)
        if run.result["stream"].split("@")[0] == "s_long":
            show(run)


def show(run: Recorded) -> None:
    groups = grouped(run)
    print(f"{run.result['stream']} {run.result['learner']} seed {run.result['seed']}")
    for (dataset, large), accuracies in sorted(groups.items()):
        size = "large" if large else "small"
        print(f"  {dataset:<14} {size} {len(accuracies):>3} tasks, accuracy {mean(accuracies):.3f}")
    print(f"  average of this stream {run.result['metrics']['avg_accuracy']:.3f}, to be expected {expected(groups)}")


def grouped(run: Recorded) -> Groups:
    events = run.events
    learned = of_kind(events, "learned")
    groups: Groups = defaultdict(list)
    for event, accuracy in zip(learned, run.result["accuracy"][-1], strict=True):
        groups[event["dataset"], event["images"]["train"] > PAPER.small[0] * len(event["classes"])].append(accuracy)
    return groups


def expected(groups: Groups) -> str:
    """The average accuracy of a stream as it is drawn, and its standard error."""
    if any(len(groups.get((dataset, large), ())) < 2 for dataset in PAPER.datasets for large in (False, True)):
        return "unknown: each dataset must have two tasks of each size"
    large = large_share()
    weights = {key: (large if key[1] else 1 - large) / len(PAPER.datasets) for key in groups}
    average = sum(weights[key] * mean(found) for key, found in groups.items())
    error = sqrt(sum(weights[key] ** 2 * variance(found) / len(found) for key, found in groups.items()))
    return f"{average:.3f} ± {error:.3f}"


def large_share() -> float:
    first, second = PAPER.thirds
    lengths = (first, second - first, PAPER.tasks - second)
    return sum(share * length for share, length in zip(PAPER.large_share, lengths, strict=True)) / PAPER.tasks


if __name__ == "__main__":
    main()
