"""The search space: which candidates are built around a past path. A space is a union of named pieces."""

from collections.abc import Callable
from dataclasses import dataclass

from espalier.errors import InputError
from espalier.learners.lesson import Lesson, Path, all_fresh
from espalier.training import Candidate, Copy, Fresh, Reuse, Slot

Piece = Callable[[Path, bool, int], list[Candidate]]  # (path, whether its head fits, how deep) → candidates


def suffix(path: Path, head_fits: bool, depth: int) -> list[Candidate]:
    """The paper's: re-use all, a new head, new last two blocks, … all new."""
    fresh: list[Candidate] = [
        (*(Reuse(module) for module in path[: len(path) - new]), *(Fresh() for _ in range(new)))
        for new in range(1, depth + 1)
    ]
    return [tuple(Reuse(module) for module in path), *fresh] if head_fits else fresh


def warm(path: Path, head_fits: bool, depth: int) -> list[Candidate]:
    """As `suffix`, but the new blocks begin as copies; the head too, where it fits."""
    head: Slot = Copy(path[-1]) if head_fits else Fresh()
    trunk = path[:-1]
    return [
        (*(Reuse(m) for m in trunk[: len(path) - new]), *(Copy(m) for m in trunk[len(path) - new :]), head)
        for new in range(2 if not head_fits else 1, depth + 1)
    ]


def prefix(path: Path, head_fits: bool, depth: int) -> list[Candidate]:
    """New first blocks under a frozen rest, with the old head where it fits, and with a new one."""
    candidates: list[Candidate] = []
    for new in range(1, min(depth, len(path) - 1) + 1):
        slots: list[Slot] = [*(Fresh() for _ in range(new)), *(Reuse(module) for module in path[new:-1])]
        if head_fits:
            candidates.append((*slots, Reuse(path[-1])))
        candidates.append((*slots, Fresh()))
    return candidates


PIECES: dict[str, Piece] = {"suffix": suffix, "warm": warm, "prefix": prefix}


@dataclass(frozen=True)
class Space:
    """Pieces and how deep each goes: how many blocks may be new (None: all of them)."""

    pieces: tuple[tuple[str, int | None], ...] = (("suffix", None),)

    def __post_init__(self) -> None:
        for name, depth in self.pieces:
            if name not in PIECES:
                raise InputError(f"there is no piece {name!r} of a search space; the pieces are {', '.join(PIECES)}.")
            if depth is not None and depth < 1:
                raise InputError(f"a piece that is {depth} blocks deep cannot be; choose 1 or more, or None for all.")

    def candidates(self, lesson: Lesson, paths: list[Path]) -> list[Candidate]:
        """Around all the given paths, none twice. A task without a past has one candidate: all new."""
        blocks = len(lesson.backbone.blocks)
        found = [
            candidate
            for name, depth in self.pieces
            for path in paths
            for candidate in PIECES[name](path, lesson.head_fits(path), min(depth or blocks, blocks))
        ]
        return list(dict.fromkeys(found or [all_fresh(lesson)]))
