"""How much EWC holds an old task depends on when its training was best. The Fisher matrix of one network, by steps.

    python examples/fisher_by_step.py s_plus 1 --epochs 20,40,150 --data PACKS

trains one task of a stream from scratch, for each number of epochs anew, under the setting that EWC chose for the first
task of `s_plus`. It prints of the weights with the best validation accuracy: their step, that accuracy, and for at most
1,024 train images how sure the network is of its answers, and the sum of the Fisher diagonal that EWC would take, of
all blocks but the head; the last also for the images augmented.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import espalier
from espalier.device import as_in_runs, named
from espalier.learners.ewc import AT_ONCE, FISHER_IMAGES, mean_squared_gradients
from espalier.nets import Backbone, State, backbone
from espalier.training import Fresh, Job, Setting, best, protocol, train
from espalier.training.job import Speed, augmented

SETTING = Setting(lr=1e-3, weight_decay=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("task", type=int, help="its number, from 1")
    parser.add_argument("--epochs", type=numbers, default=(20, 40, 150))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with as_in_runs(options.device):
        show(options)


def numbers(given: str) -> tuple[int, ...]:
    return tuple(int(number) for number in given.split(","))


def show(options: argparse.Namespace) -> None:
    device = named(options.device)
    task = espalier.stream(options.stream, seed=0, data=options.data)[options.task - 1].to(device)
    net = backbone("resnet", tuple(task.train.x.shape[1:]), task.n_classes)
    place = (options.stream, options.task - 1)
    print(f"{options.stream} task {options.task}: {len(task.train)} train images, {SETTING}")
    print("epochs | best step | val accuracy | median confidence | sum of Fisher | augmented")
    for epochs in options.epochs:
        limits = replace(protocol("paper"), max_epochs=epochs)
        job = Job(task, net, {}, limits, 0, place, speed=Speed.of(device))
        found = best(train(job, [tuple(Fresh() for _ in net.blocks)], [SETTING], lambda *progress: None).results)
        states = [state for state in found.states if state is not None]
        chosen = torch.arange(min(len(task.train), FISHER_IMAGES), device=device)
        sure, plain = fisher(net, states, task.normalise(task.train.x[chosen]))
        moved = augmented(task, chosen, limits, job.generator("fisher"))
        _, of_moved = fisher(net, states, task.normalise(moved))
        measured = f"{epochs:6} | {found.best_step:9} | {found.val_accuracy:12.3f} | {sure:17.3f}"
        print(f"{measured} | {plain:13.0f} | {of_moved:9.0f}", flush=True)


def fisher(net: Backbone, states: list[State], x: torch.Tensor) -> tuple[float, float]:
    """The median confidence, and the sum of the Fisher diagonal without the head's, for the network's own answers."""
    logits = torch.cat([net.forward(states, part) for part in torch.split(x, AT_ONCE)])
    diagonal = mean_squared_gradients(net, states, x, logits.argmax(1))
    trunk = [value.sum().item() for name, value in diagonal.items() if not name.startswith(f"{net.blocks[-1].name}/")]
    return logits.softmax(1).amax(1).median().item(), sum(trunk)


if __name__ == "__main__":
    main()
