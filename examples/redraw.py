"""Is it the images or the weights? One task of a stream, learned from scratch with either drawn anew.

    python examples/redraw.py s_out 5 --images 0,1,2 --weights 0,1,2 --data PACKS --device cuda

trains the fifth task, its images as the stream draws them by each seed of `--images`, under all settings of the
protocol from the weights, and with the batches, that a run draws by each seed of `--weights`. It prints the highest
validation accuracy of each training, and the test accuracy of that network. A row that is bad throughout has bad
images.
"""

import argparse
from pathlib import Path

import espalier
from espalier.device import as_in_runs, named
from espalier.evaluation.accuracy import accuracy
from espalier.nets import backbone
from espalier.training import Fresh, Job, best, protocol, train
from espalier.training.job import Speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("task", type=int, help="its number, from 1")
    parser.add_argument("--images", type=seeds, default=(0, 1, 2))
    parser.add_argument("--weights", type=seeds, default=(0, 1, 2))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", default="resnet")
    parser.add_argument("--protocol", type=protocol, default=protocol("paper"))
    options = parser.parse_args()
    with as_in_runs(options.device):
        show(options)


def show(options: argparse.Namespace) -> None:
    print(f"{options.stream} task {options.task}: validation / test accuracy")
    print("images of seed | " + " | ".join(f"weights of seed {seed}" for seed in options.weights))
    for images in options.images:
        found = [from_scratch(options, images, weights) for weights in options.weights]
        print(f"{images:>14} | " + " | ".join(f"   {val:.3f} / {test:.3f}" for val, test in found), flush=True)


def seeds(given: str) -> tuple[int, ...]:
    return tuple(int(seed) for seed in given.split(","))


def from_scratch(options: argparse.Namespace, images: int, weights: int) -> tuple[float, float]:
    device = named(options.device)
    task = espalier.stream(options.stream, seed=images, data=options.data)[options.task - 1].to(device)
    net = backbone(options.backbone, tuple(task.train.x.shape[1:]), task.n_classes)
    place = (options.stream, options.task - 1)
    job = Job(task, net, {}, options.protocol, weights, place, speed=Speed.of(device))
    candidate = tuple(Fresh() for _ in net.blocks)
    chosen = best(train(job, [candidate], options.protocol.settings(net.name), lambda *progress: None).results)
    states = [state for state in chosen.states if state is not None]
    return chosen.val_accuracy, accuracy(task, net, states, options.protocol.eval_batch)


if __name__ == "__main__":
    main()
