"""All members of a task as one network. Knows nothing about batches, optimisers or stopping.

Laid over each other the members form a trie. Where members have the same frozen prefix they are one node of the
*trunk*: a plain forward pass without gradient, computed once. From its first trained block on a member is *live*: at
each block the live members form *cells*. A trained cell is a stack (one grouped convolution for all its members); a
frozen cell, behind a trained block, is one module through which its members' activations pass side by side, with
gradient. Members that do the same at every block once they are live share a *lane*: their activations stay together
from block to block, and nothing has to be picked out or put in another order.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from espalier.nets import EVAL, Backbone, Block, Mode, State, aside, is_buffer
from espalier.nets.layers import Stack, alone, join
from espalier.training.candidate import Copy, Member, ModuleStates, Reuse, Slot

Prefix = tuple[str, ...]  # the modules of a frozen prefix
Lane = tuple["Training | str", ...]  # what a live member does at each block: how it trains it, or the frozen module
Trunk = Mapping[Prefix, Tensor]  # what frozen prefixes make of the same images
Modes = Callable[[int], Mode]  # how the blocks run: a block's depth → a mode for one pass through it
NOTHING: Trunk = {}


class Training(Enum):
    WHOLE = 0
    OLD_NORMS = 1  # batch norm keeps the statistics that it came with


@dataclass(eq=False)
class Cell:
    """Members of one lane that do the same at one block: their stack if they train it, or the one module they pass
    through. They are in the order in which their activations lie.

    `parent` is the frozen prefix that feeds members that become live here; None: they are fed by the block before.
    """

    members: list[int]
    stack: Stack
    trained: bool
    parent: Prefix | None
    lane: Lane = ()

    def only(self, members: Sequence[int]) -> "Cell":
        """Of these members, renumbered in that order."""
        renumbered = {old: new for new, old in enumerate(members)}
        rows = self.rows_of(renumbered)
        stack = take_rows(self.stack, rows) if self.trained else self.stack
        return replace(self, members=[renumbered[self.members[row]] for row in rows], stack=stack)

    def rows_of(self, members: Container[int]) -> list[int]:
        return [row for row, number in enumerate(self.members) if number in members]

    def parameter_names(self) -> list[str]:
        return [name for name in self.stack if not is_buffer(name)]

    def parameters(self) -> list[Tensor]:
        return [self.stack[name] for name in self.parameter_names()]


class Trie:
    """`members` must all train something; fresh modules begin as `fresh[block]`, old ones are `modules[name]`."""

    def __init__(
        self, backbone: Backbone, members: Sequence[Member], modules: ModuleStates, fresh: Sequence[State]
    ) -> None:
        self.backbone, self.blocks, self.modules = backbone, backbone.blocks, modules
        self.members = list(members)
        self._indices: dict[tuple[int, ...], Tensor] = {}
        self.cells: list[list[Cell]] = []
        live: dict[Lane, list[int]] = {}
        for depth in range(len(self.blocks)):
            cells = [self._cell(depth, lane, None, numbers, fresh[depth]) for lane, numbers in live.items()]
            starting: dict[tuple[Lane, Prefix], list[int]] = {}
            for number, member in enumerate(self.members):
                if first_trained(member) == depth:
                    starting.setdefault((_lane(member), _prefix(member)), []).append(number)
            cells += [self._cell(depth, *feed, numbers, fresh[depth]) for feed, numbers in starting.items()]
            self.cells.append(cells)
            live = _by_lane(cells)

    def _cell(self, depth: int, lane: Lane, parent: Prefix | None, numbers: list[int], fresh: State) -> Cell:
        does = lane[depth]
        if isinstance(does, str):
            return Cell(numbers, alone(self.modules[does]), False, parent, lane)
        states = [self._initial(self.members[number].candidate[depth], fresh) for number in numbers]
        stack = {name: torch.stack([s[name] for s in states]) for name in states[0]}
        stack = {name: tensor.requires_grad_(not is_buffer(name)) for name, tensor in stack.items()}
        return Cell(numbers, stack, True, parent, lane)

    def _initial(self, slot: Slot, fresh: State) -> State:
        return self.modules[slot.module] if isinstance(slot, Copy) else fresh

    def trained_cells(self) -> list[tuple[int, Cell]]:
        """Each with the depth of its block."""
        return [(depth, cell) for depth, cells in enumerate(self.cells) for cell in cells if cell.trained]

    def forward(self, x: Tensor, modes: Modes, known: Trunk = NOTHING) -> Tensor:
        """Logits of all members, in their order: (batch, members, classes). What is known of the trunk of x is not
        computed again."""
        trunk, divides = _rooted(x, known), self._divides()
        live: dict[Lane, Tensor] = {}
        for depth in range(len(self.blocks)):
            live = self._through(depth, live, trunk, modes(depth), divides)
        order = [number for numbers in _by_lane(self.cells[-1]).values() for number in numbers]
        logits = torch.cat(list(live.values()), 1).view(len(x), len(order), -1)
        return logits if order == sorted(order) else logits[:, self._index(_inverse(order), x.device)]

    def _through(
        self, depth: int, live: Mapping[Lane, Tensor], trunk: dict[Prefix, Tensor], mode: Mode, divides: bool
    ) -> dict[Lane, Tensor]:
        """The activations of all lanes behind a block."""
        made: dict[Cell, Tensor] = {}
        starting = [(cell, cell.parent) for cell in self.cells[depth] if cell.parent is not None]
        with aside.away() if divides and live and starting else nullcontext():
            for cell, parent in starting:
                made[cell] = _compute(
                    self.blocks[depth], depth, cell, behind(parent, trunk, self.blocks, self.modules), mode
                )
        for cell in self.cells[depth]:
            if cell.parent is None:
                made[cell] = _compute(self.blocks[depth], depth, cell, live[cell.lane], mode)
        if starting:
            aside.back()
        lanes: dict[Lane, list[Tensor]] = {}
        for cell in self.cells[depth]:
            lanes.setdefault(cell.lane, []).append(made[cell])
        return {lane: join(parts) for lane, parts in lanes.items()}

    def _divides(self) -> bool:
        """Whether frozen prefixes, and members while they become live behind one, run beside those who are live: if
        they join them. (Else tensors of one line would stay in use on the other, which `aside` does not know of.)"""
        rooted = {cell.lane for cell in self.cells[0]}
        return all(cell.lane in rooted for cells in self.cells for cell in cells)

    def _index(self, places: list[int], device: torch.device) -> Tensor:
        """Made once: a step must not wait for a copy to the device."""
        key = tuple(places)
        if key not in self._indices:
            self._indices[key] = torch.tensor(places, device=device)
        return self._indices[key]

    @torch.no_grad()
    def trunk(self, x: Tensor, known: Trunk = NOTHING) -> Trunk:
        """What the frozen prefixes that feed cells make of x. It stays the same while members train, and leave."""
        trunk = _rooted(x, known)
        return {parent: behind(parent, trunk, self.blocks, self.modules) for parent in self._parents()}

    def trunk_nodes(self, known: Container[Prefix] = ()) -> set[Prefix]:
        """The frozen prefixes that have to be computed, if some are known."""
        nodes = set()
        for node in self._parents():
            while node and node not in known:
                nodes.add(node)
                node = node[:-1]
        return nodes

    def _parents(self) -> set[Prefix]:
        return {cell.parent for cells in self.cells for cell in cells if cell.parent is not None}

    def keep(self, numbers: list[int]) -> None:
        """Let only these members stay, renumbered in that order. Their tensors are new ones, and contiguous."""
        self.members = [self.members[number] for number in numbers]
        for cells in self.cells:
            for cell in cells:
                kept = cell.only(numbers)
                cell.stack, cell.members = kept.stack, kept.members
            cells[:] = [cell for cell in cells if cell.members]

    def only(self, numbers: Sequence[int]) -> "Trie":
        """These members as they are now, renumbered in that order, in tensors of their own."""
        there = copy(self)
        there.members = [self.members[number] for number in numbers]
        there._indices = {}
        kept = [[cell.only(numbers) for cell in cells] for cells in self.cells]
        there.cells = [[cell for cell in cells if cell.members] for cells in kept]
        return there


@torch.no_grad()
def behind(prefix: Prefix, known: dict[Prefix, Tensor], blocks: Sequence[Block], modules: ModuleStates) -> Tensor:
    """What a frozen prefix makes of images; what shorter ones make of them is looked up in `known`, and added to it."""
    if prefix not in known:
        before = behind(prefix[:-1], known, blocks, modules)
        known[prefix] = blocks[len(prefix) - 1].forward(alone(modules[prefix[-1]]), before, EVAL)
    return known[prefix]


def _rooted(x: Tensor, known: Trunk) -> dict[Prefix, Tensor]:
    """A trunk that only knows the images, and what is known."""
    # Grouped convolutions are faster in this layout, on processors by a seventh, on GPUs by more.
    return {(): x.contiguous(memory_format=torch.channels_last), **known}


def _compute(block: Block, depth: int, cell: Cell, x: Tensor, mode: Mode) -> Tensor:
    if cell.trained:
        old_norms = cell.lane[depth] is Training.OLD_NORMS
        return block.forward(cell.stack, x, replace(mode, frozen_norms=True) if old_norms else mode)
    count = len(cell.members)
    if x.is_cuda:  # the layout stays as it is, where copies cost more than the module's weights once per member
        return block.forward({name: t.expand(count, *t.shape[1:]) for name, t in cell.stack.items()}, x, EVAL)
    # One module for all members of the cell: they pass through it as if they were more images.
    folded = x.reshape(len(x) * count, x.shape[1] // count, *x.shape[2:])
    out = block.forward(cell.stack, folded, EVAL)
    return out.reshape(len(x), -1, *out.shape[2:])


def evaluating(depth: int) -> Mode:
    return EVAL


def repeated(state: State, count: int) -> Stack:
    """The stack of as many members that begin alike."""
    stack = {name: torch.stack([tensor] * count) for name, tensor in state.items()}
    return {name: tensor.requires_grad_(not is_buffer(name)) for name, tensor in stack.items()}


def cut(cell: Cell, numbers: Sequence[int]) -> Cell:
    """A cell of all members, a row for each in their order, cut down to these in that order."""
    return replace(cell, members=list(range(len(numbers))), stack=take_rows(cell.stack, list(numbers)))


def take_rows(stack: Stack, rows: list[int]) -> Stack:
    chosen = torch.tensor(rows, dtype=torch.long, device=next(iter(stack.values())).device)  # copied there once
    return {name: tensor.detach()[chosen].requires_grad_(tensor.requires_grad) for name, tensor in stack.items()}


def first_trained(member: Member) -> int:
    return next(depth for depth, slot in enumerate(member.candidate) if not isinstance(slot, Reuse))


def _prefix(member: Member) -> Prefix:
    """The frozen modules before the first trained block."""
    return tuple(s.module for s in member.candidate[: first_trained(member)] if isinstance(s, Reuse))


def _lane(member: Member) -> Lane:
    """Before they are live members differ in nothing that counts here."""
    first = first_trained(member)
    return (*(Training.WHOLE for _ in range(first)), *map(_does, member.candidate[first:]))


def _does(slot: Slot) -> Training | str:
    if isinstance(slot, Reuse):
        return slot.module
    return Training.OLD_NORMS if isinstance(slot, Copy) and slot.keep_statistics else Training.WHOLE


def _by_lane(cells: Sequence[Cell]) -> dict[Lane, list[int]]:
    """The members of each lane, in the order in which its activations lie behind these cells."""
    numbers: dict[Lane, list[int]] = {}
    for cell in cells:
        numbers.setdefault(cell.lane, []).extend(cell.members)
    return numbers


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
