"""Saved copies: the rows of some members are renewed, all others stay as they were, bit for bit."""

import pytest
import torch

from espalier.training.renewal import PIECE, Pair, Renewal
from tests.nets_help import random

SHAPES = {(3, 64): [0, 1, 2], (2, PIECE + 904): [2, 4], (4, 7, 3, 3): [0, 3, 1, 4], (1, PIECE): [3], (2,): [1, 0]}


def pairs(device: str = "cpu") -> list[Pair]:
    draw = random(0)
    made = [(torch.randn(shape, generator=draw), torch.randn(shape, generator=draw)) for shape in SHAPES]
    rows = [torch.tensor(members) for members in SHAPES.values()]
    return [
        Pair(now.to(device), saved.to(device), row.to(device)) for (now, saved), row in zip(made, rows, strict=True)
    ]


def check(device: str, in_place: bool) -> None:
    for wanted in ([True, False, True, False, True], [False] * 5, [True] * 5, [False, False, False, True, False]):
        renewed, before = pairs(device), pairs(device)
        renewal = Renewal(renewed, in_place)
        renewal.renew(torch.tensor(wanted, device=device))
        for after, then in zip(renewed, before, strict=True):
            for row, member in enumerate(then.members.tolist()):
                assert torch.equal(after.saved[row], (then.now if wanted[member] else then.saved)[row])
            assert torch.equal(after.now, then.now)


@pytest.mark.parametrize("in_place", [False, True])
def test_rows_of_wanted_members_are_renewed(in_place: bool) -> None:
    check("cpu", in_place)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("in_place", [False, True])
def test_so_they_are_on_a_gpu_in_one_kernel(in_place: bool) -> None:
    check("cuda", in_place)
    assert (Renewal(pairs("cuda"), in_place).pieces is not None) == in_place


def test_nothing_is_nothing() -> None:
    Renewal([], in_place=True).renew(torch.ones(0, dtype=torch.bool))
