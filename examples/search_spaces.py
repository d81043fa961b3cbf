"""Which pieces of the search space earn their cost: MNTDP-D with several spaces, on one or more streams.

    python examples/search_spaces.py s_in_mini s_minus_mini --seeds 3

prints, for each stream and space, the accuracy on the last task and on average, the memory and the seconds, as means
over the seeds with their spread. Runs are kept in runs/spaces and not done again.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean, pstdev

from espalier.learners import MntdpD, Prior, Space
from espalier.runs import Settings
from espalier.runs.many import run_many

SPACES = {
    "suffix": Space((("suffix", None),)),
    "suffix+prefix1": Space((("suffix", None), ("prefix", 1))),
    "suffix+prefix2": Space((("suffix", None), ("prefix", 2))),
    "suffix+prefix3": Space((("suffix", None), ("prefix", 3))),
    "suffix+warm": Space((("suffix", None), ("warm", None))),
    "suffix+warm2": Space((("suffix", None), ("warm", 2))),
    "suffix+prefix1+warm": Space((("suffix", None), ("prefix", 1), ("warm", None))),
    "suffix+prefix2+warm": Space((("suffix", None), ("prefix", 2), ("warm", None))),
    "prefix1+warm": Space((("suffix", 1), ("prefix", 1), ("warm", None))),
}


def main() -> None:
    parser = parser_for(__doc__, Path("runs/spaces"))
    parser.add_argument("--spaces", nargs="+", default=list(SPACES), choices=SPACES)
    parser.add_argument("--prior", default="nearest-recoloured", choices=["nearest", "nearest-recoloured", "random"])
    options = parser.parse_args()
    prior = Prior(options.prior)
    compare({f"mntdp-d[{options.prior},{name}]": MntdpD(prior, SPACES[name]) for name in options.spaces}, options)


def parser_for(says: str | None, out: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=says, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, default=out)
    return parser


def compare(learners: dict[str, MntdpD], options: argparse.Namespace) -> None:
    """Run all learners on all streams with all seeds, and print a row for each learner and stream."""
    jobs = [
        (Settings.of(stream, name, seed), learner)
        for stream in options.streams
        for seed in range(options.seeds)
        for name, learner in learners.items()
    ]
    results = defaultdict(list)
    for settings, result in run_many(jobs, options.out, options.data, options.device, options.workers):
        results[settings.stream, settings.learner].append(result)
        print(f"  done: {settings.folder_name}", flush=True)

    print(f"\n{'stream':<14} {'learner':<44} {'last task':>15} {'average':>15} {'memory MB':>10} {'seconds':>8}")
    for stream in options.streams:
        for name in learners:
            found = results[stream, name]
            last = [r["metrics"]["last_task_accuracy"] for r in found]
            average = [r["metrics"]["avg_accuracy"] for r in found]
            memory, seconds = fmean(r["metrics"]["memory_mb"] for r in found), fmean(r["seconds"] for r in found)
            spread = f"{fmean(last):.3f} ± {pstdev(last):.3f}", f"{fmean(average):.3f} ± {pstdev(average):.3f}"
            print(f"{stream:<14} {name:<44} {spread[0]:>15} {spread[1]:>15} {memory:>10.2f} {seconds:>8.1f}")


if __name__ == "__main__":
    main()
