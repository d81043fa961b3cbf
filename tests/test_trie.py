"""The trie: members laid over each other. What they share is computed once, and each computes what it would alone."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from espalier.nets import EVAL, Block, Mode, State, backbone
from espalier.nets.layers import Stack
from espalier.training import Member, Setting
from espalier.training.trie import Trie, evaluating
from tests.nets_help import candidate, modules, random

NET = backbone("tiny", (3, 8, 8), 3)
OLD = modules(NET, "a", "b")
FRESH = [block.init(random(77)) for block in NET.blocks]
CODES = ["aaaa.", "aaa..", "bbbb.", ".aaaa", ".....", ".a.a.", "aAaB.", "..abB"]


def trie(*codes: str) -> Trie:
    members = [Member(candidate(code, NET), Setting(number, 0.0)) for number, code in enumerate(codes)]
    return Trie(NET, members, OLD, FRESH)


def training(depth: int) -> Mode:
    return Mode(training=True)


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=random(5))


def plain(code: str, x: Tensor) -> Tensor:
    """A member's network, block after block, in evaluation."""
    for letter, block, fresh in zip(code, NET.blocks, FRESH, strict=True):
        state = fresh if letter == "." else OLD[f"{letter.lower()}.{block.name}"]
        x = block.forward({name: tensor[None] for name, tensor in state.items()}, x, EVAL)
    return x


def count_passes(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, bool]]:
    """Passes through each block from now on, by whether they leave a gradient."""
    passes: Counter[tuple[str, bool]] = Counter()
    forward = Block.forward

    def counted(block: Block, stack: Stack, x: Tensor, mode: Mode) -> Tensor:
        out = forward(block, stack, x, mode)
        passes[block.name, out.requires_grad] += 1
        return out

    monkeypatch.setattr(Block, "forward", counted)
    return passes


@pytest.mark.parametrize("codes", [CODES, CODES[::-1], CODES[:1], CODES[3:6], [*CODES[:3], *CODES[:3]]])
def test_logits_are_those_of_plain_networks_in_the_order_of_members(codes: list[str]) -> None:
    logits = trie(*codes).forward(images(), evaluating)
    assert logits.shape == (4, len(codes), 3)
    for number, code in enumerate(codes):
        torch.testing.assert_close(logits[:, number], plain(code, images()), rtol=0, atol=1e-5)


def test_a_shared_frozen_prefix_is_computed_once_and_without_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(monkeypatch)
    trie("aaaa.", "aaaa.", "aaa..", "aa...").forward(images(), training)
    assert passes == {
        ("stem", False): 1,
        ("stage1", False): 1,
        ("stage2", False): 1,
        ("stage2", True): 1,  # the new one of aa...
        ("stage3", False): 1,
        ("stage3", True): 2,  # aaa.. reads the trunk, aa... its own stage2
        ("head", True): 2,  # aaaa. twice in one stack, and the two others in another
    }


def test_different_prefixes_share_what_they_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(monkeypatch)
    trie("aaaa.", "aabb.").forward(images(), training)
    assert passes["stem", False] == passes["stage1", False] == 1
    assert passes["stage2", False] == passes["stage3", False] == 2


def test_members_pass_side_by_side_through_a_frozen_block_behind_a_trained_one(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(monkeypatch)
    trie(".aaaa", ".aaaa", "a.aaa").forward(images(), training)
    assert passes == {
        ("stem", True): 1,
        ("stem", False): 1,  # the trunk of a.aaa
        ("stage1", True): 2,
        ("stage2", True): 2,
        ("stage3", True): 2,
        ("head", True): 2,
    }


def test_members_that_do_the_same_once_they_are_live_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order they come: those that are live already pass through a block at once."""
    passes = count_passes(monkeypatch)
    made = trie("aaaA.", ".....", "aaa..", "AAAAA", "aaAA.", ".aaaa")
    made.forward(images(), training)
    assert passes["stage3", True] == 3, "two that begin here, two that began before, and .aaaa"
    assert [sorted(cell.members) for cell in made.cells[3]] == [[1, 3, 4], [5], [0, 2]]


def test_a_gradient_flows_through_a_frozen_block_and_not_into_it() -> None:
    made = trie(".aaaa", "aaaa.")
    cells = [cell for _, cell in made.trained_cells()]
    parameters = [p for cell in cells for p in cell.parameters()]
    gradients = torch.autograd.grad(made.forward(images(), training)[:, 0].sum(), parameters, allow_unused=True)
    stem, head = gradients[: len(cells[0].parameters())], gradients[len(cells[0].parameters()) :]
    assert all(g is not None and g.abs().max() > 0 for g in stem)
    assert all(g is None or not g.any() for g in head)  # the other member's
    assert not any(t.requires_grad for state in OLD.values() for t in state.values())


def test_only_trained_blocks_update_their_statistics() -> None:
    made = trie(".aaaa", "aaA.a", "aaaa.")
    before: dict[str, State] = {name: {n: t.clone() for n, t in state.items()} for name, state in OLD.items()}
    made.forward(images(), training)
    assert all(torch.equal(t, before[name][n]) for name, state in OLD.items() for n, t in state.items())
    (stem,) = made.cells[0]
    assert not torch.equal(stem.stack["0.norm.running_mean"][0], FRESH[0]["0.norm.running_mean"])
    copied = next(cell for cell in made.cells[2] if cell.trained)
    assert not torch.equal(copied.stack["0.norm1.running_mean"][0], before["a.stage2"]["0.norm1.running_mean"])


def test_a_stack_has_memory_of_its_own() -> None:
    made = trie("AAAAA", ".....", ".....")
    with torch.no_grad():
        for _, cell in made.trained_cells():
            for tensor in cell.stack.values():
                tensor.fill_(9)
    assert not any((t == 9).any() for state in [*OLD.values(), *FRESH] for t in state.values())


@pytest.mark.parametrize("staying", [[0, 2, 5], [3], [1, 4, 6, 7], list(range(8)), []])
def test_members_that_stay_are_what_they_were(staying: list[int]) -> None:
    made = trie(*CODES)
    made.forward(images(), training)  # so that statistics differ from those at the start
    with torch.no_grad():
        for _, cell in made.trained_cells():
            for p in cell.parameters():
                p += 0.01 * torch.randn(p.shape, generator=random(3))
    before = made.forward(images(), evaluating)
    made.keep(staying)
    assert [member.setting.lr for member in made.members] == staying
    assert all(cell.members for cells in made.cells for cell in cells)
    for _, cell in made.trained_cells():
        assert all(len(t) == len(cell.members) and t.is_contiguous() and t.is_leaf for t in cell.stack.values())
        assert all(p.requires_grad for p in cell.parameters())
    if staying:
        torch.testing.assert_close(made.forward(images(), evaluating), before[:, staying], rtol=0, atol=1e-5)
    else:
        assert made.trained_cells() == []


def test_a_prefix_that_nobody_needs_any_more_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trie("aaaa.", "bbbb.", ".....")
    made.keep([2])
    passes = count_passes(monkeypatch)
    made.forward(images(), training)
    assert passes == {(block.name, True): 1 for block in NET.blocks}
