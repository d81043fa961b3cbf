"""What MNTDP-S is made of, in closed form: the distribution over paths, REINFORCE, the halves, Adam by rows."""

import pytest
import torch

from espalier.training.paths import Paths, entropy, reinforce_loss, sample
from espalier.training.row_adam import RowAdam
from espalier.training.supernet import halves
from tests.nets_help import random

A, B = (tuple(f"{name}.{block}" for block in ("stem", "stage1", "stage2", "stage3", "head")) for name in "ab")
MIXED = (*A[:2], *B[2:])  # branches off A


def test_paths_of_one_old_path_are_its_prefixes_and_all_begin_equally_likely() -> None:
    paths = Paths([A], [A])
    assert paths.prefixes == [A, A[:4], A[:3], A[:2], A[:1], ()]
    p = paths.log_probabilities(paths.uniform(2)).exp()
    torch.testing.assert_close(p, torch.full((2, 6), 1 / 6))
    assert paths.likeliest(paths.uniform(2)) == [0, 0], "where Γ has no opinion, more re-use"
    assert Paths([A], []).prefixes == paths.prefixes[1:], "a head that does not fit is not re-used"


def test_paths_of_many_old_paths_are_each_there_once_and_their_probabilities_sum_to_one() -> None:
    paths = Paths([A, B, MIXED], [A, MIXED])
    nodes = {path[:depth] for path in (A, B, MIXED) for depth in range(5)}
    assert set(paths.prefixes) == nodes | {A, MIXED}
    assert len(paths.prefixes) == len(nodes) + 2
    assert [len(prefix) for prefix in paths.prefixes] == sorted(map(len, paths.prefixes), reverse=True)
    p = paths.log_probabilities(torch.randn(4, *paths.shape, generator=random(0))).exp()
    torch.testing.assert_close(p.sum(1), torch.ones(4))
    start = paths.log_probabilities(paths.uniform(1)).exp()
    torch.testing.assert_close(start, torch.full_like(start, 1 / len(paths.prefixes)))


def test_the_probability_of_a_path_is_the_product_along_it() -> None:
    """Two blocks: from the root an old stem or a fresh one, from the old stem its old head or a fresh one."""
    paths = Paths([("s", "h")], [("s", "h")])
    assert paths.prefixes == [("s", "h"), ("s",), ()]
    logits = torch.tensor([[[2.0, 0.5], [-1.0, 0.0]]])  # the deeper node first; the fresh module is the last choice
    head, stem = torch.sigmoid(torch.tensor(1.5)), torch.sigmoid(torch.tensor(-1.0))
    expected = torch.stack([stem * head, stem * (1 - head), 1 - stem])
    torch.testing.assert_close(paths.log_probabilities(logits).exp()[0], expected)


def test_paths_are_drawn_as_often_as_they_are_likely() -> None:
    p = torch.tensor([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0]])
    drawn = sample(p.log(), torch.rand(2, 20000, generator=random(1)))
    shares = torch.stack([(drawn == path).double().mean(1) for path in range(3)], 1)
    torch.testing.assert_close(shares, p.double(), rtol=0, atol=0.015)  # four standard deviations
    assert sample(p.log(), torch.tensor([[0.0], [1 - 2**-24]])).tolist() == [[0], [1]]


def test_reinforce_has_the_gradient_of_the_expected_loss() -> None:
    """Two paths with rewards r0 and r1: d E[-r] / d logit0 = -p0 p1 (r0 - r1), and opposite for the other."""
    paths = Paths([("h",)], [("h",)])
    logits = torch.tensor([[[0.4, -0.3]]], dtype=torch.float64, requires_grad=True)
    paths._taken = paths._taken.double()
    rewards = torch.tensor([-0.2, -1.7], dtype=torch.float64)
    count, n = 20000, 8
    log_p = paths.log_probabilities(logits)
    drawn = sample(log_p.detach(), torch.rand(1, count * n, generator=random(2), dtype=torch.float64)).view(count, n)
    noise = torch.randn(count, n, generator=random(3), dtype=torch.float64)  # of the images: it must average out
    loss = reinforce_loss(log_p.expand(count, 2), drawn, rewards[drawn] + noise)
    (gradient,) = torch.autograd.grad(loss.mean(), logits)
    p0 = torch.sigmoid(torch.tensor(0.7, dtype=torch.float64)).item()
    exact = -p0 * (1 - p0) * (-0.2 + 1.7) * (n - 1) / n
    assert gradient[0, 0].tolist() == pytest.approx([exact, -exact], abs=0.006)
    assert abs(exact) > 0.2


def test_the_gradient_of_the_entropy_is_exact() -> None:
    """Of a categorical: dH / d logit_i = -p_i (log p_i + H)."""
    logits = torch.tensor([[0.3, -1.2, 0.8]], dtype=torch.float64, requires_grad=True)
    log_p = logits.log_softmax(1)
    (gradient,) = torch.autograd.grad(entropy(log_p).sum(), logits)
    p = log_p.detach().exp()
    h = -(p * p.log()).sum()
    torch.testing.assert_close(gradient, -p * (p.log() + h), rtol=0, atol=1e-12)
    paths = Paths([A], [A])
    uniform = paths.uniform(1).requires_grad_()
    (still,) = torch.autograd.grad(entropy(paths.log_probabilities(uniform)).sum(), uniform)
    assert still.abs().max() < 1e-6, "it cannot be larger than at the start"


def test_the_halves_are_disjoint_and_stratified() -> None:
    y = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1, 1, 2])
    first, second = halves(y)
    assert first.tolist() == [0, 1, 2, 3, 4, 9]
    assert second.tolist() == [5, 6, 7, 8, 9], "a lone image is in both"
    y = torch.randint(0, 4, (101,), generator=random(4))
    first, second = halves(y)
    assert sorted(first.tolist() + second.tolist()) == list(range(101))
    for label in range(4):
        assert 0 <= int((y[first] == label).sum()) - int((y[second] == label).sum()) <= 1


def test_row_adam_is_torchs_adam_for_those_who_step_and_nothing_for_the_others() -> None:
    draw = random(5)
    start = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    rates, decays = torch.tensor([1e-2, 1e-3, 0.1]).double(), torch.tensor([0.0, 0.1, 0.01]).double()
    stack = {"w": start.clone()}
    ours = RowAdam(stack, rates, decays)
    theirs = [start[row].clone().requires_grad_() for row in range(3)]
    adams = [
        torch.optim.Adam([p], lr=float(rate), weight_decay=float(decay))
        for p, rate, decay in zip(theirs, rates, decays, strict=True)
    ]
    for rows in ([0, 2], [2], [1, 0], [0, 1, 2], [1]):
        before = stack["w"].clone()
        gradients = torch.randn(len(rows), 4, generator=draw, dtype=torch.float64)
        ours.step(stack, torch.tensor(rows), {"w": gradients})
        for row, gradient in zip(rows, gradients, strict=True):
            theirs[row].grad = gradient
            adams[row].step()
        idle = [row for row in range(3) if row not in rows]
        assert torch.equal(stack["w"][idle], before[idle])
    torch.testing.assert_close(stack["w"], torch.stack([p.detach() for p in theirs]), rtol=0, atol=1e-12)
