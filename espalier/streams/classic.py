"""The two standard streams of the paper: permuted MNIST and split CIFAR-100, ten ten-way tasks each.

The paper gives no sizes for them; here a task has all there is: the train pool, the val pool and the test images.
"""

from dataclasses import replace

from espalier.data.folder import DataFolder
from espalier.data.official import OFFICIAL
from espalier.seeds import torch_seed
from espalier.streams.choice import choose_classes
from espalier.streams.task import TaskSpec

TASKS = 10


def permuted_mnist(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    """Grey 28×28 images for the fully connected backbone. Every task, the first too, has a permutation of its own."""
    plain = TaskSpec("mnist", OFFICIAL["mnist"].class_names, None, None, None, size=28, channels=1)
    return permuted(name, seed, plain, TASKS)


def permuted(name: str, seed: int, plain: TaskSpec, tasks: int) -> list[TaskSpec]:
    return [replace(plain, permutation=torch_seed(seed, name, i, "permutation")) for i in range(tasks)]


def split_cifar100(name: str, seed: int, data: DataFolder) -> list[TaskSpec]:
    classes = choose_classes(data, "cifar100", 100, seed, name)
    return [TaskSpec("cifar100", classes[10 * i : 10 * i + 10], None, None, None) for i in range(TASKS)]
