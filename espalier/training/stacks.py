"""How much goes through networks at a time: which members of a task are trained as one model, and how many images are
asked about. Knows nothing about training.

A GPU trains all members at once. A processor computes small ones faster together than one by one, but only as long as
what passes from layer to layer stays in its cache.
"""

import math
from collections.abc import Sequence
from itertools import takewhile

import torch

from espalier.nets import Backbone
from espalier.training.candidate import Candidate, Member, Reuse
from espalier.training.job import Job

IN_CACHE = 4 << 20  # values: 16 MiB, where the last level of a cache has 32
ON_GPU = 1 << 29  # values: a gigabyte in bfloat16, which keeps it busy while the next part is asked for


def together(job: Job, members: Sequence[Member], batch: int) -> list[list[Member]]:
    """Members that are trained as one: in their order, as many as have room for the values of their largest layers, or
    one."""
    most = IN_CACHE if job.device.type == "cpu" else math.inf
    found: list[list[Member]] = []
    left = 0.0
    for member in members:
        needed = batch * largest_layer(job.backbone, member.candidate)
        if not found or needed > left:
            found.append([])
            left = most
        found[-1].append(member)
        left -= needed
    return found


def room(device: torch.device) -> int:
    """For the values of a layer, where less than all can be done at a time."""
    return IN_CACHE if device.type == "cpu" else ON_GPU


def images_at_once(job: Job, members: Sequence[Member]) -> int:
    """For as many there is room in the largest layers of these members together."""
    return room(job.device) // sum(largest_layer(job.backbone, member.candidate) for member in members)


def largest_layer(backbone: Backbone, candidate: Candidate) -> int:
    """Values that come out of it for one image, from the first trained block on."""
    frozen = takewhile(lambda slot: isinstance(slot, Reuse), candidate)
    return max(largest_layers(backbone)[len(list(frozen)) :])


def largest_layers(backbone: Backbone) -> list[int]:
    """Values that come out of the largest layer of each block, for one image."""
    found, given = [], backbone.image
    for block in backbone.blocks:
        largest = 0
        for piece in block.pieces:
            given = piece.shape(given)
            largest = max(largest, math.prod(given))
        found.append(largest)
    return found
