"""Which members of a task are trained as one model. Knows nothing about training.

A GPU takes all of them. A processor computes small members faster together than one by one, but only as long as what
passes from layer to layer stays in its cache.
"""

import math
from collections.abc import Sequence

from espalier.nets import Backbone
from espalier.training.candidate import Candidate, Member, Reuse
from espalier.training.job import Job

IN_CACHE = 4 << 20  # values: 16 MiB, where the last level of a cache has 32


def stacks(job: Job, members: Sequence[Member], batch: int) -> list[list[Member]]:
    """In their order, as many in each as have room for the values of their largest layers together, or one."""
    room = IN_CACHE if job.device.type == "cpu" else math.inf
    found: list[list[Member]] = []
    left = 0.0
    for member in members:
        needed = batch * largest_layer(job.backbone, member.candidate)
        if not found or needed > left:
            found.append([])
            left = room
        found[-1].append(member)
        left -= needed
    return found


def largest_layer(backbone: Backbone, candidate: Candidate) -> int:
    """Values that come out of it for one image, from the first trained block on."""
    largest, given, live = 0, backbone.image, False
    for block, slot in zip(backbone.blocks, candidate, strict=True):
        live = live or not isinstance(slot, Reuse)
        for piece in block.pieces:
            given = piece.shape(given)
            largest = max(largest, math.prod(given) if live else 0)
    return largest
