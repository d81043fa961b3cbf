"""Operations: of one plain network as torch counts them, of a trie as counted by hand."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from espalier.nets import Backbone, backbone
from espalier.training import Member, Setting
from espalier.training.cost import forward_flops, own_macs, trie_flops
from espalier.training.trie import Trie, evaluating
from tests.nets_help import candidate, modules, random

# One image of 8×8 through `tiny` for three classes: multiply-accumulates of each block, counted by hand.
STEM = 9 * 3 * 8 * 64
STAGE1, STAGE1_INPUT = (9 * 8 * 16 + 9 * 16 * 16 + 8 * 16) * 16, (9 * 8 * 16 + 8 * 16) * 16
STAGE2 = (9 * 16 * 16 + 9 * 16 * 16 + 16 * 16) * 4
STAGE3, STAGE3_INPUT = 9 * 16 * 32 + 9 * 32 * 32 + 16 * 32, 9 * 16 * 32 + 16 * 32
HEAD = 32 * 3


def trie(net: Backbone, *codes: str) -> Trie:
    members = [Member(candidate(code, net), Setting(0.01, 0.0)) for code in codes]
    return Trie(net, members, modules(net, "a"), [block.init(random(0)) for block in net.blocks])


@pytest.mark.parametrize(
    ("name", "size"), [("resnet", 16), ("resnet-3", 9), ("alexnet", 32), ("alexnet", 21), ("fc", 28), ("tiny", 16)]
)
def test_one_plain_network_costs_what_torch_counts(name: str, size: int) -> None:
    net = backbone(name, (3, size, size), 10)
    made = trie(net, "." * len(net.blocks))
    x = torch.randn(2, 3, size, size, generator=random(1))
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        made.forward(x, evaluating)
    with FlopCounterMode(display=False) as both:
        torch.autograd.grad(
            made.forward(x, evaluating).sum(), [p for _, c in made.trained_cells() for p in c.parameters()]
        )
    assert forward.get_total_flops() == 2 * forward_flops(net) == 2 * trie_flops(made)[1]
    assert both.get_total_flops() == 2 * trie_flops(made)[0]


@pytest.mark.parametrize("code", ["aaaa.", "aa...", ".aaaa", "a.a.a"])
def test_one_member_with_frozen_blocks_costs_what_torch_counts(code: str) -> None:
    made = trie(backbone("tiny", (3, 16, 16), 10), code)
    x = torch.randn(2, 3, 16, 16, generator=random(1))
    with FlopCounterMode(display=False) as both:
        torch.autograd.grad(
            made.forward(x, evaluating).sum(), [p for _, c in made.trained_cells() for p in c.parameters()]
        )
    assert both.get_total_flops() == 2 * trie_flops(made)[0]


def test_the_blocks_of_tiny_cost_what_was_counted_by_hand() -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    assert net.macs() == [STEM, STAGE1, STAGE2, STAGE3, HEAD] == [13824, 57344, 19456, 14336, 96]
    assert net.input_macs()[1] == STAGE1_INPUT == 20480
    assert forward_flops(net) == 2 * 105056


def test_a_shared_trunk_is_counted_once() -> None:
    step, evaluation = trie_flops(trie(backbone("tiny", (3, 8, 8), 3), "aaa..", "aaaa."))
    # Forward: the trunk up to stage2 once, stage3 frozen for one member and trained by the other, two heads.
    forward = STEM + STAGE1 + STAGE2 + 2 * STAGE3 + 2 * HEAD
    assert forward == 119488
    # Backward: stage3's weights, and its second convolution's input; one head's weights and input, the other's weights.
    backward = STAGE3 + (STAGE3 - STAGE3_INPUT) + 2 * HEAD + HEAD
    assert backward == 14336 + 9216 + 288
    assert (step, evaluation) == (286656, 238976)


def test_members_that_train_the_same_blocks_are_each_counted() -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    one, three = trie_flops(trie(net, ".....")), trie_flops(trie(net, ".....", ".....", "....."))
    assert three == (3 * one[0], 3 * one[1])
    # A frozen block behind a trained one: forward, and the gradient of its input.
    step, evaluation = trie_flops(trie(net, ".aaaa"))
    rest = STAGE1 + STAGE2 + STAGE3 + HEAD
    assert (step, evaluation) == (2 * (2 * STEM + 2 * rest), 2 * (STEM + rest))


def test_what_a_member_shares_with_others_is_not_its_own() -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    own = {
        code: own_macs(net, Member(candidate(code, net), Setting(0.01, 0.0)))
        for code in (".....", "aaa..", ".aaaa", "aAaa.")
    }
    assert own == {
        ".....": sum(net.macs()),
        "aaa..": STAGE3 + HEAD,
        ".aaaa": sum(net.macs()),
        "aAaa.": STAGE1 + STAGE2 + STAGE3 + HEAD,
    }
