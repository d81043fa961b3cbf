"""Saved copies of stacks, of which the rows of some members are renewed. Knows nothing about what the stacks are.

On a GPU it is one kernel for all tensors, which touches only what is renewed: a launch for each of some 200 tensors
would take longer than the copying.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.nets import fused

PIECE = 4096  # values that a program on a GPU moves


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor (rows, …) and its saved copy, and the number of the member that each row belongs to."""

    now: Tensor
    saved: Tensor
    members: Tensor


class Renewal:
    """`in_place`: the tensors stay where they are in memory for as long as this is used."""

    def __init__(self, pairs: Sequence[Pair], in_place: bool) -> None:
        self.pairs = list(pairs)
        on_gpu = bool(pairs) and in_place and fused.kernels is not None and all(map(_movable, pairs))
        self.pieces = _pieces(self.pairs) if on_gpu else None

    @torch.no_grad()
    def renew(self, wanted: Tensor) -> None:
        """The rows of these members (members,) as they are now."""
        if self.pieces is not None:
            fused.kernels.renew[(self.pieces.shape[1],)](*self.pieces, wanted.view(torch.uint8), PIECE)
            return
        for pair in self.pairs:
            mask = wanted[pair.members].view(-1, *[1] * (pair.now.dim() - 1))
            torch.where(mask, pair.now.detach(), pair.saved, out=pair.saved)


def _movable(pair: Pair) -> bool:
    return all(t.is_cuda and t.dtype == torch.float32 and t.is_contiguous() for t in (pair.now, pair.saved))


def _pieces(pairs: Sequence[Pair]) -> Tensor:
    """(4, pieces): from which address to which, of which member, and how many values."""
    return torch.cat([_pieces_of(pair) for pair in pairs], 1).to(pairs[0].now.device)


def _pieces_of(pair: Pair) -> Tensor:
    rows, size = pair.now.shape[0], pair.now[0].numel()
    begins = torch.arange(0, size, PIECE)
    places = (torch.arange(rows)[:, None] * size + begins).flatten() * pair.now.element_size()
    counts = (size - begins).clamp(max=PIECE).repeat(rows)
    members = pair.members.cpu().repeat_interleave(len(begins))
    return torch.stack([pair.now.data_ptr() + places, pair.saved.data_ptr() + places, members, counts])
