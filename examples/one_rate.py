"""Does the learning rate decide how much is forgotten? Learners with one rate for all tasks, on permuted MNIST.

    python examples/one_rate.py finetune online-ewc er er25 --rates 1e-4,1e-3 --data PACKS --device cuda

The protocol tries two rates on every task and keeps the network that is best on that task, whatever it does to older
ones. Here each learner runs with each rate alone; online EWC with the strength that the whole grid chose, ER with 15
remembered images per class, and with 25. It prints the average accuracy, the forgetting and LCA. Runs are kept in
runs/rates and not done again.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from espalier.learners import Learned, Learner, Lesson
from espalier.learners.er import Er
from espalier.learners.ewc import Ewc
from espalier.learners.finetune import Finetune
from espalier.runs import Settings
from espalier.runs.many import run_many
from espalier.training import protocol

LEARNERS: dict[str, Learner] = {
    "finetune": Finetune(),
    "online-ewc": Ewc(strength=500.0, online=True),
    "er": Er(),
    "er25": Er(per_class=25),
}


@dataclass(frozen=True)
class OneRate:
    learner: Learner
    rate: float

    def learn(self, lesson: Lesson) -> Learned:
        grid = tuple(setting for setting in lesson.settings if setting.lr == self.rate)
        return self.learner.learn(replace(lesson, protocol=replace(lesson.protocol, grid=grid, fc_grid=grid)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("learners", nargs="+", choices=LEARNERS)
    parser.add_argument("--rates", type=rates, default=(1e-4, 1e-3))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    options = parser.parse_args()
    known = {setting.lr for setting in protocol("paper").fc_grid}
    if not set(options.rates) <= known:
        parser.error(f"the protocol's rates are {', '.join(f'{rate:g}' for rate in sorted(known))}")
    jobs = [
        (Settings.of("permuted_mnist", f"{name}[lr={rate:g}]"), OneRate(LEARNERS[name], rate))
        for name in options.learners
        for rate in options.rates
    ]
    print(f"{'learner':<20} {'average':>8} {'forgetting':>10} {'LCA':>6} {'seconds':>8}", flush=True)
    for settings, result in run_many(jobs, options.out, options.data, options.device, options.workers):
        found = result["metrics"]
        figures = f"{found['avg_accuracy']:>8.3f} {found['forgetting']:>+10.3f} {found['lca']:>6.3f}"
        print(f"{settings.learner:<20} {figures} {result['seconds']:>8.0f}", flush=True)


def rates(given: str) -> tuple[float, ...]:
    return tuple(float(rate) for rate in given.split(","))


if __name__ == "__main__":
    main()
