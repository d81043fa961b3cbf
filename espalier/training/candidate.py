"""What a trainer is asked for and what it gives back. Knows nothing about how training is done.

A slot says what a candidate does at one block; a candidate is one slot per block; a setting is a point of the
hyper-parameter grid; a member is one candidate under one setting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espalier.nets import State


@dataclass(frozen=True)
class Reuse:
    """The module as it is, frozen: neither its weights nor its statistics change."""

    module: str


@dataclass(frozen=True)
class Fresh:
    """A new module, trained from random weights."""


@dataclass(frozen=True)
class Copy:
    """A new module, trained from the weights and statistics of an old one.

    `keep_statistics`: batch norm uses the old statistics in training too, and they stay; as the released code of the
    paper does in every learner that trains one network on from task to task.
    """

    module: str
    keep_statistics: bool = False


Slot = Reuse | Fresh | Copy
Candidate = tuple[Slot, ...]


def describe(candidate: Candidate) -> str:
    """One letter per block: r(euse), f(resh), c(opy)."""
    return "".join(type(slot).__name__[0].lower() for slot in candidate)


@dataclass(frozen=True)
class Setting:
    """Learning rate and weight decay (added to the gradient, as in Adam's L2); `path_lr` is MNTDP-S's alone."""

    lr: float
    weight_decay: float
    path_lr: float | None = None


@dataclass(frozen=True)
class Member:
    candidate: Candidate
    setting: Setting

    @property
    def trains(self) -> bool:
        return any(not isinstance(slot, Reuse) for slot in self.candidate)


@dataclass(frozen=True, eq=False)
class Trained:
    """A member after training, at its best validation accuracy.

    `states` has the trained module of each block (None where one is re-used), `early` those after 0, 1, … 5 steps,
    for the learning curve; `steps` and `samples` count what was done until it stopped.
    """

    member: Member
    val_accuracy: float
    best_step: int
    steps: int
    samples: int
    states: tuple[State | None, ...]
    early: tuple[tuple[State | None, ...], ...]


def best(results: Sequence[Trained]) -> Trained:
    """The highest validation accuracy; ties go to more re-use, then to the first setting, then to the first given."""
    settings = list(dict.fromkeys(r.member.setting for r in results))

    def merit(result: Trained) -> tuple[float, int, int]:
        re_used = sum(isinstance(slot, Reuse) for slot in result.member.candidate)
        return result.val_accuracy, re_used, -settings.index(result.member.setting)

    return max(results, key=merit)


def modules_named(candidates: Sequence[Candidate]) -> set[str]:
    """All modules that the candidates re-use or copy."""
    return {slot.module for c in candidates for slot in c if not isinstance(slot, Fresh)}


ModuleStates = Mapping[str, State]
