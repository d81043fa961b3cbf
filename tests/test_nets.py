"""Blocks and backbones for one member: sizes, and the same function as torch's own modules compute."""

import pytest
import torch
from torch import Tensor, nn

from espalier.errors import InputError
from espalier.nets import EVAL, Backbone, Mode, State, backbone, is_buffer, parameters
from tests.nets_help import doubles, random

COLOUR, MNIST = (3, 32, 32), (1, 28, 28)


def sizes(name: str, image: tuple[int, ...] = COLOUR, classes: int = 10) -> list[int]:
    return [parameters(block.init(random(0))) for block in backbone(name, image, classes).blocks]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("resnet", [1856, 147968, 152192, 152192, 78208, 73984, 650]),
        ("resnet-3", [302016, 304384, 650]),
        ("resnet-6", [1856, 147968, 152192, 152192, 152192, 650]),
        ("resnet-10", [1856, 73984, 73984, 78208, 73984, 78208, 73984, 78208, 73984, 650]),
    ],
)
def test_the_resnet_has_the_papers_sizes_however_it_is_cut(name: str, wanted: list[int]) -> None:
    assert sizes(name) == wanted
    assert sum(wanted) == 607050


def test_alexnet_and_fc_have_the_papers_sizes() -> None:
    assert sizes("alexnet") == [3136, 73856, 131328, 2099200, 4196352, 20490]
    assert sizes("alexnet", classes=5) == [3136, 73856, 131328, 2099200, 4196352, 10245]
    assert sizes("fc", MNIST) == [785000, 1001000, 10010]
    assert sizes("resnet", classes=5)[-1] == 325


def test_an_unknown_backbone_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"no backbone 'vgg'; the backbones are resnet, .*tiny"):
        backbone("vgg", COLOUR, 10)


def test_the_names_of_blocks_are_unique_and_end_with_the_head() -> None:
    for name in ("resnet", "resnet-3", "resnet-6", "resnet-10", "alexnet", "fc", "tiny"):
        names = [block.name for block in backbone(name, COLOUR, 10).blocks]
        assert len(set(names)) == len(names)
        assert names[-1] == "head"


