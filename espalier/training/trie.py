"""All members of a task as one network. Knows nothing about batches, optimisers or stopping.

Laid over each other the members form a trie. Where members have the same frozen prefix they are one node of the
*trunk*: a plain forward pass without gradient, computed once. From its first trained block on a member is *live*: at
each block the live members form *cells*. A trained cell is a stack (one grouped convolution for all its members); a
frozen cell, behind a trained block, is one module through which its members' activations pass side by side, with
gradient.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from espalier.nets import EVAL, Backbone, Block, Mode, State, is_buffer
from espalier.nets.layers import Stack
from espalier.training.candidate import Copy, Member, ModuleStates, Reuse, Slot

Prefix = tuple[str, ...]  # the modules of a frozen prefix
Modes = Callable[[int], Mode]  # how the blocks run: a block's depth → a mode for one pass through it


@dataclass(eq=False)
class Cell:
    """Members that do the same at one block: their stack if they train it, or the one module they pass through.

    `parent` is the frozen prefix that feeds members that become live here; None: they are fed by the block before.
    """

    members: list[int]
    stack: Stack
    trained: bool
    parent: Prefix | None
    frozen_norms: bool = False

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
        for depth in range(len(self.blocks)):
            groups: dict[_Key, list[int]] = {}
            for number, member in enumerate(self.members):
                key = _group(member, depth)
                if key is not None:
                    groups.setdefault(key, []).append(number)
            self.cells.append([self._cell(depth, key, group, fresh[depth]) for key, group in groups.items()])

    def _cell(self, depth: int, key: "_Key", group: list[int], fresh: State) -> Cell:
        if key.frozen is not None:
            return Cell(group, {name: t[None] for name, t in self.modules[key.frozen].items()}, False, key.parent)
        states = [self._initial(self.members[number].candidate[depth], fresh) for number in group]
        stack = {name: torch.stack([s[name] for s in states]) for name in states[0]}
        stack = {name: tensor.requires_grad_(not is_buffer(name)) for name, tensor in stack.items()}
        return Cell(group, stack, True, key.parent, key.frozen_norms)

    def _initial(self, slot: Slot, fresh: State) -> State:
        return self.modules[slot.module] if isinstance(slot, Copy) else fresh

    def trained_cells(self) -> list[tuple[int, Cell]]:
        """Each with the depth of its block."""
        return [(depth, cell) for depth, cells in enumerate(self.cells) for cell in cells if cell.trained]

    def forward(self, x: Tensor, modes: Modes) -> Tensor:
        """Logits of all members, in their order: (batch, members, classes)."""
        # Grouped convolutions are faster in this layout, on processors by a seventh, on GPUs by more.
        trunk: dict[Prefix, Tensor] = {(): x.contiguous(memory_format=torch.channels_last)}
        order: list[int] = []
        live: Tensor | None = None
        for depth, block in enumerate(self.blocks):
            outputs = [self._compute(block, cell, trunk, order, live, modes(depth)) for cell in self.cells[depth]]
            order = [number for cell in self.cells[depth] for number in cell.members]
            live = torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0] if outputs else None
            trunk = self._grow_trunk(trunk, depth)
        assert live is not None
        logits = live.view(len(x), len(order), -1)
        return logits if order == sorted(order) else logits[:, self._index(_inverse(order), x.device)]

    def _compute(
        self, block: Block, cell: Cell, trunk: dict[Prefix, Tensor], order: list[int], live: Tensor | None, mode: Mode
    ) -> Tensor:
        if cell.frozen_norms:
            mode = replace(mode, frozen_norms=True)
        if cell.parent is not None:
            return block.forward(cell.stack, trunk[cell.parent], mode)
        assert live is not None
        x = self._select(live, order, cell.members)
        if cell.trained:
            return block.forward(cell.stack, x, mode)
        count = len(cell.members)
        if x.is_cuda:  # the layout stays as it is, where copies cost more than the module's weights once per member
            return block.forward({name: t.expand(count, *t.shape[1:]) for name, t in cell.stack.items()}, x, EVAL)
        # One module for all members of the cell: they pass through it as if they were more images.
        folded = x.reshape(len(x) * count, x.shape[1] // count, *x.shape[2:])
        out = block.forward(cell.stack, folded, EVAL)
        return out.reshape(len(x), -1, *out.shape[2:])

    def _select(self, live: Tensor, order: list[int], members: list[int]) -> Tensor:
        """The channels of `members`, which lie in `live` in the given order: a view where they are neighbours."""
        if members == order:
            return live
        width = live.shape[1] // len(order)
        places = [order.index(number) for number in members]
        if places == list(range(places[0], places[0] + len(places))):
            return live.narrow(1, places[0] * width, len(places) * width)
        per_member = live.view(len(live), len(order), width, *live.shape[2:])
        return per_member[:, self._index(places, live.device)].flatten(1, 2)

    def _index(self, places: list[int], device: torch.device) -> Tensor:
        """Made once: a step must not wait for a copy to the device."""
        key = tuple(places)
        if key not in self._indices:
            self._indices[key] = torch.tensor(places, device=device)
        return self._indices[key]

    @torch.no_grad()
    def _grow_trunk(self, trunk: dict[Prefix, Tensor], depth: int) -> dict[Prefix, Tensor]:
        """The frozen prefixes of the next depth that some cell, there or deeper, is fed by."""
        wanted = {c.parent[: depth + 1] for cells in self.cells[depth + 1 :] for c in cells if c.parent is not None}
        return {prefix: self._frozen(depth, prefix[-1], trunk[prefix[:-1]]) for prefix in sorted(wanted)}

    def _frozen(self, depth: int, module: str, x: Tensor) -> Tensor:
        stack = {name: tensor[None] for name, tensor in self.modules[module].items()}
        return self.blocks[depth].forward(stack, x, EVAL)

    def keep(self, numbers: list[int]) -> None:
        """Let only these members stay, renumbered in that order. Their tensors are new ones, and contiguous."""
        renumbered = {old: new for new, old in enumerate(numbers)}
        self.members = [self.members[number] for number in numbers]
        for cells in self.cells:
            for cell in cells:
                rows = cell.rows_of(renumbered)
                if cell.trained:
                    cell.stack = take_rows(cell.stack, rows)
                cell.members = [renumbered[cell.members[row]] for row in rows]
            cells[:] = [cell for cell in cells if cell.members]


def evaluating(depth: int) -> Mode:
    return EVAL


def repeated(state: State, count: int) -> Stack:
    """The stack of as many members that begin alike."""
    stack = {name: torch.stack([tensor] * count) for name, tensor in state.items()}
    return {name: tensor.requires_grad_(not is_buffer(name)) for name, tensor in stack.items()}


def take_rows(stack: Stack, rows: list[int]) -> Stack:
    return {name: tensor.detach()[rows].requires_grad_(tensor.requires_grad) for name, tensor in stack.items()}


@dataclass(frozen=True)
class _Key:
    """What the members of a cell have in common: the prefix that feeds them, and the module if it is a frozen one."""

    parent: Prefix | None
    frozen: str | None = None
    frozen_norms: bool = False


def _group(member: Member, depth: int) -> _Key | None:
    """What cell a member is in at a block; None: in none, as it is not live yet."""
    frozen = [slot.module if isinstance(slot, Reuse) else None for slot in member.candidate[: depth + 1]]
    live_before = None in frozen[:-1]
    slot = member.candidate[depth]
    if isinstance(slot, Reuse):
        return _Key(None, slot.module) if live_before else None
    prefix = None if live_before else tuple(module for module in frozen[:-1] if module is not None)
    return _Key(prefix, frozen_norms=isinstance(slot, Copy) and slot.keep_statistics)


def _inverse(order: list[int]) -> list[int]:
    return [order.index(number) for number in sorted(order)]
