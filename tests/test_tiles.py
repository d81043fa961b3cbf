"""On Hopper: our own convolutions are convolutions, whatever happens to their results on the way. Else skipped."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.nets import chain, convolution, layers, tiles

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != tiles.HOPPER,
    reason="there is no Hopper here",
)
SIZES = [(1, 16, 1), (1, 32, 3), (3, 48, 2), (12, 32, 33), (42, 16, 75)]  # members, side, images


class Drawn:
    """Random activations and weights, rounded as the kernels get them."""

    def __init__(self, members: int, side: int, images: int) -> None:
        self.draw = torch.Generator("cuda").manual_seed(members * side + images)
        self.members, self.side, self.images = members, side, images
        weight = self.random(members, 64, 3, 3, 64) / 24
        self.weight = weight.bfloat16().view(members * 64, 3, 3, 64).permute(0, 3, 1, 2)
        self.parts = self.weight.view(members, 64, 64, 3, 3)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=self.draw)

    def activations(self, members: int) -> Tensor:
        x = self.random(self.images, members * 64, self.side, self.side).bfloat16()
        return x.contiguous(memory_format=torch.channels_last)

    def wanted(self, x: Tensor) -> Tensor:
        groups = x.shape[1] // 64 if x.shape[1] == len(self.weight) else 1
        return F.conv2d(x.double(), self.weight.double(), padding=1, groups=groups)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.double()).norm().detach() / wanted.detach().double().norm())


def along(numbers: Tensor) -> Tensor:
    return numbers.double()[:, None, None]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_convolution_and_its_sums(size: tuple[int, int, int], shared: bool) -> None:
    drawn = Drawn(*size)
    x = drawn.activations(1 if shared else drawn.members)
    assert tiles.usable(x, drawn.parts)
    wanted, added = drawn.wanted(x), drawn.activations(drawn.members)
    found, sums = tiles.summed(x, drawn.weight)
    assert relative(found, wanted) < 3e-3
    total, squares = sums.sum(0)
    assert relative(total, found.double().sum((0, 2, 3))) < 1e-4
    assert relative(squares, found.double().square().sum((0, 2, 3))) < 1e-4
    assert relative(tiles.convolve(x, drawn.weight, added), wanted + added.double()) < 3e-3


@pytest.mark.parametrize("beside", ["nothing", "own", "shared"])
@pytest.mark.parametrize("size", SIZES)
def test_a_convolution_with_a_folded_norm(size: tuple[int, int, int], beside: str) -> None:
    drawn = Drawn(*size)
    x, shift = drawn.activations(drawn.members), drawn.random(len(drawn.weight))
    added = None if beside == "nothing" else drawn.activations(1 if beside == "shared" else drawn.members)
    wanted = drawn.wanted(x) + along(shift)
    if added is not None:
        wanted = layers.add_shared(wanted, added.double())
    assert relative(tiles.normed(x, drawn.weight, shift, added), wanted.relu()) < 3e-3


@pytest.mark.parametrize("size", SIZES)
def test_a_gradient_goes_back_through_convolution_and_relu(size: tuple[int, int, int]) -> None:
    drawn = Drawn(*size)
    given, beside = drawn.activations(drawn.members), drawn.activations(drawn.members)
    scale, shift, mean, inverse = (drawn.random(len(drawn.weight)) for _ in range(4))
    wanted = drawn.wanted(given) * (beside.float() * scale[:, None, None] + shift[:, None, None] > 0)
    found, sums = tiles.masked(given, drawn.weight, beside, scale, shift, mean, inverse)
    assert relative(found, wanted) < 3e-3
    total, with_normal = sums.sum(0)
    assert relative(total, wanted.sum((0, 2, 3))) < 3e-3
    normal = (beside.double() - along(mean)) * along(inverse)
    assert relative(with_normal, (wanted * normal).sum((0, 2, 3))) < 5e-3


@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_of_weights(size: tuple[int, int, int]) -> None:
    drawn = Drawn(*size)
    x, given = drawn.activations(drawn.members), drawn.activations(drawn.members)
    weight = drawn.weight.double().requires_grad_()
    out = F.conv2d(x.double(), weight, padding=1, groups=drawn.members)
    (wanted,) = torch.autograd.grad(out, weight, given.double())
    assert relative(tiles.of_weights(x, given).flatten(0, 1), wanted) < 1e-3


def test_the_same_input_gives_the_same_bits() -> None:
    drawn = Drawn(7, 32, 40)
    x, given = drawn.activations(7), drawn.activations(7)
    for one, other in zip(tiles.summed(x, drawn.weight), tiles.summed(x, drawn.weight), strict=True):
        assert torch.equal(one, other)
    stats = [drawn.random(7 * 64) for _ in range(4)]
    for one, other in zip(*(tiles.masked(given, drawn.weight, x, *stats) for _ in range(2)), strict=True):
        assert torch.equal(one, other)
    for added in (None, given):
        assert torch.equal(*(tiles.normed(x, drawn.weight, stats[0], added) for _ in range(2)))
    assert torch.equal(*(tiles.convolve(x, drawn.weight, given) for _ in range(2)))
    assert torch.equal(*(tiles.of_weights(x, given) for _ in range(2)))


def test_what_does_not_fit_is_left_to_others() -> None:
    weight = torch.zeros(3, 64, 64, 3, 3, device="cuda")

    def fits(channels: int, *sides: int) -> bool:
        return convolution.tiled(torch.zeros(2, channels, *sides, device="cuda", dtype=torch.bfloat16), weight)

    assert fits(192, 16, 16)
    assert fits(64, 32, 32)
    assert not fits(192, 8, 8)
    assert not fits(192, 16, 32)
    assert not convolution.tiled(torch.zeros(2, 192, 16, 16, device="cuda"), weight)
    assert not tiles.usable(torch.zeros(2, 192, 16, 16), weight)
    assert not tiles.usable(torch.zeros(2, 192, 16, 16, device="cuda"), weight[:, :, :, :1, :1])
    assert not tiles.usable(torch.zeros(2, 64, 16, 16, device="cuda"), weight[:, :32])


@pytest.mark.parametrize("training", [True, False])
def test_a_chain_is_norm_relu_and_convolution(training: bool) -> None:
    """With all gradients, those of scale and shift too, against float64 on the same rounded numbers."""
    drawn = Drawn(3, 16, 9)
    x = drawn.activations(3).requires_grad_()
    stack = {f"n.{kind}": drawn.random(3, 64) for kind in ("weight", "bias", "running_mean")}
    stack["n.running_var"] = drawn.random(3, 64).square() + 0.5
    stack["c.weight"] = (drawn.random(3, 64, 64, 3, 3) / 24).bfloat16().float()
    trained = [stack[name].requires_grad_() for name in ("n.weight", "n.bias", "c.weight")]
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in stack.items()}
    x64 = x.detach().double().requires_grad_()
    assert chain.usable(x, stack["c.weight"])
    out, sums = layers.norm_relu_conv(x, stack, "n", "c", training, None)
    wanted, _ = layers.norm_relu_conv(x64, exact, "n", "c", training, None)
    assert sums is not None
    assert relative(out, wanted) < 5e-3
    assert relative(stack["n.running_mean"], exact["n.running_mean"]) < 1e-5
    given = drawn.activations(3)
    found = torch.autograd.grad(out, [x, *trained], given)
    exactly = [x64, *(exact[name] for name in ("n.weight", "n.bias", "c.weight"))]
    for one, other in zip(found, torch.autograd.grad(wanted, exactly, given.double()), strict=True):
        assert relative(one, other) < 1e-2


def test_gradients_of_a_convolution_and_of_what_is_beside_it_are_added() -> None:
    drawn = Drawn(3, 32, 4)
    x, given, beside_given = (drawn.activations(3) for _ in range(3))
    x.requires_grad_()
    weight = drawn.weight.float().view(3, 64, 64, 3, 3).requires_grad_()
    out, _, same = layers.conv_beside(x, weight)
    (change,) = torch.autograd.grad([out, same], x, [given, beside_given])
    x64 = x.detach().double().requires_grad_()
    plain = F.conv2d(x64, weight.detach().double().flatten(0, 1), padding=1, groups=3)
    (wanted,) = torch.autograd.grad([plain, x64 * 1], x64, [given.double(), beside_given.double()])
    assert relative(change, wanted) < 5e-3
    (alone,) = torch.autograd.grad(layers.conv_beside(x, weight)[2].sum(), x)
    assert torch.equal(alone, torch.ones_like(alone))


def test_without_a_compiler_others_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **more: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", broken)
    monkeypatch.setattr(tiles, "_kernels", tiles._kernels.__wrapped__)
    drawn = Drawn(2, 16, 3)
    x, weight = drawn.activations(2), drawn.parts.float()
    with pytest.warns(UserWarning, match="no compiler"):
        out, sums, _ = layers.conv_beside(x, weight)
    assert sums is None
    assert relative(out, drawn.wanted(x)) < 3e-3