def test_a_module_begins_as_its_generator_says() -> None:
    block = backbone("tiny", COLOUR, 10).blocks[1]
    one, two, other = block.init(random(1)), block.init(random(1)), block.init(random(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["0.conv1.weight"], other["0.conv1.weight"])
    assert not torch.equal(one["0.conv1.weight"], one["0.conv2.weight"][:, :8])
    bound = (8 * 9) ** -0.5
    assert 0.95 * bound < one["0.conv1.weight"].abs().max() <= bound
    assert all((one[f"0.{norm}.running_var"] == 1).all() for norm in ("norm1", "norm2", "short_norm"))


# The same network in torch's modules. Their attributes have the names of the states' tensors.


class Stem(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.projects = stride != 1 or inputs != outputs
        if self.projects:
            self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.short_norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(out + (self.short_norm(self.short(x)) if self.projects else x))


class ConvPool(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.pool(torch.relu(self.conv(x)))
        return out


class Dense(nn.Module):
    def __init__(self, inputs: int, outputs: int, relu: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.flatten(1))
        return torch.relu(out) if self.relu else out


def pool() -> nn.Module:
    return nn.AdaptiveAvgPool2d(1)


def reference(name: str, size: int) -> nn.Sequential:
    """One nn.Sequential per block, for images of `size` and 10 classes."""
    blocks: list[list[nn.Module]]
    if name == "resnet":
        blocks = [
            [Stem(3, 64)],
            [Residual(64, 64, 1), Residual(64, 64, 1)],
            [Residual(64, 64, 2), Residual(64, 64, 1)],
            [Residual(64, 64, 2), Residual(64, 64, 1)],
            [Residual(64, 64, 2)],
            [Residual(64, 64, 1), pool()],
            [Dense(64, 10, relu=False)],
        ]
    elif name == "tiny":
        blocks = [
            [Stem(3, 8)],
            [Residual(8, 16, 2)],
            [Residual(16, 16, 2)],
            [Residual(16, 32, 2), pool()],
            [Dense(32, 10, relu=False)],
        ]
    elif name == "alexnet":
        blocks = [
            [ConvPool(3, 64, 4)],
            [ConvPool(64, 128, 3)],
            [ConvPool(128, 256, 2)],
            [Dense(256, 2048)],
            [Dense(2048, 2048)],
            [Dense(2048, 10, relu=False)],
        ]
    else:
        blocks = [[Dense(3 * size * size, 1000)], [Dense(1000, 1000)], [Dense(1000, 10, relu=False)]]
    return nn.Sequential(*(nn.Sequential(*block) for block in blocks))


def start(net: Backbone) -> dict[str, Tensor]:
    """A stack of one member for the whole network: "0.0.conv.weight" is block, piece, tensor."""
    return {
        f"{number}.{name}": tensor[None].requires_grad_(not is_buffer(name))
        for number, block in enumerate(net.blocks)
        for name, tensor in block.init(random(number)).items()
    }


def forward(net: Backbone, stack: State, x: Tensor, mode: Mode) -> Tensor:
    for number, block in enumerate(net.blocks):
        prefix = f"{number}."
        x = block.forward({n.removeprefix(prefix): t for n, t in stack.items() if n.startswith(prefix)}, x, mode)
    return x


@pytest.mark.parametrize(("name", "size"), [("resnet", 8), ("tiny", 12), ("alexnet", 19), ("fc", 6)])
def test_one_member_computes_what_torchs_modules_compute(name: str, size: int) -> None:
    with doubles():
        net, torchs = backbone(name, (3, size, size), 10), reference(name, size)
        stack = start(net)
        torchs.load_state_dict({n: t[0].detach() for n, t in stack.items()}, strict=False)
        x, y = torch.randn(4, 3, size, size, generator=random(99)), torch.tensor([3, 1, 4, 1])
        for _ in range(2):  # the second time the statistics are no more those of a new module
            mine, theirs = forward(net, stack, x, Mode(training=True)), torchs(x)
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
        trained = [n for n, t in stack.items() if t.requires_grad]
        assert trained == [n for n, _ in torchs.named_parameters()]
        mine_by_name = torch.autograd.grad(nn.functional.cross_entropy(mine, y), [stack[n] for n in trained])
        theirs_by_name = torch.autograd.grad(nn.functional.cross_entropy(theirs, y), list(torchs.parameters()))
        for gradient, wanted in zip(mine_by_name, theirs_by_name, strict=True):
            torch.testing.assert_close(gradient[0], wanted, rtol=0, atol=1e-12)
        statistics = {n: t for n, t in torchs.named_buffers() if is_buffer(n)}
        assert statistics.keys() == {n for n in stack if is_buffer(n)}
        for n, wanted in statistics.items():
            torch.testing.assert_close(stack[n][0], wanted, rtol=0, atol=1e-12)
        torchs.eval()
        torch.testing.assert_close(forward(net, stack, x, EVAL), torchs(x), rtol=0, atol=1e-12)


def test_evaluation_changes_no_statistic() -> None:
    net = backbone("tiny", (3, 8, 8), 3)
    stack = start(net)
    before = {n: t.detach().clone() for n, t in stack.items()}
    forward(net, stack, torch.randn(4, 3, 8, 8, generator=random(0)), EVAL)
    assert all(torch.equal(stack[n], before[n]) for n in before)
    forward(net, stack, torch.randn(4, 3, 8, 8, generator=random(0)), Mode(training=True))
    assert not any(torch.equal(stack[n], before[n]) for n in before if is_buffer(n))


@pytest.mark.parametrize("cut", ["resnet-3", "resnet-6", "resnet-10"])
def test_every_cut_of_the_resnet_computes_the_same_function(cut: str) -> None:
    whole, other = (backbone(name, (3, 8, 8), 10) for name in ("resnet", cut))
    states = start(whole)
    renamed: State = {}
    sources = iter([(number, piece) for number, block in enumerate(whole.blocks) for piece in range(len(block.pieces))])
    for number, block in enumerate(other.blocks):
        for piece in range(len(block.pieces)):
            old, new = "{}.{}.".format(*next(sources)), f"{number}.{piece}."
            renamed |= {new + n.removeprefix(old): t for n, t in states.items() if n.startswith(old)}
    assert len(renamed) == len(states)
    assert renamed.keys() == start(other).keys()
    x = torch.randn(2, 3, 8, 8, generator=random(5))
    for mode in (Mode(training=True), EVAL):
        again = {n: t.detach().clone() for n, t in renamed.items()}
        mine = {n: t.detach().clone() for n, t in states.items()}
        assert torch.equal(forward(whole, mine, x, mode), forward(other, again, x, mode))


@pytest.mark.parametrize("name", ["resnet", "resnet-3", "alexnet", "fc", "tiny"])
def test_a_block_tells_the_shape_it_gives(name: str) -> None:
    net = backbone(name, (3, 21, 21), 4)
    x, shape = torch.zeros(2, 3, 21, 21), net.image
    for block in net.blocks:
        x = block.forward({n: t[None] for n, t in block.init(random(0)).items()}, x, EVAL)
        shape = block.shape(shape)
        assert x.shape[1:] == shape
    assert shape == (4,)
