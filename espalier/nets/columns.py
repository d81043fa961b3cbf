"""Columns: the network of a progressive learner, a whole backbone per task, each fed by all before it. Knows nothing
about training.

Rusu et al., "Progressive Neural Networks", arXiv 2016, equation 1, in the form that the released code of the MNTDP
paper gives it. With h_b^k the activation of column k behind block b,

    h_1^k = block_1^k(image),    h_b^k = ReLU( block_b^k(h_{b-1}^k) + Σ_{j<k} block_b^{j→k}(h_{b-1}^j) ),

where block_b^{j→k} is a full copy of the block, trained with column k; there are no adapters. The head has no ReLU: the
logits are the sum over the column's own head and the lateral ones. Every other block ends in a ReLU of its own, so the
sum is not negative, a ReLU around it would change nothing, and it is left out.

A column is one state per block: the block's own tensors as "own/…", those of the copy that reads the column of task t1
as "from.t1/…". Beside n earlier columns a pass runs 1 + n blocks of the last column at every depth, which grows
linearly with the tasks, and n(n+1)/2 frozen ones, which grows quadratically. All frozen modules that read the same
activation run as one stack, so these are n calls.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from espalier.nets.backbone import Backbone
from espalier.nets.layers import Stack, alone
from espalier.nets.pieces import EVAL, Mode, State

OWN = "own"
Readers = tuple[tuple[str, ...], Stack]  # columns whose modules read the same activation, and these as one stack


def lateral(task: str) -> str:
    """The part of a state that reads the column of a task."""
    return f"from.{task}"


class Columns:
    """The network of one task: its column is given to `forward`; the `earlier` ones, by task, stay as they are.

    Nothing reads their heads: these may have another number of classes than `backbone`, and are not used.
    """

    def __init__(self, backbone: Backbone, earlier: Mapping[str, Sequence[State]]) -> None:
        self.backbone, self.earlier = backbone, tuple(earlier)
        columns = {task: [_parts(state) for state in states[:-1]] for task, states in earlier.items()}
        self.frozen: list[list[Readers]] = [[] for _ in backbone.blocks[:-1]]
        if columns:
            self.frozen[0].append((self.earlier, _stacked([column[0][OWN] for column in columns.values()])))
        for depth, readers in enumerate(self.frozen[1:], start=1):
            for number, task in enumerate(self.earlier):
                later = self.earlier[number + 1 :]
                modules = [columns[task][depth][OWN], *(columns[name][depth][lateral(task)] for name in later)]
                readers.append(((task, *later), _stacked(modules)))

    @torch.no_grad()
    def forward(self, states: Sequence[State], x: Tensor) -> Tensor:
        """Normalised images through the column of these states: (batch, classes)."""
        self.frozen = [[(tasks, _on(x.device, stack)) for tasks, stack in readers] for readers in self.frozen]
        return self.run([alone(state) for state in states], x, lambda depth: EVAL)

    def run(self, stacks: Sequence[Stack], x: Tensor, modes: Callable[[int], Mode]) -> Tensor:
        """Logits (batch, members·classes) of a stack of members, each a column of its own beside the earlier ones."""
        image = own = x.contiguous(memory_format=torch.channels_last)
        beside: dict[str, Tensor] = {}  # the earlier columns so far; the first block reads the image alone
        for depth, (block, stack) in enumerate(zip(self.backbone.blocks, stacks, strict=True)):
            mode, parts = modes(depth), _parts(stack)
            own = block.forward(parts[OWN], own, mode)
            for task, activation in beside.items():
                own = own + block.forward(parts[lateral(task)], activation, mode)
            if self.earlier and depth < len(self.frozen):
                beside = self._beside(depth, list(beside.values()) or [image])
        return own

    @torch.no_grad()
    def _beside(self, depth: int, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """The earlier columns behind a block, from what there is to read in front of it."""
        sums: dict[str, Tensor] = {}
        for (tasks, stack), x in zip(self.frozen[depth], inputs, strict=True):
            outputs = self.backbone.blocks[depth].forward(stack, x, EVAL).chunk(len(tasks), 1)
            for task, out in zip(tasks, outputs, strict=True):
                sums[task] = sums[task] + out if task in sums else _cut_out(out)
        return sums


def column(own: Sequence[State], laterals: Mapping[str, Sequence[State]]) -> list[State]:
    """A column's states from those of its own blocks and, by task, of the copies that read the task's column."""
    states = [_named(OWN, state) for state in own]
    for task, copies in laterals.items():
        for state, copy in zip(states[1:], copies, strict=True):
            state |= _named(lateral(task), copy)
    return states


def _named(part: str, state: State) -> State:
    return {f"{part}/{name}": tensor for name, tensor in state.items()}


def _parts(state: State) -> dict[str, State]:
    found: dict[str, State] = {}
    for key, tensor in state.items():
        part, _, name = key.partition("/")
        found.setdefault(part, {})[name] = tensor
    return found


def _stacked(states: Sequence[State]) -> Stack:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def _cut_out(part: Tensor) -> Tensor:
    """A part of wider activations, in memory of its own, as every layer that reads it would copy it."""
    return part.contiguous(memory_format=torch.channels_last) if part.dim() == 4 else part


def _on(device: torch.device, stack: Stack) -> Stack:
    return {name: tensor.to(device) for name, tensor in stack.items()}
