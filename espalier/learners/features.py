"""What past paths make of images: their features before the head. Knows nothing about labels.

A few paths at a time go side by side, one stack at every block, and what these share is computed once. So the number
of things a GPU is asked for grows slowly with the number of past tasks.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from espalier.learners.lesson import Lesson, Path
from espalier.nets import EVAL, Block
from espalier.nets.layers import Stack, join_unless_shared
from espalier.streams.task import Split, Task
from espalier.training.job import eval_batches
from espalier.training.stacks import largest_layers, room

TOGETHER = 16  # paths, or fewer where there is no room for as many
BATCH = 50  # images whose activations on these paths are held at a time

Level = tuple[list[Path], Stack]  # different beginnings of the paths, all as long, and their last modules


@torch.no_grad()
def features(lesson: Lesson, task: Task, trunks: Sequence[Path], split: Split) -> dict[Path, Tensor]:
    """(images, features) of each trunk: a path without its head."""
    found: dict[Path, Tensor] = {}
    job = lesson.job({})
    for group in _groups(lesson, trunks):
        levels, parts = _levels(lesson, group, split.x.device), []
        for x, _ in eval_batches(task, split, BATCH):
            with job.precision():
                parts.append(_through(levels, lesson.backbone.blocks, x).to(x.dtype))
        found |= dict(zip(group, torch.cat(parts).unbind(1), strict=True))
    return found


def macs_of(lesson: Lesson, trunks: Sequence[Path]) -> int:
    """Multiply-accumulates of one image through all of them."""
    macs, groups = lesson.backbone.macs(), _groups(lesson, trunks)
    return sum(macs[len(each) - 1] for group in groups for length in _lengths(group) for each in length)


def _groups(lesson: Lesson, trunks: Sequence[Path]) -> list[list[Path]]:
    """Those that begin alike are close to each other; as many as there is room for at every block."""
    widths, most = largest_layers(lesson.backbone), room(lesson.task.train.x.device) // BATCH
    groups: list[list[Path]] = [[]]
    for trunk in sorted(set(trunks)):
        more = [*groups[-1], trunk]
        fit = all(len(each) * width <= most for each, width in zip(_lengths(more), widths, strict=False))
        if len(more) == 1 or (fit and len(more) <= TOGETHER):
            groups[-1] = more
        else:
            groups.append([trunk])
    return groups


def _lengths(group: Sequence[Path]) -> Iterator[list[Path]]:
    """All different beginnings, those of one block, of two, and so on."""
    return (list(dict.fromkeys(trunk[:length] for trunk in group)) for length in range(1, len(group[0]) + 1))


def _levels(lesson: Lesson, group: Sequence[Path], device: torch.device) -> list[Level]:
    levels = []
    for beginnings in _lengths(group):
        states = [lesson.library.state(each[-1]) for each in beginnings]
        stack = {name: torch.stack([state[name] for state in states]).to(device) for name in states[0]}
        levels.append((beginnings, stack))
    return levels


def _through(levels: Sequence[Level], blocks: Sequence[Block], x: Tensor) -> Tensor:
    """(images, trunks, features); the last level's are the trunks."""
    known: dict[Path, Tensor] = {(): x.contiguous(memory_format=torch.channels_last)}
    for block, (beginnings, stack) in zip(blocks, levels, strict=False):
        out = block.forward(stack, join_unless_shared([known[each[:-1]] for each in beginnings]), EVAL)
        known = dict(zip(beginnings, out.chunk(len(beginnings), 1), strict=True))
    return torch.stack([made.flatten(1) for made in known.values()], 1)
