"""Paths that branch off old ones, and a distribution Γ over them. Knows nothing about networks or images.

A path is an old prefix, then fresh modules to the end; so its prefix tells it. The old prefixes form a trie. At every
node of it Γ has a categorical over what follows: an old module that some chosen path has there, or the fresh one; what
follows a fresh module is fresh. The probability of a path is the product along it. Γ's `logits` are (members, nodes,
choices): nodes with fewer choices than the widest leave the last ones unused.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training.trie import Prefix

ROUNDING = 1e-5  # paths whose log-probabilities differ by less are equally likely


class Paths:
    """The paths around `old` ones; those of `whole` may also be re-used to the end, as their head fits the task.

    `prefixes` has every path once: more re-use first, then in the order given.
    """

    def __init__(self, old: Sequence[Prefix], whole: Sequence[Prefix], device: torch.device | str = "cpu") -> None:
        nodes = list(dict.fromkeys(path[:depth] for depth in reversed(range(len(old[0]))) for path in old))
        self.prefixes: list[Prefix] = [*dict.fromkeys(whole), *nodes]
        follow: dict[Prefix, list[Prefix | None]] = {node: [] for node in nodes}
        for prefix in self.prefixes:
            if prefix:
                follow[prefix[:-1]].append(prefix)
        for node in nodes:
            follow[node].append(None)  # the fresh module
        turns = {(node, after): place for node in nodes for place, after in enumerate(follow[node])}
        self.shape = len(nodes), max(map(len, follow.values()))
        self._node = torch.tensor([nodes.index(node) for node, _ in turns], device=device)
        self._choice = torch.tensor(list(turns.values()), device=device)
        self._there = torch.zeros(self.shape, dtype=torch.bool, device=device)
        self._there[self._node, self._choice] = True
        number = {turn: place for place, turn in enumerate(turns)}
        taken = torch.zeros(len(turns), len(self.prefixes))
        for column, prefix in enumerate(self.prefixes):
            on_the_way = [(prefix[:depth], prefix[: depth + 1]) for depth in range(len(prefix))]
            leaving = [(prefix, None)] if prefix in follow else []
            taken[[number[turn] for turn in [*on_the_way, *leaving]], column] = 1
        self._taken = taken.to(device)  # (turns, paths): which turns a path takes

    def uniform(self, members: int) -> Tensor:
        """The logits of a Γ that has all paths equally likely: at each node, a choice counts by the paths it opens."""
        logits = self._taken.new_zeros(members, *self.shape)
        logits[:, self._node, self._choice] = self._taken.sum(1).log()
        return logits

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Of every path: (members, paths)."""
        by_node = F.log_softmax(logits.masked_fill(~self._there, -torch.inf), 2)
        return by_node[:, self._node, self._choice] @ self._taken

    def likeliest(self, logits: Tensor) -> list[int]:
        """The path of each member that has the largest probability: its place in `prefixes`. Ties go to more re-use."""
        log_p = self.log_probabilities(logits)
        first = (log_p > log_p.max(1, keepdim=True).values - ROUNDING).int().argmax(1)
        likeliest: list[int] = first.tolist()
        return likeliest


def entropy(log_p: Tensor) -> Tensor:
    """Of each member's distribution over paths: (members, paths) → (members,)."""
    return -(log_p.exp() * log_p).sum(1)


def sample(log_p: Tensor, uniform: Tensor) -> Tensor:
    """Paths drawn from each member's distribution with numbers from [0, 1): (members, n) of both kinds."""
    reached = log_p.exp().cumsum(1)
    drawn = torch.searchsorted(reached, uniform * reached[:, -1:], right=True)
    return drawn.clamp(max=log_p.shape[1] - 1)


def reinforce_loss(log_p: Tensor, drawn: Tensor, reward: Tensor) -> Tensor:
    """Whose gradient is, on average, that of the expected loss: `drawn` paths and their `reward` are (members, n).

    The baseline is the mean reward of the n; as each is part of it, the gradient is (n - 1)/n of what it would be.
    """
    advantage = reward - reward.mean(1, keepdim=True)
    return -(advantage * log_p.gather(1, drawn)).mean(1)
