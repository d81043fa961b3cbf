"""Members of a stack are independent: n of them side by side do what n stacks of one do."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from espalier.nets import EVAL, Backbone, Block, Mode, State, backbone, is_buffer
from espalier.nets.layers import Stack, dropout
from espalier.nets.pieces import Dense, Shape
from espalier.training.adam import Adam
from tests.nets_help import close, random

SIDES = {"resnet": 8, "tiny": 8, "alexnet": 19, "fc": 6}
NETS = {name: backbone(name, (3, side, side), 4) for name, side in SIDES.items()}
PLACES = [(name, place) for name, net in NETS.items() for place in range(len(net.blocks))]
RATES, DECAYS, BATCH, STEPS = (1e-3, 3e-4, 2e-3), (0.0, 1e-2, 1e-3), 4, 20


@dataclass(eq=False)
class After:
    """What is left of a training: losses of every step, the last gradients, and the stack."""

    losses: Tensor
    gradients: tuple[Tensor, ...]
    stack: Stack


def block_at(net: Backbone, place: int) -> tuple[Block, Shape]:
    """A block and the shape of its input; AlexNet's second dense block, of four million weights, narrower."""
    shape = net.image
    for block in net.blocks[:place]:
        shape = block.shape(shape)
    block, piece = net.blocks[place], net.blocks[place].pieces[0]
    if isinstance(piece, Dense) and piece.inputs == piece.outputs == 2048:
        return Block(block.name, (replace(piece, inputs=256, outputs=256),)), (256,)
    return block, shape


def kept(block: Block, given: Shape, draw: torch.Generator) -> Tensor | None:
    drops = block.drops(given)
    return None if drops is None else torch.rand(BATCH, *drops[1], generator=draw) >= drops[0]


def trained(
    block: Block, given: Shape, states: list[State], x: Tensor, goal: Tensor, rates: Tensor, decays: Tensor
) -> After:
    """Twenty steps of a stack towards `goal`, the same for every member; x is shared, or members lie side by side."""
    stack = {name: torch.stack([s[name] for s in states]) for name in states[0]}
    parameters = [t.requires_grad_() for name, t in stack.items() if not is_buffer(name)]
    adam, draw = Adam(parameters, *([each] * len(parameters) for each in (rates, decays))), random(8)
    losses = []
    for _ in range(STEPS):
        out = block.forward(stack, x, Mode(True, kept(block, given, draw)))
        per_member = out.view(BATCH, len(states), *goal.shape[1:])
        loss = (per_member - goal[:, None]).square().transpose(0, 1).flatten(1).mean(1)
        gradients = torch.autograd.grad(loss.sum(), parameters)
        adam.step(gradients)
        losses.append(loss.detach())
    return After(torch.stack(losses), gradients, {n: t.detach() for n, t in stack.items()})


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_members_in_one_stack_learn_what_they_learn_alone(
    name: str, place: int, own: bool, dtype: torch.dtype, within: float
) -> None:
    net = NETS[name]
    block, given = block_at(net, place)
    count = 2 if name in ("alexnet", "fc") else 3  # those have many weights
    states = [{n: t.to(dtype) for n, t in block.init(random(i)).items()} for i in range(count)]
    xs = [torch.randn(BATCH, *given, generator=random(50 + i), dtype=dtype) for i in range(count if own else 1)]
    goal = torch.randn(BATCH, *block.shape(given), generator=random(99), dtype=dtype)
    rates, decays = (torch.tensor(values[:count], dtype=dtype) for values in (RATES, DECAYS))

    together = trained(block, given, states, torch.cat(xs, 1), goal, rates, decays)
    for i in range(count):
        alone = trained(block, given, [states[i]], xs[i if own else 0], goal, rates[i : i + 1], decays[i : i + 1])
        torch.testing.assert_close(together.losses[:, i], alone.losses[:, 0], rtol=within, atol=within)
        for mine, wanted in zip(together.gradients, alone.gradients, strict=True):
            torch.testing.assert_close(mine[i], wanted[0], rtol=within, atol=within)
        close({n: t[i] for n, t in together.stack.items()}, {n: t[0] for n, t in alone.stack.items()}, within)
        moved = {n for n, t in alone.stack.items() if not torch.equal(t[0], states[i][n])}
        assert moved == set(states[i])
    assert not torch.equal(together.losses[-1, 0], together.losses[-1, 1])


