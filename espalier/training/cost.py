"""How many floating-point operations training really runs, counted beforehand from the trie's structure.

A multiply-accumulate is two operations. A block forward costs its multiply-accumulates; its backward pass costs the
same for the gradient of its weights (if they are trained) and the same for the gradient of its input (if something
before it is trained). Layers without weights (norms, ReLU, pooling) are not counted, as in torch's own counter.
"""

from collections.abc import Container

from espalier.nets import Backbone
from espalier.training.candidate import Member
from espalier.training.trie import Cell, Prefix, Trie, first_trained

FLOPS_PER_MAC = 2


def forward_flops(backbone: Backbone) -> int:
    """One image through one plain network."""
    return FLOPS_PER_MAC * sum(backbone.macs())


def own_macs(backbone: Backbone, member: Member) -> int:
    """One image through all that a member does not share with those that begin with the same frozen modules."""
    return sum(backbone.macs()[first_trained(member) :])


def trie_flops(trie: Trie) -> tuple[int, int]:
    """Operations per image: of a training step (forward and backward), and of evaluation (forward alone)."""
    macs, input_macs = trie.backbone.macs(), trie.backbone.input_macs()
    forward = backward = 0
    for depth, cells in enumerate(trie.cells):
        for cell in cells:
            forward += len(cell.members) * macs[depth]
            backward += len(cell.members) * _backward_macs(cell, macs[depth], input_macs[depth])
    evaluation = FLOPS_PER_MAC * forward + trunk_flops(trie)
    return evaluation + FLOPS_PER_MAC * backward, evaluation


def trunk_flops(trie: Trie, known: Container[Prefix] = ()) -> int:
    """Operations per image of what is frozen at the front, where some of it is known."""
    macs = trie.backbone.macs()
    return FLOPS_PER_MAC * sum(macs[len(prefix) - 1] for prefix in trie.trunk_nodes(known))


def _backward_macs(cell: Cell, macs: int, input_macs: int) -> int:
    weights = macs if cell.trained else 0
    # The first trained block needs no gradient of its input, so the layers that read it skip that half.
    inputs = macs if cell.parent is None else macs - input_macs
    return weights + inputs
