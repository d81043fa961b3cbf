"""Trained candidates once more: asked about images, all of them as one network, or as they are to be trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from espalier.training.candidate import Copy, Member, Reuse, Trained
from espalier.training.cost import trie_flops
from espalier.training.job import Job
from espalier.training.stacks import images_at_once
from espalier.training.trie import Trie, evaluating

FEWEST = 16  # images that are asked about at a time, if there are as many


@dataclass(frozen=True)
class Answers:
    """The share of right ones of each candidate, and the operations they took."""

    accuracies: list[float]
    flops: int


def as_trained(job: Job, results: Sequence[Trained]) -> tuple[Job, list[Member]]:
    """The job with the modules that were trained, and members that begin with them."""
    modules, members = dict(job.modules), []
    for number, result in enumerate(results):
        names = [f"trained {number} {block.name}" for block in job.backbone.blocks]  # no stored module has a blank
        modules |= {name: state for name, state in zip(names, result.states, strict=True) if state is not None}
        slots = zip(result.member.candidate, names, strict=True)
        candidate = tuple(slot if isinstance(slot, Reuse) else Copy(name) for slot, name in slots)
        members.append(Member(candidate, result.member.setting))
    return replace(job, modules=modules), members


@torch.no_grad()
def ask(job: Job, results: Sequence[Trained], x: Tensor, y: Tensor) -> Answers:
    """About images of the task. All have trained something."""
    there, members = as_trained(job, results)
    trie = Trie(job.backbone, members, there.modules, [{}] * len(job.backbone.blocks))  # nothing is fresh
    correct = torch.zeros(len(members), dtype=torch.long, device=job.device)
    size = min(job.protocol.eval_batch, max(FEWEST, images_at_once(there, members)))
    for images, labels in zip(torch.split(x, size), torch.split(y, size), strict=True):
        with job.precision():
            correct += (trie.forward(job.task.normalise(images), evaluating).argmax(2) == labels[:, None]).sum(0)
    return Answers((correct.double() / len(x)).tolist(), len(x) * trie_flops(trie)[1])