@pytest.mark.parametrize("shape", [(6,), (6, 3, 3)])
def test_a_dropout_mask_does_not_depend_on_the_number_of_members(shape: tuple[int, ...]) -> None:
    ones = torch.ones(50, *shape)
    kept = torch.rand(ones.shape, generator=random(3)) >= 0.25
    alone = dropout(ones, kept, 0.25)
    together = dropout(torch.cat([ones] * 4, 1), kept, 0.25)
    assert torch.equal(together, torch.cat([alone] * 4, 1))
    assert sorted(set(alone.flatten().tolist())) == pytest.approx([0, 4 / 3])


@pytest.mark.parametrize("place", [0, 3])
def test_a_block_drops_what_is_not_kept(place: int) -> None:
    block, given = block_at(NETS["alexnet"], place)
    stack = {n: t[None] for n, t in block.init(random(0)).items()}
    x = torch.randn(BATCH, *given, generator=random(1))
    plain = block.forward(stack, x, EVAL)
    drops = block.drops(given)
    assert drops is not None
    share, shape = drops
    everything = torch.ones(BATCH, *shape, dtype=torch.bool)
    torch.testing.assert_close(block.forward(stack, x, Mode(True, everything)), plain / (1 - share))
    assert not block.forward(stack, x, Mode(True, ~everything)).any()
    everything[:, 1:] = False
    dropped = block.forward(stack, x, Mode(True, everything))
    torch.testing.assert_close(dropped[:, :1], plain[:, :1] / (1 - share))
    assert not dropped[:, 1:].any()


def test_adam_is_torchs_adam_for_each_member() -> None:
    draw = random(0)
    starts = [torch.randn(3, *shape, generator=draw, dtype=torch.float64) for shape in ((4,), (2, 3), (2, 3, 1, 2))]
    mine = [t.clone() for t in starts]
    rates, decays = (torch.tensor(values, dtype=torch.float64) for values in (RATES, DECAYS))
    adam = Adam(mine, [rates] * 3, [decays] * 3)
    theirs = [[t[i].clone().requires_grad_() for t in starts] for i in range(3)]
    optimisers = [
        torch.optim.Adam(own, lr=RATES[i], betas=(0.9, 0.999), eps=1e-8, weight_decay=DECAYS[i])
        for i, own in enumerate(theirs)
    ]
    for step in range(40):
        gradients = tuple(torch.randn(t.shape, generator=draw, dtype=torch.float64) for t in starts)
        adam.step(gradients)
        for i, optimiser in enumerate(optimisers):
            for p, gradient in zip(theirs[i], gradients, strict=True):
                p.grad = gradient[i].clone()
            optimiser.step()
        for i in range(3):
            for p, wanted in zip(mine, theirs[i], strict=True):
                torch.testing.assert_close(p[i], wanted.detach(), rtol=0, atol=1e-12, msg=f"step {step} member {i}")


def test_adam_goes_on_for_the_members_that_stay() -> None:
    """Two of three members of one parameter, one of another, nobody of a third."""
    draw = random(0)
    shapes = [(3, 5), (2, 2, 3), (1, 4)]
    starts = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    rows, members = [[2, 0], [1], []], [[0, 1, 2], [0, 2], [1]]
    rates, decays = (torch.tensor(values, dtype=torch.float64) for values in (RATES, DECAYS))
    each = [[values[numbers] for numbers in members] for values in (rates, decays)]
    whole, packed = (Adam([start.clone() for start in starts], *each) for _ in range(2))
    for step in range(10):
        gradients = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
        if step == 4:
            staying = [p.detach()[kept] for p, kept in zip(packed.parameters, rows, strict=True) if kept]
            packed = packed.keep(staying, rows)
        whole.step(gradients)
        of_staying = [gradient[kept] for gradient, kept in zip(gradients, rows, strict=True) if kept]
        packed.step(gradients if step < 4 else of_staying)
    assert torch.equal(packed.parameters[0], whole.parameters[0][[2, 0]])
    assert torch.equal(packed.parameters[1], whole.parameters[1][[1]])
    assert len(packed.parameters) == 2
